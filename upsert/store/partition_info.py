"""What ``SHOW PARTITIONS`` and ``DESCRIBE … PARTITION`` tell of each partition. Follows FLIP-188."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from upsert.store import paths
from upsert.store.definition import Definition
from upsert.store.file_set import FileSet, Run
from upsert.store.partitions import partition_name, partition_values
from upsert.store.paths import Partition


@dataclass(frozen=True)
class PartitionInfo:
    """One partition that has files.

    Attributes:
        spec: partition columns and values, in the table's order; as ``drop_partition`` takes them.
        partition: the same as texts.
        path: its folder.
        files: number of data files.
        rows: number of rows: exact where the partition is compacted; before that a key that was updated
            counts once per file. Equal rows of a table without primary key count once per file.
        bytes: size of the data files.
        last_modified_ms: when the newest of its files was written, in milliseconds since 1970; a compaction
            writes files too.
        is_compacted: whether each of its buckets is one sorted run without deletions.
        change_tracking: whether commits show in change streams where a statement says nothing else.
    """

    spec: Mapping[str, Any]
    partition: Partition
    path: str
    files: int
    rows: int
    bytes: int
    last_modified_ms: int
    is_compacted: bool
    change_tracking: bool

    @property
    def name(self) -> str:
        """Columns and values as people read them: ``day=2013-01-01/hub=JFK``."""
        return partition_name(self.partition)


def partition_infos(root: str, definition: Definition, files: FileSet) -> tuple[PartitionInfo, ...]:
    """The partitions of a snapshot, ordered by their texts; one without name for a table without partitions.

    A partition that was dropped has no files. Only names and sizes of files are looked at.
    """
    runs: dict[Partition, list[Sequence[Run]]] = {}
    for (partition, _), of_bucket in files.groups.items():
        runs.setdefault(partition, []).append(of_bucket)
    ordered = sorted(runs, key=lambda partition: [(text is not None, text or "") for _, text in partition])
    return tuple(_info(root, definition, partition, runs[partition]) for partition in ordered)


def _values(definition: Definition, partition: Partition) -> Mapping[str, Any]:
    types = [definition.schema.type_of(name) for name, _ in partition]
    arrays = [partition_values([text], type_) for (_, text), type_ in zip(partition, types, strict=True)]
    return MappingProxyType(
        {name: array[0].as_py() for (name, _), array in zip(partition, arrays, strict=True)}
    )


def _info(
    root: str, definition: Definition, partition: Partition, buckets: Sequence[Sequence[Run]]
) -> PartitionInfo:
    entries = [entry for runs in buckets for run in runs for entry in run]
    return PartitionInfo(
        spec=_values(definition, partition),
        partition=partition,
        path=os.path.dirname(paths.resolve(root, paths.bucket_folder(partition, 0))),
        files=len(entries),
        # a deletion is a stored row, and takes an older one away
        rows=max(0, sum(entry.rows - 2 * entry.deletes for entry in entries)),
        bytes=sum(entry.bytes for entry in entries),
        last_modified_ms=max(entry.written_ms for entry in entries),
        is_compacted=all(len(runs) == 1 and not any(e.deletes for e in runs[0]) for runs in buckets),
        change_tracking=definition.options.change_tracking and partition not in definition.untracked,
    )
