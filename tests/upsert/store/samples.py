"""Values of every key type, chosen to be awkward, and a small table of runs with a dict as its model."""

import datetime as dt
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import TableSchema
from upsert.store.files.data_file import DataFile
from upsert.store.files.writing import write_run
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.metadata.file_set import FileSet
from upsert.store.metadata.snapshot import EMPTY
from upsert.store.paths import BucketId
from upsert.store.read.snapshot import Snapshot
from upsert.store.rows.conform import conform
from upsert.store.rows.fold import Order, fold
from upsert.store.rows.layout import Layout
from upsert.store.rows.merge import SortedRows, merge_runs
from upsert.store.rows.partitions import split
from upsert.store.table import Table
from upsert.types import TIMESTAMP, TIMESTAMP_NTZ

UTC = dt.UTC
KEY_VALUES: Mapping[pa.DataType, Sequence[Any]] = {
    pa.bool_(): [False, True],
    pa.int8(): [-128, -1, 0, 127],
    pa.int16(): [-32768, 0, 1, 32767],
    pa.int32(): [-(2**31), -1, 0, 2**31 - 1],
    pa.int64(): [-(2**63), -1, 0, 5, 2**63 - 1],
    pa.float32(): [0.0, -0.0, 1.5, -2.25, math.inf, -math.inf, math.nan],
    pa.float64(): [0.0, -0.0, 1.5, -2.25, math.inf, -math.inf, math.nan],
    pa.string(): ["", "a", "a\0", "\0", "é", "😀", "long " * 40],
    pa.binary(): [b"", b"\0", b"a", b"a\0", b"\xff\xfe", b"long " * 40],
    pa.date32(): [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31)],
    TIMESTAMP: [dt.datetime(1, 1, 1, tzinfo=UTC), dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)],
    TIMESTAMP_NTZ: [dt.datetime(1969, 12, 31, 23, 59, 59, 999999), dt.datetime(9999, 12, 31)],
    pa.time32("s"): [dt.time(0), dt.time(10, 20, 30), dt.time(23, 59, 59)],
    pa.time32("ms"): [dt.time(0), dt.time(10, 20, 30, 5000), dt.time(23, 59, 59, 999000)],
    pa.time64("us"): [dt.time(0), dt.time(0, 0, 0, 1), dt.time(10, 20), dt.time(23, 59, 59, 999999)],
    pa.time64("ns"): [dt.time(0), dt.time(0, 0, 0, 1), dt.time(10, 20), dt.time(23, 59, 59, 999999)],
    pa.duration("us"): [dt.timedelta(days=n, microseconds=1) for n in (-106751991, -1, 0, 1, 106751990)],
    pa.decimal128(10, 2): [Decimal("-99999999.99"), Decimal("-0.01"), Decimal(0), Decimal("12.50")],
    pa.decimal128(38, 10): [Decimal(f"-{9 * 10**26}"), Decimal("-0.0000000001"), Decimal(0), Decimal(10**27)],
}
"""A few values of each hashable type: limits, both zeros, NaN, NUL, texts longer than statistics keep."""


def canonical(value: Any) -> Any:
    """A value that is equal to another exactly if the store takes the two as equal."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, list):
        return tuple(canonical(item) for item in value)
    if isinstance(value, dict):
        return tuple(sorted((name, canonical(item)) for name, item in value.items()))
    return value


def canonical_rows(rows: pa.Table) -> list[tuple[Any, ...]]:
    """The rows as tuples of canonical values."""
    return [tuple(map(canonical, row)) for row in zip(*(c.to_pylist() for c in rows.columns), strict=True)]


def table_of(
    schema: TableSchema, rows: Sequence[Sequence[Any]], kinds: Sequence[str] | None = None
) -> pa.Table:
    """Rows given as tuples, with their kinds as last column."""
    columns = [pa.array([row[i] for row in rows], column.type) for i, column in enumerate(schema.columns)]
    table = pa.table(columns, names=list(schema.names))
    return (
        table if kinds is None else table.append_column(ROW_KIND_COLUMN, pa.array(list(kinds), pa.string()))
    )


class Runs:
    """A table made of runs by hand: what commits and compactions would publish, without publishing."""

    def __init__(self, root: Path, layout: Layout) -> None:
        self.root = root
        self.layout = layout
        self.entries: list[FileEntry] = []
        self.commits = 0

    def write(self, rows: pa.Table, order: Order = "rows", max_rows: int = 1000) -> None:
        """One commit: one run in each bucket that the rows belong to."""
        self.commits += 1
        conforming, weights = conform(self.layout, rows)
        for portion in split(self.layout, conforming, weights):
            run = fold(self.layout, portion.rows, portion.weights, order)
            self._add(run, portion.bucket_id, 0, self.commits, max_rows)

    def compact(self, runs: int, max_rows: int = 1000) -> None:
        """Merge the oldest `runs` runs of every bucket, without deletions."""
        for bucket_id, newest_first in FileSet.of(self.entries).groups.items():
            oldest = newest_first[max(0, len(newest_first) - runs) :]
            merged = merge_runs(self.layout, [self._read(run) for run in reversed(oldest)])
            if merged.kinds is not None:
                merged = SortedRows(merged.rows.filter(pa.array(merged.kinds == 0)), None)
            gone = {entry.file for run in oldest for entry in run}
            self.entries = [entry for entry in self.entries if entry.file not in gone]
            self._add(merged, bucket_id, 3, oldest[0][0].sequence, max_rows)

    def _read(self, run: Sequence[FileEntry]) -> SortedRows:
        files = [DataFile.open(self.root, self.layout, entry) for entry in run]
        parts = [SortedRows(file.table, file.kinds) for file in files]
        return merge_runs(self.layout, parts)

    def _add(self, run: SortedRows, bucket_id: BucketId, level: int, sequence: int, max_rows: int) -> None:
        written = write_run(
            self.root,
            self.layout,
            [run],
            bucket_id,
            level=level,
            base=0,
            target_bytes=32 * max_rows,
        )
        self.entries += [replace(entry, sequence=sequence) for entry in written]

    def snapshot(self) -> Snapshot:
        """The table as it is now."""
        info = replace(EMPTY, rows=sum(entry.rows for entry in self.entries))
        return Snapshot(self.root, self.layout, FileSet.of(self.entries), info)


def multiset(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    """How often each row occurs, by canonical values."""
    return Counter(canonical_rows(rows))


def ids_of(table: Table) -> list[int]:
    """The values of ``id`` in the rows that a table has now, in order."""
    return sorted(table.snapshot().scan()["id"].to_pylist())
