"""The Kafka demo as its user starts it: small, through its crash, to what a consumer finds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from examples.flights.cli import app
from tests.helpers import processes_that_mention, wait_until
from upsert import Catalog

ROOT = Path(__file__).parents[4]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "examples.flights", "--kafka", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        timeout=900,
        check=False,
    )


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.kafka
def test_small_demo_survives_its_crash_and_its_topics_hold_what_they_should(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    ended = run("--rows", "3000", "--seconds", "4", "--warehouse", str(warehouse))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for shown in (
        "normalizer left out: the sink is keyed by (day, carrier, flight, origin)",
        "delta join by INDEX_origin_time_hour and PRIMARY KEY",
        "kill -9",
        "a new driver runs",
        "duplicates in exactly-once: 0",
        "keys in two partitions: 0",
        "difference of board: 0",
        "difference of board_with_weather: 0",
    ):
        assert shown in ended.stdout
    assert sorted(Catalog(warehouse).tables()) == [
        "board",
        "board_with_weather",
        "flights",
        "flights_log",
        "weather",
        "weather_log",
    ]
    assert not (warehouse / "board" / "state").exists()
    assert not (warehouse / ".demo" / "scratch").exists()
    wait_until(lambda: not processes_that_mention(str(warehouse)))  # those that were killed


def test_help_says_what_happens() -> None:
    ended = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"})
    assert ended.exit_code == 0
    for shown in ("--rows", "--seconds", "--warehouse", "SIGKILL", "Debezium"):
        assert shown in ended.stdout
