"""What is measured runs, on few rows."""

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pytest

from bench.cluster.__main__ import measure, requests
from bench.cluster.standalone import counted_store
from bench.join.systems import write_csv
from bench.lookups import __main__ as lookups
from bench.manifests import SCHEMA, time_manifests
from bench.orders_and_events import step_rows
from bench.scale import list_tables, make_files, make_snapshots, make_tables, open_history, plan_one_partition
from tests.object_store import CREDENTIALS
from upsert.store.table import Table


def test_manifests_are_timed(tmp_path: Path) -> None:
    found = time_manifests(tmp_path, files=20, commits=3)
    assert found.keys() >= {"plan_all_s", "plan_one_partition_s", "last_hundred_median_ms"}


def test_what_grows_is_measured(tmp_path: Path) -> None:
    found: dict[str, float] = {}
    for measurement, count in ((make_tables, 3), (make_snapshots, 3), (make_files, 800)):
        found |= measurement(tmp_path, count)
    for measurement in (list_tables, open_history, plan_one_partition):
        found |= measurement(tmp_path, 0)
    assert found["plan_one_partition_buckets"] == 10
    assert found.keys() >= {"show_tables_ms", "commit_last_ms", "open_long_history_ms", "manifest_mb"}


def test_no_heading_of_a_table_is_cut_where_it_is_piped() -> None:
    results = [dict.fromkeys(lookups.COLUMNS, 1.25)]
    with lookups.console.capture() as printed:
        lookups.console.print(lookups.grid(results))
    words = {word for title, _ in lookups.COLUMNS.values() for word in title.split()}
    assert words <= set(printed.get().split())


@pytest.mark.sidecars
def test_what_processes_ask_of_a_store_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write of one row puts four objects; whoever does not say that it is the driver is an executor."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with counted_store(tmp_path) as store:
        table = Table.create(store.warehouse.replace("?", "/fruit?"), SCHEMA, {"bucket": "1"})
        before = store.counts()
        table.write(pa.table({"day": pa.array([1], pa.int32()), "id": [1], "name": ["apple"]}))
        asked = store.counts() - before
    assert asked["executor puts"] == 4
    assert asked["executor bytes taken"] > 1000
    assert not any(kind.startswith("driver") for kind in asked)


def test_csv_files_have_the_rows_of_the_steps(tmp_path: Path) -> None:
    """They begin with those that warm a system up, and each event has its order by then."""
    write_csv(tmp_path, rows=20, steps=2)
    for step, before, count in ((0, 0, 1000), (1, 1000, 20), (2, 1020, 20)):
        for name, rows in zip(("orders", "events"), step_rows(before, count), strict=True):
            read = pyarrow.csv.read_csv(tmp_path / "ready" / f"{name}-{step}.csv")
            assert read.cast(rows.schema).equals(rows)
    assert (tmp_path / "ready" / "2.json").read_text() == '{"pairs": 1040}'


@pytest.mark.long
@pytest.mark.minutes
@pytest.mark.spark
def test_a_cluster_gives_the_right_rows_when_an_executor_is_killed() -> None:
    """The benchmark compares them itself."""
    run = measure("upserts", executors=1, is_shared=False, rows=1000, steps=1)
    assert run["equal"]
    assert run["table_rows"] == 5000
    assert sum(requests(run)) > 0
    assert run["executor_back_seconds"] > 0
