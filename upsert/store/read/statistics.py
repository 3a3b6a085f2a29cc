"""Numbers of rows, of different keys, and of each partition's files, without reading rows.

The hashes of an index lie in ascending order in every file, so the smallest ones of all files together are
an even sample of the table's keys: how closely they lie tells how many keys there are (Bar-Yossef et al.,
"Counting distinct elements in a data stream", 2002). That takes a few pages of each file, and counts a key of
several runs once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from types import MappingProxyType
from typing import Any, Final, Self
from weakref import WeakKeyDictionary

import numpy as np

from upsert.store import paths
from upsert.store.files.data_file import DataFile
from upsert.store.files.lookup_index import HashIndex, StoredHashes, upper_halves
from upsert.store.metadata.definition import Definition
from upsert.store.metadata.file_entry import FileEntry, Run
from upsert.store.metadata.file_set import FileSet
from upsert.store.paths import Partition
from upsert.store.rows.hashing import SEED, Hashes
from upsert.store.rows.layout import COUNT_COLUMN, Layout, LookupIndex
from upsert.store.rows.partitions import partition_name, partition_values

SAMPLE: Final = 1024
"""Keys of a sample: the counts of larger tables are then right within about 3 percent."""

_FEW: Final = 256
"""Keys counted one by one where each of them has many rows."""

_MAX_FILES: Final = 256
"""A table of more files is judged by its largest ones."""

_NEGLIGIBLE: Final = 0.01
"""Where all runs but the largest one have no larger a share of a bucket's rows, no file is opened."""

_OF_NULL: Final = np.array([SEED], np.uint64)

Open = Callable[[FileEntry], DataFile]


def row_count(layout: Layout, files: FileSet, open_file: Open) -> float:
    """About how many rows the files hold; exactly where each bucket has one run, or has few rows.

    Where a bucket has one run with nearly all rows, no file is opened.
    """
    if layout.is_counted:
        return max(0.0, sum(_counted_rows(open_file(entry)) for entry in files.entries))
    total = 0.0
    for runs in files.groups.values():
        entries = [entry for run in runs for entry in run]
        stored = float(sum(entry.rows for entry in entries))
        others = stored - max(sum(entry.rows for entry in run) for run in runs)
        if others <= _NEGLIGIBLE * stored:
            # whether they are new rows or new versions says less than the sample would leave open
            stored -= others / 2
        else:
            largest = nlargest(_MAX_FILES, entries, key=lambda entry: entry.rows)
            hashes = [open_file(entry).key_hashes(0, SAMPLE + 1) for entry in largest]
            stored = min(stored, distinct_hashes(hashes) * stored / sum(entry.rows for entry in largest))
        total += max(0.0, stored - sum(entry.deletes for entry in entries))
    return total


def rows_per_key(layout: Layout, index: LookupIndex, files: FileSet, open_file: Open) -> float:
    """See ``Snapshot.rows_per_key``; NULLs are no keys and their rows do not count."""
    largest = nlargest(_MAX_FILES, files.entries, key=lambda entry: entry.rows)
    if not largest:
        return 0.0
    if index.is_unique:
        return 1.0
    found = [_sample(open_file(entry), index.name) for entry in largest]
    stored = sum(one.count for one in found)
    if not stored:
        return 0.0
    # an old version of a row is stored too, until a compaction drops it
    current = row_count(layout, files, open_file) / sum(entry.rows for entry in files.entries)
    return max(1.0, current * stored / _distinct(found))


def distinct_hashes(arrays: Sequence[Hashes]) -> float:
    """About how many different values several ascending arrays of evenly spread hashes hold together."""
    return _distinct([_Ascending.of_array(hashes).sample() for hashes in arrays])


@dataclass(frozen=True)
class _Sample:
    """The smallest different hashes of a file, or halves of them, in order.

    ``is_all`` says whether there are no others, ``count`` how many hashes there are, equal ones too.
    """

    smallest: StoredHashes
    is_all: bool
    count: int


_SAMPLES: Final = WeakKeyDictionary[DataFile, dict[str, _Sample]]()
"""Those of open files, by the names of their indexes: each is asked again and again, and never changes."""


def _sample(file: DataFile, name: str) -> _Sample:
    """That of one of a file's indexes, without the hash of NULL."""
    known = _SAMPLES.setdefault(file, {})
    if (found := known.get(name)) is None:
        found = known[name] = _Ascending.of(file.index(name)).sample()
    return found


@dataclass(frozen=True)
class _Ascending:
    """Hashes in order, or halves of them, of which few are looked at.

    ``between`` gives those at some places, ``after`` the place after the one hash of an array.
    """

    count: int
    between: Callable[[int, int], StoredHashes]
    after: Callable[[StoredHashes], int]

    @classmethod
    def of(cls, index: HashIndex) -> Self:
        """Those of an index, without that of NULL."""
        first = index.after(_OF_NULL)
        return cls(
            len(index.hashes) - first,
            lambda start, stop: index.hashes_between(first + start, first + stop),
            lambda hash_: index.after(hash_) - first,
        )

    @classmethod
    def of_array(cls, hashes: Hashes) -> Self:
        """Those of an array."""
        return cls(
            len(hashes),
            lambda start, stop: hashes[start:stop],
            lambda hash_: int(np.searchsorted(hashes, hash_, side="right")[0]),
        )

    def sample(self) -> _Sample:
        """The smallest different ones."""
        if self.count <= SAMPLE:
            return _Sample(np.unique(self.between(0, self.count)), True, self.count)
        head = np.unique(self.between(0, SAMPLE))
        if len(head) >= _FEW:
            return _Sample(head, False, self.count)
        # a key has many rows: step from key to key instead
        found: list[StoredHashes] = []
        at = 0
        while at < self.count and len(found) < _FEW:
            found.append(self.between(at, at + 1))
            at = self.after(found[-1])
        return _Sample(np.concatenate(found), at == self.count, self.count)


def _distinct(found: Sequence[_Sample]) -> float:
    """See ``distinct_hashes``; where some are halves of hashes, the others are taken by these too."""
    heads = [(one.smallest, one.is_all) for one in found if one.count]
    if not heads:
        return 0.0
    range_ = 2.0**64
    if any(head.dtype == np.uint32 for head, _ in heads):
        heads, range_ = [(upper_halves(head), is_all) for head, is_all in heads], 2.0**32
    smallest = np.unique(np.concatenate([head for head, _ in heads]))
    limits = [int(head[-1]) for head, is_all in heads if not is_all]
    if not limits:
        return float(len(smallest))
    # up to this hash the sample misses no value of any array
    limit = min(limits)
    within = int(np.searchsorted(smallest, smallest.dtype.type(limit), side="right"))
    return max(1.0, (within - 1) * range_ / max(1, limit))


def _counted_rows(file: DataFile) -> float:
    """Rows that a file of a table without primary key adds: by its first ones, whose hashes are random."""
    counts = file.column(COUNT_COLUMN).slice(0, SAMPLE).to_numpy()
    return float(np.mean(counts)) * file.entry.rows


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

    def __getstate__(self) -> dict[str, Any]:
        """For another process; Python pickles no read-only view of a dict."""
        return {**vars(self), "spec": dict(self.spec)}

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


def _info(
    root: str, definition: Definition, partition: Partition, buckets: Sequence[Sequence[Run]]
) -> PartitionInfo:
    entries = [entry for runs in buckets for run in runs for entry in run]
    type_of = definition.schema.type_of
    spec = {name: partition_values([text], type_of(name))[0].as_py() for name, text in partition}
    return PartitionInfo(
        spec=MappingProxyType(spec),
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
