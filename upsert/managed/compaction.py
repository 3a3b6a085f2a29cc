"""Compaction of a large table as a Spark job: tasks merge files of one bucket each, the driver commits.

It does what ``Table.compact`` does, and like ``ALTER TABLE … COMPACT`` of FLIP-188 it is synchronous. Writers
continue meanwhile. An overwrite that removes files makes the merges of its buckets useless, which is an error
that names it: run the command again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from upsert.store.commit.committer import Committer
from upsert.store.metadata import manifest
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.read.snapshot import Snapshot
from upsert.store.table import Table
from upsert.store.upkeep import compaction, index_building
from upsert.store.upkeep.background import compaction_lock
from upsert.store.upkeep.compaction import CompactionJob

_RESULT: Final = "merge BIGINT, files BINARY"


def compact(
    spark: SparkSession,
    path: str,
    partition: Mapping[str, object] | None = None,
    buckets: Collection[int] | None = None,
) -> Snapshot | None:
    """Merge each bucket to one sorted run without deletions, after any compaction that is at work.

    The session's executors do the work. None stands for all partitions and all buckets of each. A crash
    leaves the table as it was, and files that ``Table.clean`` removes. Gives the snapshot that this made, or
    None if there was nothing to merge.
    """
    table = Table.open(path)
    is_wanted = compaction.in_buckets(table.schema, partition, buckets)
    committer = Committer(table.published)
    with compaction_lock(table.root, wait=True):
        head = table.published.latest()
        jobs = compaction.full(compaction.wanted(table.published.files(head), is_wanted), table.options)
        info = None
        if jobs:
            written = _written(spark, _Work(table.path, head.id, tuple(jobs)))
            info = compaction.publish(committer, jobs, written, yields=False)
        info = index_building.build(committer, is_wanted) or info
    found = None if info is None else table.snapshot(info.id)
    table.maintain()  # in which it may expire
    return found


@dataclass(frozen=True)
class _Work:
    """What tasks are to merge; a task takes the groups of files whose numbers come as its rows."""

    path: str
    base: int
    jobs: tuple[CompactionJob, ...]

    @property
    def groups(self) -> list[tuple[int, int]]:
        """Number of the merge, and of the group within it."""
        return [(m, g) for m, merge in enumerate(self.jobs) for g in range(len(merge.groups))]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = Table.open(self.path)
        for batch in batches:
            for number in batch.column("id").to_pylist():
                m, g = self.groups[number]
                merge = self.jobs[m]
                files = compaction.write(table.root, table.layout, self.base, merge, merge.groups[g])
                yield pa.record_batch(
                    [pa.array([m]), pa.array([manifest.encode(table.layout, files)], pa.binary())],
                    names=["merge", "files"],
                )


def _written(spark: SparkSession, work: _Work) -> Sequence[Sequence[FileEntry]]:
    found: list[list[FileEntry]] = [[] for _ in work.jobs]
    count = len(work.groups)
    if count:
        # one partition a group, so that Spark hands them out one by one
        numbers = spark.range(0, count, 1, count)
        for row in numbers.mapInArrow(work, _RESULT).collect():
            found[row["merge"]] += manifest.decode(bytes(row["files"])).added
    return found
