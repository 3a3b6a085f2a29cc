"""The demo as its user starts it: small, through its crash, to an empty difference.

It leaves no process behind; one that it has killed may take a moment to be gone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from examples.flights.cli import app
from tests.helpers import processes_that_mention, wait_until
from upsert import Catalog

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-m", "examples.flights"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, env=ENVIRONMENT, timeout=600, check=False
    )


@pytest.mark.spark
def test_small_demo_survives_its_crash_and_ends_without_a_difference(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    ended = run("--rows", "3000", "--seconds", "1", "--warehouse", str(warehouse))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "kill -9" in ended.stdout
    assert "a new driver runs" in ended.stdout
    assert "difference: 0 rows" in ended.stdout
    assert sorted(path.name for path in warehouse.iterdir()) == [
        ".demo",
        *sorted(Catalog(warehouse).tables()),
    ]
    assert not (warehouse / ".demo" / "scratch").exists()
    wait_until(lambda: not processes_that_mention(str(warehouse)))


@pytest.mark.spark
def test_interrupt_ends_all_processes_and_removes_the_tables(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "--rows", "3000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**ENVIRONMENT, "TMPDIR": str(tmp_path)},
    ) as demo:
        assert demo.stdout is not None
        assert "started a writer" in demo.stdout.readline()
        assert len(processes_that_mention(str(tmp_path))) >= 2
        demo.send_signal(signal.SIGINT)
        rest = demo.stdout.read()
    assert demo.returncode == 130
    assert "interrupted; all processes have ended" in rest
    wait_until(lambda: not processes_that_mention(str(tmp_path)))
    assert list(tmp_path.glob("deltajoin-demo-*")) == []


def test_an_error_of_the_driver_is_shown_and_ends_everything(tmp_path: Path) -> None:
    environment = {**ENVIRONMENT, "JAVA_HOME": str(tmp_path / "missing"), "TMPDIR": str(tmp_path)}
    ended = subprocess.run(
        [*COMMAND, "--rows", "10"], capture_output=True, text=True, env=environment, timeout=600, check=False
    )
    assert ended.returncode == 1
    assert "'driver-1' must run to its end; it stopped with exit code 1" in ended.stderr
    assert "java" in ended.stderr
    wait_until(lambda: not processes_that_mention(str(tmp_path)))
    assert list(tmp_path.glob("deltajoin-demo-*")) == []


def test_help_says_what_happens() -> None:
    ended = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"})
    assert ended.exit_code == 0
    for shown in ("--rows", "--seconds", "--warehouse", "SIGKILL"):
        assert shown in ended.stdout


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    ended = run("--warehouse", str(tmp_path))
    assert ended.returncode == 1
    assert "must be a new or empty folder" in ended.stderr
    assert (tmp_path / "thesis.txt").read_text() == "precious"
