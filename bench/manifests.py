"""Planning a scan of very many files, and commits to a table that has had many: part of ``bench.store``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa

from upsert.schema import TableSchema
from upsert.store import paths
from upsert.store.commit.change import Change
from upsert.store.commit.committer import Committer
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.predicate import parse_where
from upsert.store.read.snapshot import Snapshot
from upsert.store.table import Table

SCHEMA = TableSchema.of(
    {"day": pa.int32(), "id": pa.int64(), "name": pa.string()},
    primary_key=["day", "id"],
    partitioned_by=["day"],
)


def time_manifests(folder: Path, files: int, commits: int) -> dict[str, Any]:
    """Seconds to plan scans with nothing remembered, and milliseconds of the first and the last commits."""
    first, last = commit_times(folder / "commits", commits)
    return {
        "files": files,
        **planning_times(folder / "files", files),
        "commits": commits,
        "first_hundred_median_ms": first,
        "last_hundred_median_ms": last,
    }


def planning_times(path: Path, files: int) -> dict[str, float]:
    """A manifest with so many files, ten to a partition; the files themselves are not needed to plan."""
    table = Table.create(path, SCHEMA, {"bucket": "10", "write-only": "true"})
    entries = synthetic_entries(table, files, partition_files=10)
    Committer(table.published).commit(lambda _: Change("append", entries))

    def plan(where: Any) -> None:
        history = table.published.reread()
        info = history.latest()
        snapshot = Snapshot(table.path, table.layout, history.files(info), info)
        snapshot.bucket_filters(parse_where(where, table.schema))

    return {
        "plan_all_s": seconds(lambda: plan(None)),
        "plan_one_partition_s": seconds(lambda: plan([("day", "=", 77)])),
    }


def synthetic_entries(table: Table, files: int, partition_files: int) -> tuple[FileEntry, ...]:
    """What manifests would say of so many files, which are not there, spread over partitions and buckets."""
    rows = pa.table({"day": pa.array([1], pa.int32()), "id": [1], "name": ["a"]})
    (one,) = table.stage(rows, order="rows").files
    day, id = (table.schema.column(name).id for name in ("day", "id"))

    def entry(number: int) -> FileEntry:
        at = number // partition_files, number % table.options.bucket
        partition = (("day", str(at[0])),)
        low, high = ({**bound, day: at[0], id: number} for bound in (one.min, one.max))
        name = paths.data_file(partition, at[1], 0, uuid4().hex) + Path(one.file).suffix
        return replace(one, file=name, partition=partition, bucket=at[1], min=low, max=high)

    return tuple(map(entry, range(files)))


def seconds(action: Callable[[], object]) -> float:
    """Median processor time of a few calls."""
    found = []
    for _ in range(5):
        start = time.process_time()
        action()
        found.append(time.process_time() - start)
    return round(statistics.median(found), 3)


def commit_times(path: Path, commits: int) -> tuple[float, float]:
    """Median processor time of the first and the last hundred commits to a table without compaction."""
    table = Table.create(path, SCHEMA, {"write-only": "true"})
    found = []
    for number in range(commits):
        start = time.process_time()
        table.write(pa.table({"day": pa.array([1], pa.int32()), "id": [number], "name": ["a"]}))
        found.append(1000 * (time.process_time() - start))
    return round(statistics.median(found[:100]), 2), round(statistics.median(found[-100:]), 2)
