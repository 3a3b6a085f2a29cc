"""How a command prints rows, what it says of an error, and the code that it ends with.

Rows are a table or records, and nothing in them commands the terminal.
"""

import errno
import io
import json
import os
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
import typer
from py4j.java_gateway import GatewayConnection, GatewayParameters
from pyspark.errors import PySparkException
from pyspark.sql.types import VariantVal
from rich.console import Console
from typer.testing import CliRunner

from deltajoin import __version__
from deltajoin.cli.app import app
from deltajoin.cli.command import Exit, Output, errors_printed
from upsert import Catalog, types
from upsert.errors import ConfigurationError
from upsert.show.terminal import RowGrid
from upsert.show.values import rows_of
from upsert.spark import jvm


def test_a_disk_or_a_server_that_fails_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, errors_printed():
        raise OSError(errno.ENOSPC, "No space left on device", "/w/t")
    assert ended.value.exit_code == Exit.FAILED
    said = capsys.readouterr().err
    assert said.startswith("error: '/w/t': No space left on device; ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_output_that_has_no_room_is_told_as_such(tmp_path: Path, options: list[str]) -> None:
    """Python names no file then."""
    Catalog(tmp_path).sql("CREATE TABLE t (id BIGINT, PRIMARY KEY (id) NOT ENFORCED)")
    command = [sys.executable, "-m", "deltajoin", "tables", "-w", str(tmp_path), *options]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert done.returncode == Exit.FAILED
    assert (
        "the output: must be written where there is room, got 'No space left on device'; make" in done.stderr
    )
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_letter_that_the_output_cannot_have_is_told_as_such(tmp_path: Path, options: list[str]) -> None:
    """It was the trace of a defect."""
    Catalog(tmp_path).sql("CREATE TABLE t (word STRING)")
    Catalog(tmp_path).table("t").write(pa.table({"word": ["thé"]}))
    command = [sys.executable, "-m", "deltajoin", "head", "t", "-w", str(tmp_path), *options]
    of_user = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=of_user, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == Exit.FAILED
    said = "the output: must be in an encoding that has the letter U+00E9, got 'ascii'; set PYTHONIOENC"
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_after_a_letter_that_the_output_cannot_have_others_are_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompt goes on: what was not printed came again with all that followed."""
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written := io.BytesIO(), "iso8859-15"))
    output = Output()
    with pytest.raises(typer.Exit), errors_printed():
        output.say("名")
    assert "the letter U+540D, got 'iso8859-15'; set" in capsys.readouterr().err
    output.say("thé")
    assert written.getvalue().decode("iso8859-15") == "thé\n"


def test_a_letter_that_a_request_cannot_have_is_not_of_the_output() -> None:
    with pytest.raises(UnicodeEncodeError), errors_printed():
        "名".encode("latin-1")


def test_a_page_that_has_no_room_names_its_file(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["ui", "-w", str(tmp_path), "--html", "/dev/full"])
    assert done.exit_code == Exit.FAILED
    assert done.stderr.startswith("error: '/dev/full': No space left on device; see that it")


def test_it_is_json_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), errors_printed(as_json=True):
        raise ConnectionResetError("the server hung up")
    assert json.loads(capsys.readouterr().err) == {
        "error": "ConnectionResetError",
        "message": "the server hung up",
    }


def test_a_connection_that_is_not_to_the_jvm_is_told_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take seconds to see that the JVM does not end."""
    monkeypatch.setattr(jvm, "ends", lambda: pytest.fail("the JVM is waited for"))
    with pytest.raises(typer.Exit), errors_printed():
        raise ConnectionRefusedError("nobody listens")
    assert capsys.readouterr().err == "error: nobody listens\n"


def test_a_lost_connection_to_the_jvm_is_told_as_its_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jvm, "ends", lambda: True)
    parameters = GatewayParameters(port=0)  # where nobody listens
    with pytest.raises(typer.Exit), errors_printed():
        GatewayConnection(parameters).start()
    assert "Spark's JVM must run while it is needed, it has ended" in capsys.readouterr().err


def test_what_a_function_in_python_has_raised_is_told_and_not_that_there_is_a_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = "Return Message: Traceback (most recent call last):\n  File …\nValueError: no\n\n\tat py4j…"
    with pytest.raises(typer.Exit), errors_printed():
        raise PySparkException(text)
    assert capsys.readouterr().err == "error: ValueError: no\n"


def test_python_does_not_look_for_circles_in_what_is_imported() -> None:
    """Neither while it is imported nor when the command ends; in between it looks as always."""
    program = """
import atexit, gc, sys
import deltajoin_command
early = []
def note(phase, told):
    if not hasattr(sys.modules.get("deltajoin.cli.app"), "main"):
        early.append(told)
gc.callbacks.append(note)
atexit.register(lambda: print(len(early), gc.isenabled(), len(gc.get_objects()) < 1000))  # the last of all
sys.argv = ["deltajoin", "--version"]
deltajoin_command.main()
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout.splitlines()[1:] == ["0 True True"]


def test_no_file_gets_the_number_of_a_standard_stream_that_is_closed(tmp_path: Path) -> None:
    """What the JVM said went into the connection to it, and the command failed; it may be a table's file."""
    program = """
import os, sys
import deltajoin_command
said = sys.argv.pop()
try:
    deltajoin_command.main()
finally:
    with open(said, "w") as file:
        numbers = [file.fileno(), os.dup(0)]
    with open(said, "a") as file:
        print(min(numbers) > 2, {os.readlink(f"/proc/self/fd/{number}") for number in range(3)}, file=file)
"""
    said = tmp_path / "said"
    command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", program]
    subprocess.run([*command, "tables", "-w", str(tmp_path), str(said)], check=True)
    assert said.read_text() == f"True { {os.devnull} }\n"


def test_the_version_is_told() -> None:
    told = CliRunner().invoke(app, ["--version"])
    assert (told.exit_code, told.output) == (0, f"deltajoin {__version__}, PySpark {pyspark.__version__}\n")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_reader_of_a_pipe_that_has_gone_is_no_error(
    monkeypatch: pytest.MonkeyPatch, *, as_json: bool
) -> None:
    begin, end = os.pipe()
    os.close(begin)
    with suppress(BrokenPipeError), open(end, "w") as pipe:  # which has what could not be written
        monkeypatch.setattr("sys.stdout", pipe)  # what is set there is put back after the test
        with pytest.raises(typer.Exit) as ended, errors_printed(as_json=as_json) as output:
            output.table(pa.table({"text": ["x" * 80_000]}))
    assert ended.value.exit_code == Exit.DONE


def test_a_defect_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError), errors_printed():
        raise ZeroDivisionError


def printed(names: list[str], *rows: list[object], width: int = 80) -> str:
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(RowGrid(names, rows))
    return captured.get()


def test_numbers_of_a_user_s_column_have_no_commas_whatever_it_is_called(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Output().table(pa.table({"rows": [12345], "files": [1000]}))
    Output().rows([{"rows": 12345, "bucket": 1000}])
    told = capsys.readouterr().out
    assert "12345 │  1000" in told
    assert "12,345 │   1000" in told


def test_a_variant_is_shown_as_the_value_that_it_holds(capsys: pytest.CaptureFixture[str]) -> None:
    one = VariantVal.parseJson('{"a": [1, "x"], "b": 1.50}')
    far = VariantVal(b"\x2c\xff\xff\xff\x7f", b"\x01\x00\x00")  # a day of a year that Python does not have
    given = [{"variant_value": each.value, "variant_metadata": each.metadata} for each in (one, far)]
    column = pa.array([given[0], None], types.VARIANT)
    rows = pa.table({"v": column, "l": pa.array([given, None], pa.list_(types.VARIANT))})
    Output(as_json=True).table(rows)
    value = {"a": [1, "x"], "b": "1.50"}
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"v": value, "l": [value, {"value": "2cffffff7f", "metadata": "010000"}]},
        {"v": None, "l": None},
    ]
    assert '{"a": [1, "x"], "b": "1.50"}' in printed(["v"], *map(list, rows_of(rows.select(["v"]))))


def test_lines_of_a_plan_that_warn_are_red_where_there_are_colours() -> None:
    output = Output()
    for colours, expected in (("standard", "\x1b[1;31mb[0]\x1b[0m"), (None, "b[0]")):
        output.console = Console(color_system=colours, force_terminal=True, width=80)
        with output.console.capture() as captured:
            output.plan(["a", "b[0]"], {1})
        assert captured.get().splitlines() == ["a", expected]


def test_values_that_python_has_not_are_shown_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Nanoseconds, and years beyond 9999, also within nested values; a year of Python's beside them."""
    days = pa.array([3_000_000, 0, None], pa.date32())
    rows = pa.table(
        {
            "day": days,
            "at": pa.array([2**63 - 1, -(2**63), 0], pa.timestamp("us", tz="UTC")),
            "zoned": pa.array([253_402_300_799_000_000, None, 0], pa.timestamp("us", tz="Asia/Kathmandu")),
            "wall": pa.array([253_402_300_800_000_000, None, 0], pa.timestamp("us")),
            "t": pa.array([1, 1000, None], pa.time64("ns")),
            "s": pa.StructArray.from_arrays([days], names=["day"]),
            "l": pa.array([[1], [], None], pa.list_(pa.time64("ns"))),
            "m": pa.array([[(3_000_000, 1)], [], None], pa.map_(pa.date32(), pa.time64("ns"))),
        }
    )
    Output(as_json=True).table(rows)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {
            "day": "+10183-09-21",
            "at": "+294247-01-10T04:00:54.775807+00:00",
            "zoned": "9999-12-31T23:59:59+00:00",
            "wall": "+10000-01-01T00:00:00",
            "t": "00:00:00.000000001",
            "s": {"day": "+10183-09-21"},
            "l": ["00:00:00.000000001"],
            "m": [["+10183-09-21", "00:00:00.000000001"]],
        },
        {
            "day": "1970-01-01",
            "at": "-290308-12-21T19:59:05.224192+00:00",
            "zoned": None,
            "wall": None,
            "t": "00:00:00.000001",
            "s": {"day": "1970-01-01"},
            "l": [],
            "m": [],
        },
        {
            "day": None,
            "at": "1970-01-01T00:00:00+00:00",
            "zoned": "1970-01-01T05:30:00+05:30",
            "wall": "1970-01-01T00:00:00",
            "t": None,
            "s": {"day": None},
            "l": None,
            "m": None,
        },
    ]


def test_few_columns_are_a_table_whose_long_values_are_folded() -> None:
    shown = printed(["id", "name"], [1, "x" * 100], width=40)
    assert "┃ id ┃" in shown
    assert shown.count("x") == 100


def test_many_columns_are_records_on_a_narrow_terminal_and_a_table_on_a_wide_one() -> None:
    names = [f"column_{n}" for n in range(12)]
    rows = [[f"value {n}" for n in range(12)], list(range(12))]
    narrow = printed(names, *rows)
    assert [line.rstrip() for line in narrow.splitlines()[:3]] == [
        "row 1",
        "column_0   value 0",
        "column_1   value 1",
    ]
    assert "row 2" in narrow
    assert "┃ column_0 ┃" in printed(names, *rows, width=200)


def test_one_record_needs_no_number() -> None:
    names = [f"column_{n}" for n in range(12)]
    assert printed(names, list(range(12))).startswith("column_0")


def test_one_wide_row_is_a_record_in_a_pipe_too(capsys: pytest.CaptureFixture[str]) -> None:
    one = {f"column_{n}": "a value of some length" for n in range(12)}
    Output().rows([one])
    assert capsys.readouterr().out.startswith("column_0   a value")
    Output().rows([one, one])
    assert capsys.readouterr().out.startswith("┏━")
    Output().rows([{"id": 1, "text": "x" * 120}])
    assert capsys.readouterr().out.startswith("id    1")


def test_columns_without_rows_are_a_table() -> None:
    assert "column_11" in printed([f"column_{n}" for n in range(12)], width=200)


def test_what_is_in_a_table_does_not_command_the_terminal() -> None:
    shown = printed(["a\x1b[2Jb"], ["\x1b]0;title\x07line\nnext"])
    assert "\x1b" not in shown
    assert "a\\x1b[2Jb" in shown
    assert "\\x1b]0;title\\x07line\\nnext" in shown
    assert "\\x1b[2J" in printed(["_row_kind"], ["\x1b[2J"], [7])


def test_nor_does_what_an_error_or_a_note_says(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), errors_printed(trace=True):
        raise ConfigurationError("value \x1b[2J\x9b must be\n\ta number")
    said = capsys.readouterr().err
    assert said.startswith("error: value \\x1b[2J\\x9b must be\n        a number\n")
    assert said.endswith("ConfigurationError: value \\x1b[2J\\x9b must be\n\ta number\n")
    assert not {"\x1b", "\x9b"} & {*said}
    Output().say("started again: \x1b]0;title\x07")
    assert capsys.readouterr().out == "started again: \\x1b]0;title\\x07\n"


def test_columns_of_one_name_are_all_shown(capsys: pytest.CaptureFixture[str]) -> None:
    rows = pa.Table.from_arrays([pa.array([1]), pa.array(["x"]), pa.array([2])], names=["id", "name", "id"])
    for as_json in (False, True):
        Output(as_json=as_json).table(rows)
    *_, row, _, as_object = capsys.readouterr().out.splitlines()
    assert row == "│  1 │ x    │  2 │"
    assert as_object == '{"id": 1, "name": "x", "id": 2}'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"),
        (True, "true"),
        (datetime(2026, 1, 2, 3, 4, 5, 678000, UTC), "2026-01-02 03:04:05.678+00:00"),
        (datetime(2026, 1, 2, 3, 4, 5, 1), "2026-01-02 03:04:05.000001"),
        ([1, None], "[1, null]"),
        (b"\x00\xff", "00ff"),
        ("x" * 300, "x" * 199 + "…"),
    ],
)
def test_a_value_reads_as_in_sql(value: object, text: str) -> None:
    assert text in printed(["v"], [value], width=300)
