"""The Spark format ``delta-aggregate``: changes of an aggregate, computed inside the source's ``read()``.

A task has a share of the groups: it reads the changes of the step, keeps those of its groups, and looks all
rows of these groups up, where the step begins and where it ends. The offset is the table's version, and
nothing else is kept between two micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from deltajoin.aggregate.evaluate import differences, output_schema, touched_groups, wanted
from deltajoin.aggregate.spec import DeltaAggregateSpec
from deltajoin.core.keys import have_values
from deltajoin.errors import CheckpointMismatchError
from deltajoin.fingerprint import what_differs
from deltajoin.spark.pinned_side import PinnedSide
from upsert.arrays import one_array
from upsert.errors import SchemaError
from upsert.managed.options import DEFAULT_LEASE_MS, OF_STREAMS
from upsert.managed.reader import version_of
from upsert.managed.stepping import Offset, SteppingReader
from upsert.managed.task_memory import DEFAULT_TASK_MEMORY, TASK_MEMORY
from upsert.options import Option, parse, text
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import TableSchema
from upsert.spark.batches import arrow_schema, as_asked
from upsert.spark.columns import spark_schema
from upsert.spark.formats import make_known
from upsert.spark.reads import load_stream
from upsert.spark.task import begin_task
from upsert.store.read.pinned_columns import unaltered
from upsert.store.read.steps import touched_rows
from upsert.store.rows.hashing import bucket_of, hash_columns
from upsert.store.table import Table
from upsert.store.version import Version, owner_of

FORMAT: Final = "delta-aggregate"
OPTIONS: Final = (
    Option("spec", text, "the aggregate: JSON text of a DeltaAggregateSpec"),
    *OF_STREAMS,
)

TASK_ROWS: Final = 50_000
"""Changed rows that are worth a task of their own."""
LOOKUP_ROWS: Final = 500_000
"""Rows that are looked up at a time, about; a single group may have more."""


def read_aggregate(
    spark: SparkSession,
    spec: DeltaAggregateSpec,
    consumer_id: str | None = None,
    lease_ms: int = DEFAULT_LEASE_MS,
    task_memory: int = DEFAULT_TASK_MEMORY,
) -> DataFrame:
    """A stream of the aggregate's consolidated changes: the columns of ``spec.columns``, then ``_row_kind``.

    Each group that a micro-batch touches is computed again from all of its rows, so that the cost follows the
    size of the groups, and functions may be any; there is no state. A group without rows is no group. Under
    the name ``consumer_id``, a random one for None, the query holds what a restart would read again for
    ``lease_ms`` after it was last heard of. A task may take about ``task_memory`` bytes. A `SchemaError`
    names the INDEX to add where no index lies within the group columns.
    """
    make_known(spark, DeltaAggregateSource)
    table = Table.open(spec.path)
    output_schema(spec, table.schema)
    if table.snapshot().index_for(spec.groups) is None:
        names = ", ".join(spec.groups)
        raise SchemaError(
            f"aggregate of table {table.name!r}: a PRIMARY KEY, a prefix of it or an INDEX must lie within "
            f"the group columns ({names}), there is none; declare INDEX ({names}) in its CREATE TABLE"
        )
    located = replace(spec, path=table.path, began=_side(table, spec).columns)
    options = {"spec": located.to_json(), "consumer.lease": str(lease_ms), TASK_MEMORY.key: str(task_memory)}
    if consumer_id is not None:
        options["consumer-id"] = consumer_id
    return load_stream(spark, DeltaAggregateSource, options, reader_lasts=True)


class DeltaAggregateSource(DataSource):
    """The format ``delta-aggregate``; made for `read_aggregate`."""

    @classmethod
    def name(cls) -> str:
        """``delta-aggregate``."""
        return FORMAT

    def schema(self) -> StructType:
        """The group columns, the results and ``_row_kind``."""
        spec = _spec(self.options)
        side = _side(Table.open(spec.path), spec)
        return spark_schema(TableSchema.of(output_schema(spec, side.schema)), row_kind=True)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A stream read."""
        values = parse(FORMAT, OPTIONS, self.options)
        return AggregateReader(
            _spec(self.options),
            schema,
            values["consumer-id"],
            values["consumer.lease"],
            values[TASK_MEMORY.key],
        )


@dataclass(frozen=True)
class ShareOfGroups(InputPartition):
    """What one task computes: one of so many shares of the groups that a step touches."""

    table: str
    start: Version
    end: Version
    share: int
    shares: int


class AggregateReader(SteppingReader[Table]):
    """Reads the aggregate's consolidated changes, along the versions of the table."""

    def __init__(
        self,
        spec: DeltaAggregateSpec,
        asked: StructType,
        consumer_id: str | None = None,
        lease_ms: int = DEFAULT_LEASE_MS,
        task_memory: int = DEFAULT_TASK_MEMORY,
    ) -> None:
        super().__init__(consumer_id, lease_ms, task_memory)
        self._spec = spec
        self._asked = asked

    def initialOffset(self) -> Offset:  # noqa: N802
        """The empty table."""
        return self.offset_at(self.opened(), (Version.EMPTY,))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """``max_rows_per_trigger`` of the spec."""
        return ReadMaxRows(self._spec.max_rows_per_trigger)

    def opened(self) -> Table:
        """The table."""
        return Table.open(self._spec.path)

    def tables_of(self, opened: Table) -> list[Table]:
        """It alone."""
        return [opened]

    def versions_of(self, opened: Table, offset: Offset) -> tuple[Version | None]:
        """The version in an offset, which must be one of this aggregate."""
        spec, side, theirs = self._spec, _side(opened, self._spec), offset.get("fingerprint")
        if theirs != spec.fingerprint_by(side.id_of) and theirs not in _named(side, spec):
            parts = offset.get("parts") if "aggregate" in offset else None
            differs = what_differs(parts, spec.parts(side.id_of)) if isinstance(parts, list) else ""
            raise CheckpointMismatchError(
                f"{FORMAT}: the checkpoint belongs to {owner_of(offset)}, this is {str(spec)!r}"
                f"{differs and f': {differs}'}; choose another checkpoint, or restore the query of this one"
            )
        return (version_of(offset, opened),)

    def offset_at(self, opened: Table, versions: tuple[Version, ...], consumer: str | None = None) -> Offset:
        """The offset of a version of the table, and what it belongs to."""
        side = _side(opened, self._spec)
        return {
            **self._holding.in_offset(consumer),
            "table": opened.uuid,
            "version": versions[0].to_json(),
            "aggregate": str(self._spec),
            "fingerprint": self._spec.fingerprint_by(side.id_of),
            "parts": list(self._spec.parts(side.id_of)),
        }

    def ends(
        self, opened: Table, versions: tuple[Version | None, ...], max_rows: int | None
    ) -> tuple[Version, ...]:
        """The end of the next step."""
        (until,) = self._until or self.versions_seen(opened)
        version, side = versions[0] or Version.EMPTY, _side(opened, self._spec)
        end = unaltered(
            opened,
            # every task reads all changes
            lambda _: opened.advance(
                version,
                max_rows=max_rows,
                max_bytes=self.readable_bytes,
                until=until,
                where=side.where_now(self._spec.rows),
            ),
        )
        return (end,)

    def partitions(self, start: Offset, end: Offset) -> list[ShareOfGroups]:
        """As many as the changes are worth."""
        table = self.opened_lately()
        self.keep(table, start, end)
        (first,), (last,) = (self.versions_of(table, offset) for offset in (start, end))
        if first is None or last is None or first == last:
            return []
        shares = max(1, min(self._spec.shards, -(-touched_rows(table.pinned(), first, last) // TASK_ROWS)))
        return [ShareOfGroups(table.uuid, first, last, share, shares) for share in range(shares)]

    def read(self, partition: ShareOfGroups) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """The consolidated changes of a share of the groups."""
        begin_task()
        schema = arrow_schema(self._asked)
        for batch in changes_of(Table.open(self._spec.path, partition.table), self._spec, partition):
            yield as_asked(batch, schema)


def _side(table: Table, spec: DeltaAggregateSpec) -> PinnedSide:
    """The table with the columns that the query began with; those of now where the spec does not say."""
    for name in spec.read:
        if not spec.began:
            table.schema.type_of(name, f"an aggregate of table {table.name!r}")
    return PinnedSide(table, spec.began or tuple(table.schema.column(name) for name in spec.read))


def _named(side: PinnedSide, spec: DeltaAggregateSpec) -> set[str]:
    """What release 0.1 called the aggregate, under all the names that its columns have had."""
    names = ({name: column.name for name, column in form.items()} for form in side.forms())
    return {spec.renamed(then.__getitem__).fingerprint for then in names}


def changes_of(table: Table, spec: DeltaAggregateSpec, part: ShareOfGroups) -> Iterator[pa.RecordBatch]:
    """The consolidated changes of a share of the groups that a step touches."""
    side = _side(table, spec)
    changes = side.changes_between(part.start, part.end, spec.read, where=spec.rows)
    images = _of_share(spec, wanted(spec, changes.drop_columns([ROW_KIND_COLUMN])), part)
    keys = touched_groups(spec, images)
    schema = output_schema(spec, side.schema)
    if part.start == Version.EMPTY:  # a first load: what came is all of it
        yield from differences(spec, schema, keys, lambda _: images.slice(0, 0), lambda _: images)
        return
    size = max(1, int(LOOKUP_ROWS / max(1.0, table.at(part.end).rows_per_key(side.names_now(spec.groups)))))
    old, new = (partial(_rows_of, spec, side, version) for version in (part.start, part.end))
    for low in range(0, keys.num_rows, size):
        yield from differences(spec, schema, keys.slice(low, size), old, new)


def _of_share(spec: DeltaAggregateSpec, images: pa.Table, part: ShareOfGroups) -> pa.Table:
    if part.shares == 1 or not images.num_rows:
        return images
    hashes = hash_columns([one_array(images.column(name)) for name in spec.groups])
    return images.take(pa.array(np.flatnonzero(bucket_of(hashes, part.shares) == part.share)))


def _rows_of(spec: DeltaAggregateSpec, side: PinnedSide, version: Version, keys: pa.Table) -> pa.Table:
    """All rows of some groups at a version. Groups with a NULL are not in an index: they take a scan."""
    is_known = have_values(keys, keys.column_names)
    known = keys.filter(pa.array(is_known))
    match = side.match(version, spec.rows, side.schema.arrow)
    found = [match(spec.groups, known, spec.read)[1]] if known.num_rows else []
    unknown = keys.filter(pa.array(~is_known))
    for number, name in enumerate(spec.groups):
        if unknown.column(name).null_count:
            where = [[*parts, (name, "is null", None)] for parts in spec.rows or ((),)]
            rows = side.scan(version, spec.read, where)
            # those whose first NULL among the group columns is in this one, so that none comes twice
            found.append(rows.filter(pa.array(have_values(rows, spec.groups[:number]))))
    return pa.concat_tables(found) if found else side.schema.arrow.empty_table().select(list(spec.read))


def _spec(options: Any) -> DeltaAggregateSpec:
    return DeltaAggregateSpec.from_json(parse(FORMAT, OPTIONS, options)["spec"])
