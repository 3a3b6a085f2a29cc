"""What a command says of an error, and the code that it ends with."""

import errno
import json

import pytest
import typer

from deltajoin.cli.command import Exit, errors_printed


def test_a_disk_or_a_server_that_fails_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, errors_printed():
        raise OSError(errno.ENOSPC, "No space left on device", "/w/t")
    assert ended.value.exit_code == Exit.FAILED
    said = capsys.readouterr().err
    assert said.startswith("error: '/w/t': No space left on device; ")
    assert said.count("\n") == 1


def test_it_is_json_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), errors_printed(as_json=True):
        raise ConnectionResetError("the server hung up")
    assert json.loads(capsys.readouterr().err) == {
        "error": "ConnectionResetError",
        "message": "the server hung up",
    }


def test_a_reader_of_a_pipe_that_has_gone_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)  # what is set there is put back after the test
    with pytest.raises(typer.Exit) as ended, errors_printed():
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")
    assert ended.value.exit_code == Exit.DONE


def test_a_defect_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError), errors_printed():
        raise ZeroDivisionError
