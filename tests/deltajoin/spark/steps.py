"""A delta join run step by step without Spark: its own reader, its own shards, no shuffle in between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from deltajoin.spark.shuffled import JoinGroup, JoinShard
from deltajoin.spark.source import ChangesReader, JoiningReader, SourceOptions
from deltajoin.spark.tables import JoinedTables, output_type
from deltajoin.spec import DeltaJoinSpec, Side
from deltajoin.tree import Inner
from tests.deltajoin.core.memory_tables import Row, Rows, hashable, joined, signed
from upsert.blobs import BLOB_COLUMN, rows_of_blobs
from upsert.managed.stepping import Offset
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.store.alterations import SetOptions
from upsert.store.table import Table
from upsert.store.version import Version

FORMS = ("fused", "shuffled", "stateful")


class Steps:
    """Micro-batches of a join, and what all of them together have emitted."""

    def __init__(
        self,
        spec: DeltaJoinSpec,
        *,
        max_rows: int | None = None,
        form: str = "fused",
        first_load: str = "auto",
    ) -> None:
        self.spec = spec
        self.form = form
        self.first_load = first_load
        self.reader = self.reader_of(form)
        self.offset: Offset = self.reader.initialOffset()
        self.emitted: Rows = Counter()
        self._limit: ReadLimit = ReadAllAvailable() if max_rows is None else ReadMaxRows(max_rows)

    def restart(self, form: str, shards: int) -> None:
        """Go on from the same offset in another form, with another number of shards."""
        self.spec, self.form = replace(self.spec, shards=shards), form
        self.reader = self.reader_of(form)

    def reader_of(self, form: str) -> Any:
        """The source of a form."""
        options = SourceOptions(self.spec, form == "fused", self.first_load)
        if form == "fused":
            asked = output_type(JoinedTables.open(self.spec))
            # as if each row were worth a task
            return JoiningReader(options, asked, task_rows=1, slice_rows=1)
        return ChangesReader(options)

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

    def micro_batch(self, start: Offset, end: Offset, form: str | None = None) -> list[Row]:
        """What the step emits in a form, else in the driver's own; any number of times the same."""
        form = form or self.form
        reader = self.reader_of(form)
        read = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
        batches = read if form == "fused" else list(self._joined_above(form, read))
        return [row for batch in batches for row in zip(*map(pa.Array.to_pylist, batch.columns), strict=True)]

    def _joined_above(self, form: str, blobs: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        shards: dict[int, list[pa.RecordBatch]] = {}
        for batch in blobs:
            for row, shard in enumerate(batch.column(0).to_pylist()):
                shards.setdefault(shard, []).append(batch.slice(row, 1))
        assert set(shards) <= set(range(self.spec.shards))
        for shard, batches in shards.items():
            if form == "shuffled":
                yield from JoinShard(self.spec)(batches)
            else:
                frames = (batch.to_pandas() for batch in batches)
                for frame in JoinGroup(self.spec)((shard,), frames, None):  # type: ignore[arg-type]
                    payloads = pa.array(frame[BLOB_COLUMN], pa.binary())
                    yield from rows_of_blobs([pa.record_batch({BLOB_COLUMN: payloads})])

    def truth(self) -> Rows:
        """The join of both tables as they are at the offset, recomputed."""
        left, right = (
            state_at(path, version)
            for path, version in zip(
                [table.path for table in self.spec.tables], self.offset["versions"], strict=True
            )
        )
        return joined_by(self.spec, left, right)


def rescaled_by_chance(random: Random, spec: DeltaJoinSpec) -> None:
    """Give one of the tables another number of buckets, now and then."""
    if random.random() < 0.25:
        table = Table.open(random.choice(spec.tables).path)
        table.alter(SetOptions({"bucket": str(random.randint(1, 4))}))


def state_at(path: str, version: dict[str, Any]) -> pa.Table:
    """The rows of a table at a version from an offset."""
    return Table.open(path).at(Version.from_json(version)).scan()


def joined_by(spec: DeltaJoinSpec, left: pa.Table, right: pa.Table) -> Rows:
    """The whole join of two tables, as a multiset of selected columns."""
    rows = [
        multiset_of(table, side.select) for table, side in zip((left, right), sides_of(spec), strict=True)
    ]
    keys = [[side.select.index(key) for key in side.keys] for side in sides_of(spec)]
    return joined(rows[0], rows[1], keys[0], keys[1])


def multiset_of(table: pa.Table, columns: tuple[str, ...]) -> Rows:
    """Some columns of a table as a multiset of rows that compare as stored."""
    chosen = table.select(list(columns))
    return Counter(
        tuple(map(hashable, row)) for row in zip(*(c.to_pylist() for c in chosen.columns), strict=True)
    )


def sides_of(spec: DeltaJoinSpec) -> tuple[Side, Side]:
    """Both tables of an INNER join of two, with their keys."""
    assert isinstance(spec.tree, Inner)
    keys = [tuple(ref.column for pair in spec.tree.on for ref in pair if ref.table == i) for i in (0, 1)]
    left, right = (
        Side(table.path, table.select, names, table.where)
        for table, names in zip(spec.tables, keys, strict=True)
    )
    return left, right


def with_sides(spec: DeltaJoinSpec, *, left: Side | None = None, right: Side | None = None) -> DeltaJoinSpec:
    """An INNER join of two tables with another side."""
    sides = left or sides_of(spec)[0], right or sides_of(spec)[1]
    limit = spec.max_rows_per_trigger
    return DeltaJoinSpec.of("inner", *sides, shards=spec.shards, max_rows_per_trigger=limit)


def without_kind(table: pa.Table) -> pa.Table:
    """The rows of a changelog without their kinds."""
    return table.drop_columns([ROW_KIND_COLUMN])
