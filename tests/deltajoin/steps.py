"""A delta join run step by step without Spark: its own reader, its own shards, no shuffle in between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from deltajoin.forms.shuffled import JoinShard
from deltajoin.source import DeltaJoinReader, Offset
from deltajoin.spec import DeltaJoinSpec, Side
from tests.deltajoin.memory_tables import Row, Rows, hashable, joined, signed
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.store.table import Table
from upsert.store.version import Version


class Steps:
    """Micro-batches of a join, and what all of them together have emitted."""

    def __init__(self, spec: DeltaJoinSpec, *, max_rows: int | None = None) -> None:
        self.spec = spec
        self.reader = DeltaJoinReader(spec)
        self.offset: Offset = self.reader.initialOffset()
        self.emitted: Rows = Counter()
        self._limit: ReadLimit = ReadAllAvailable() if max_rows is None else ReadMaxRows(max_rows)

    def __iter__(self) -> Iterator[list[Row]]:
        """Micro-batches until nothing is new; what each of them emits."""
        while (end := self.reader.latestOffset(self.offset, self._limit)) != self.offset:
            rows = self.micro_batch(self.offset, end)
            self.offset = end
            self.emitted.update(signed(rows))
            self.emitted = Counter({row: count for row, count in self.emitted.items() if count})
            yield rows

    def run(self) -> Rows:
        """All micro-batches; what all of them together have emitted."""
        for _ in self:
            pass
        return self.emitted

    def micro_batch(self, start: Offset, end: Offset) -> list[Row]:
        """What the step emits; any number of times the same."""
        shards: dict[int, list[pa.RecordBatch]] = {}
        for partition in self.reader.partitions(start, end):
            for batch in self.reader.read(partition):
                shards.setdefault(batch.column(0)[0].as_py(), []).append(batch)
        assert set(shards) <= set(range(self.spec.shards))
        batches = [out for shard in shards.values() for out in JoinShard(self.spec)(shard)]
        return [row for batch in batches for row in zip(*map(pa.Array.to_pylist, batch.columns), strict=True)]

    def truth(self) -> Rows:
        """The join of both tables as they are at the offset, recomputed."""
        left, right = (
            state_at(path, version)
            for path, version in zip(
                [table.path for table in self.spec.tables], self.offset["versions"], strict=True
            )
        )
        return joined_by(self.spec, left, right)


def state_at(path: str, version: dict[str, Any]) -> pa.Table:
    """The rows of a table at a version from an offset."""
    return Table.open(path).at(Version.from_json(version)).scan()


def joined_by(spec: DeltaJoinSpec, left: pa.Table, right: pa.Table) -> Rows:
    """The whole join of two tables, as a multiset of selected columns."""
    rows = [multiset_of(table, side.select) for table, side in zip((left, right), spec.sides, strict=True)]
    keys = [[side.select.index(key) for key in side.keys] for side in spec.sides]
    return joined(rows[0], rows[1], keys[0], keys[1])


def multiset_of(table: pa.Table, columns: tuple[str, ...]) -> Rows:
    """Some columns of a table as a multiset of rows that compare as stored."""
    chosen = table.select(list(columns))
    return Counter(
        tuple(map(hashable, row)) for row in zip(*(c.to_pylist() for c in chosen.columns), strict=True)
    )


def with_sides(spec: DeltaJoinSpec, *, left: Side | None = None, right: Side | None = None) -> DeltaJoinSpec:
    """An INNER join of two tables with another side."""
    sides = left or spec.sides[0], right or spec.sides[1]
    limits = {"shards": spec.shards, "max_rows_per_trigger": spec.max_rows_per_trigger}
    return DeltaJoinSpec.of("inner", *sides, **limits)


def without_kind(table: pa.Table) -> pa.Table:
    """The rows of a changelog without their kinds."""
    return table.drop_columns([ROW_KIND_COLUMN])
