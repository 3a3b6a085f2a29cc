"""Compaction as a Spark job, and as a service of its own beside a writer that never compacts."""

import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.helpers import REPOSITORY, multiset
from tests.upsert.store.disk import assert_nothing_is_left_over
from upsert.errors import CommitConflictError
from upsert.managed import compaction as managed
from upsert.schema import TableSchema
from upsert.store import Table

SCHEMA = TableSchema.of(
    {"day": pa.int32(), "id": pa.int64(), "value": pa.string()},
    primary_key=["day", "id"],
    partitioned_by=["day"],
)


def rows(value: str, kind: str = "+I") -> pa.Table:
    days = pa.array([1, 2] * 50, pa.int32())
    return pa.table({"day": days, "id": range(100), "value": [value] * 100, "_row_kind": [kind] * 100})


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = Table.create(tmp_path / "t", SCHEMA, {"bucket": "2", "write-only": "true"})
    made.write(rows("a"))
    made.write(rows("b"))
    made.write(rows("b", "-D").slice(0, 40))
    return made


def runs(table: Table) -> list[int]:
    groups = table.snapshot().files.groups
    return [len(groups[place]) for place in sorted(groups)]


@pytest.mark.spark
def test_tasks_merge_and_the_driver_commits_once(spark: SparkSession, table: Table) -> None:
    before, commits = multiset(table.snapshot().scan()), len(table.history())
    part = managed.compact(spark, table.path, {"day": 2}, buckets=[1])
    assert part is not None
    assert sorted(runs(table)) == [1, 3, 3, 3]
    whole = managed.compact(spark, table.path)
    assert whole is not None
    assert (runs(table), multiset(whole.scan())) == ([1, 1, 1, 1], before)
    assert sum(entry.deletes for entry in whole.files.entries) == 0
    assert [info.kind for info in table.history()[commits:]] == ["compact", "compact"]
    assert managed.compact(spark, table.path) is None
    table.expire(keep=1)
    table.clean(older_than_s=0)
    assert_nothing_is_left_over(table)


@pytest.mark.spark
def test_partitions_and_snapshots_expire_after_it(spark: SparkSession, tmp_path: Path) -> None:
    """Also the snapshot that it made, once a partition has gone in the next one."""
    schema = TableSchema.of(
        {"day": pa.string(), "id": pa.int64()}, primary_key=["day", "id"], partitioned_by=["day"]
    )
    kept = {"snapshot.num-retained.min": "1", "snapshot.num-retained.max": "1"}
    table = Table.create(
        tmp_path / "t", schema, {"write-only": "true", "partition.expiration-time": "1 d"} | kept
    )
    for id in (1, 2):
        table.write(pa.table({"day": ["2013-01-01", "9999-01-01"], "id": [id, id]}))
    found = managed.compact(spark, table.path)
    assert found is not None
    assert found.info.kind == "compact"
    assert [info.kind for info in table.history()] == ["delete", "expire"]
    assert multiset(table.snapshot().scan(["day"])) == {("9999-01-01",): 2}


@pytest.mark.spark
def test_a_partition_that_was_overwritten_meanwhile_is_told(
    spark: SparkSession, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = managed._written

    def slow_write(*arguments: object) -> object:
        written = write(*arguments)  # type: ignore[arg-type]
        table.overwrite(rows("c").slice(0, 1), partition={"day": 1})
        return written

    monkeypatch.setattr(managed, "_written", slow_write)
    with pytest.raises(CommitConflictError, match=r"this compact, begun .*: snapshot \d+ \(overwrite\) has"):
        managed.compact(spark, table.path)
    assert runs(table) == [1, 1, 1]
    assert "c" in table.snapshot().scan()["value"].to_pylist()


def test_a_service_of_its_own_merges_what_a_writer_leaves(table: Table) -> None:
    command = [sys.executable, "-m", "upsert.store.compactor", table.path, "--watch", "0.05"]
    service = subprocess.Popen(command, cwd=REPOSITORY)
    try:
        for number in range(6):
            table.write(rows(str(number)))
        deadline = time.monotonic() + 60
        while max(runs(table)) >= 5:
            assert service.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        service.kill()
        service.wait()
    assert {info.kind for info in table.history()} == {"append", "compact"}
    assert set(table.snapshot().scan()["value"].to_pylist()) == {"5"}
