"""What window functions and groups give as a hidden table, kept partition by partition.

A partition of which a row has changed is computed again from all of its rows, and compared with what it
gave before. Its rows come from a managed table with an index by which they are found: the query's own table
if that has one, else a hidden table of them, with a hash of what tells partitions apart.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as t

from deltajoin.filters import Filters
from planner.plan.expressions import Column
from planner.plan.nodes import Aggregate, Relation
from planner.plan.trees import transform_down
from planner.spark.catalyst import Catalyst
from planner.spark.template import Template
from planner.views.drawing import Part
from planner.views.inputs import Input, Planning
from planner.views.kept_table import (
    COLUMN,
    KeptTable,
    bag_schema,
    can_keep,
    meaning_of,
    most_rows,
    relation,
)
from planner.views.moves import Move, Versions
from planner.views.partitions import Partitions, relation_below
from planner.views.rows_table import KeptRows, RowsTable, rows_table
from planner.views.stages import meant
from upsert.managed import frames
from upsert.schema import TableSchema
from upsert.spark.batches import collected, table_for_spark
from upsert.spark.columns import spark_schema
from upsert.store.metadata.stands_for import Costs
from upsert.store.predicate import where_to_json
from upsert.store.read.snapshot import Snapshot
from upsert.store.table import Table
from upsert.store.version import Version
from upsert.views.difference import difference, signed_rows
from upsert.views.refresh import FEW_BYTES, FEW_ROWS, Computed, are_few

PARTITION: Final = "partition"
"""The column with the hash by which the rows of a partition are found; others may have the same."""

MOST_TOLD: Final = 100_000
"""So many touched partitions are found by the driver, and told to Spark; more are found by Spark's tasks."""

READ_ROWS: Final = 200_000
"""So many changed rows are read at a time to find them, and no more than `FEW_BYTES`."""

_KEY: Final = "key_"

_NO_HASH: Final = ("collate", "map<", "variant")
"""Parts of the names of types whose equal values may have other hashes, or have none.

Of a text with a collation, which may be equal to others, the key of its collation is hashed instead.
"""

_COLLATED: Final = -2_060_000_000
"""Ids for such keys, below those that other parts of the planner draw."""


@dataclass(frozen=True)
class OwnRows:
    """The rows of one of the query's own tables, which has an index for its partitions.

    Attributes:
        path: the table's folder.
        uuid: the table.
        relation: where the query reads it.
        columns: those that are needed of it.
        by: the names of those by which partitions are found.
        where: which rows the query reads; None for all.
    """

    path: str
    uuid: str
    relation: Relation
    columns: tuple[Column, ...]
    by: tuple[str, ...]
    where: Filters | None

    @classmethod
    def of(cls, part: Partitions) -> OwnRows | None:
        """Those of the table that a part reads alone, if that has an index."""
        found = relation_below(part.child)
        if found is None or found.rows is None:
            return None
        names = {column.id: column.name for column in found.columns}
        if not all(isinstance(key, Column) and key.id in names for key in part.keys):
            return None
        by = tuple(names[key.id] for key in part.keys if isinstance(key, Column))
        table = Table.open(found.rows.table.path)
        is_exact = all(
            not table.schema.column(name).may_be_null
            and not pa.types.is_floating(table.schema.column(name).type)
            for name in by
        )
        if not is_exact or table.layout.best_index(by) is None:
            return None
        columns = tuple(column for column in found.columns if column.id in part.ids)
        return cls(table.path, table.uuid, found, columns, by, found.rows.table.where)

    @property
    def schema(self) -> TableSchema:
        """The table's columns."""
        return Table.open(self.path).schema

    @property
    def names(self) -> list[str]:
        """The columns that are read."""
        return [column.name for column in self.columns]

    @property
    def compared(self) -> tuple[str, ...]:
        """The columns of which a change touches a partition, and those by which that is found.

        In a table without a primary key rows come and go, and do not change.
        """
        is_counted = Table.open(self.path).layout.is_counted
        return self.by if is_counted else tuple(dict.fromkeys((*self.by, *self.names)))

    def opened(self) -> Table:
        """The table."""
        return Table.open(self.path)

    def at(self, versions: Versions) -> int:
        """What is asked for."""
        return versions[self.uuid]

    def known_at(self, versions: Versions) -> int | None:
        """What is asked for."""
        return versions.get(self.uuid)


class TouchedRows:
    """The rows of some partitions, or of all, where a plan reads them; see `planner.views.inputs.Input`."""

    def __init__(
        self,
        catalyst: Catalyst,
        source: OwnRows | RowsTable,
        names: Sequence[str],
        where: Filters | None = None,
    ) -> None:
        """Of columns of some rows of a table, which may not be there yet."""
        self._where = where
        self._catalyst = catalyst
        self._names = list(names)
        self._by = source.by
        self._path = source.path
        whole = spark_schema(source.schema, row_kind=False)
        self.schema = t.StructType([whole[name] for name in names])
        self.leaf = catalyst.analyzed(catalyst.session.createDataFrame([], self.schema))

    @property
    def meaning(self) -> Hashable:
        """The table, and what is read of it."""
        return self._path, tuple(self._names), repr(self._where)

    def rows(self, move: Move) -> pa.Table | None:
        """Its rows, read in this process; None if they are many."""
        table = Table.open(self._path)
        snapshot = table.snapshot(move.versions[table.uuid])
        return few(snapshot, self._by, move.partitions, self._names, self._where)

    def frame(self, move: Move) -> DataFrame:
        """Its rows, read by Spark."""
        version = move.versions[Table.open(self._path).uuid]
        rows = many(self._catalyst, self._path, version, self._by, move.partitions, self._where)
        return rows.select(*self._names)


def few(
    snapshot: Snapshot,
    by: Sequence[str],
    keys: pa.Table | DataFrame | None,
    names: Sequence[str],
    where: Filters | None = None,
) -> pa.Table | None:
    """The rows of some keys, or of all; None if they are many."""
    if keys is None:
        return snapshot.scan(names, where) if are_few(snapshot) else None
    if isinstance(keys, DataFrame):
        return None
    rows = keys.num_rows * max(1.0, snapshot.rows_per_key(by))
    if rows > FEW_ROWS or rows * snapshot.bytes_in_memory > FEW_BYTES * max(1, snapshot.row_count):
        return None
    return snapshot.match_few(by, keys.rename_columns(list(by)), FEW_ROWS, select=names, where=where)


def many(
    catalyst: Catalyst,
    path: str,
    version: int,
    by: Sequence[str],
    keys: pa.Table | DataFrame | None,
    where: Filters | None = None,
) -> DataFrame:
    """The same, read by Spark."""
    options = {} if where is None else {"scan.where": where_to_json(where)}
    rows = frames.read(catalyst.session, path, version, options=options)
    if keys is None:
        return rows
    if isinstance(keys, pa.Table):
        keys = catalyst.session.createDataFrame(table_for_spark(keys))
    return rows.join(keys.toDF(*by), list(by), "left_semi")


def touched_by(
    source: OwnRows | RowsTable, since: int, until: int, session: SparkSession, *, is_small: bool = False
) -> pa.Table | DataFrame:
    """What tells those partitions apart of which rows have changed between two snapshots of their rows.

    In Arrow if they are few; more are left to Spark's tasks. Only the changes of a step that ``is_small`` are
    all in memory at once.
    """
    by = list(source.by)
    found: pa.Table | None = None
    for changed in _changes(source, since, until, is_small=is_small):
        keys = changed.group_by(by).aggregate([])
        found = keys if found is None else pa.concat_tables([found, keys]).group_by(by).aggregate([])
        if found.num_rows > MOST_TOLD:
            options = {} if source.where is None else {"scan.where": where_to_json(source.where)}
            rows = frames.changes_between(session, source.path, since, until, options, source.compared)
            return rows.select(*by).distinct()
    if found is None:
        found = pa.schema([source.schema.arrow.field(name) for name in by]).empty_table()
    return found


def _changes(source: OwnRows | RowsTable, since: int, until: int, *, is_small: bool) -> Iterator[pa.Table]:
    """By what the partitions of changed rows are told apart, some changes at a time."""
    table, end = source.opened(), Version.complete(until)
    reached = Version.complete(since) if since == until else Version(since, until, (0, 0))
    rows, size = (None, None) if is_small else (READ_ROWS, FEW_BYTES)
    while reached != end:
        start = reached
        reached = table.advance(start, max_rows=rows, max_bytes=size, until=until, where=source.where)
        changed = table.changes_between(start, reached, columns=source.compared, where=source.where)
        yield changed.select(list(source.by))


@dataclass(frozen=True, eq=False, kw_only=True)
class PartitionTable(KeptTable):
    """The table of what one part of a query gives, partition by partition.

    Attributes:
        partitions: the part.
        source: where the rows of a partition are found.
        template: what gives the part for the rows of some partitions, or of all.
    """

    partitions: Partitions
    source: OwnRows | RowsTable
    template: Template[Input]

    @property
    def part(self) -> Part:
        """What it is, and what moves it."""
        what = "groups" if isinstance(self.partitions.node, Aggregate) else "partitions"
        kept = f"by {what}: those with changed rows are computed again, all others stay"
        found = f"the rows of a {what[:-1]} are looked up in {os.path.basename(self.source.path)}"
        inputs = () if isinstance(self.source, OwnRows) else (self.source.part,)
        reads = frozenset((os.path.basename(self.source.path),)) if not inputs else frozenset[str]()
        return Part(self.name, self.title, (kept, found), meant(self.partitions.top), inputs, reads)

    def at(self, versions: Versions) -> int:
        """As of a `KeptTable`."""
        own = self.opened()

        def rows(known: Versions, costs: Costs) -> Computed:
            source, to = self.source.opened(), self.source.at(versions)
            since = self.source.known_at(known)
            begin = {} if since is None else {source.uuid: since}
            bases, end = {source.uuid: source.path}, {source.uuid: to}
            move = self.planning.move(bases, begin, end, costs, self.name)
            if move.step is None or since is None:
                return Computed(self.planning.computed(self.template, move), move.refresh, are_all=True)
            session = self.planning.catalyst.session
            keys = touched_by(self.source, since, to, session, is_small=move.is_small)
            if isinstance(keys, DataFrame):  # to be joined with the rows of now and of before
                done.callback(keys.persist().unpersist)
            touched = replace(move, partitions=keys)
            return Computed(self._differing(own, touched), move.refresh, are_all=False)

        with ExitStack() as done:
            return self.brought(versions, rows)

    def _differing(self, own: Table, move: Move) -> DataFrame | pa.Table:
        """What makes the rows of some partitions those of a version, with kinds."""
        keys = move.partitions
        head, names = own.snapshot(), own.schema.names
        if isinstance(keys, pa.Table) and not keys.num_rows:
            return pa.table({})  # to be said all the same: the rows are those of other versions now
        new = self.planning.computed(self.template, move)
        if isinstance(new, pa.Table):
            old = few(head, self.by, keys, names)
            if old is not None:
                return signed_rows(own.layout, old, collected(new), f"hidden table {own.name!r}")
            new = self.planning.catalyst.session.createDataFrame(new.combine_chunks())
        version = head.info.data_version
        before = many(self.planning.catalyst, self.path, version, self.by, keys)
        return difference(before.select(*names), new, ())


def partition_table(
    planning: Planning,
    part: Partitions,
    keep: Callable[[DataFrame], KeptRows],
    indexes: Sequence[Sequence[int]],
) -> PartitionTable | None:
    """The table of a part, which may not be there yet; None if its values cannot be kept.

    Args:
        planning: of the view.
        part: the part.
        keep: finds out how the rows of a query are kept.
        indexes: by which columns of the part, by their numbers, rows are looked up.
    """
    catalyst, looked_up = planning.catalyst, [[f"{COLUMN}{number}" for number in one] for one in indexes]
    source = OwnRows.of(part) or _hidden_rows(planning, part, keep)
    if source is None:
        return None
    if isinstance(source, OwnRows):
        touched = TouchedRows(catalyst, source, source.names, source.where)
        leaf = relation(catalyst, source.columns, touched.leaf, "partitions")
        known = {id(source.relation): leaf}
        child = transform_down(part.child, lambda node: known.get(id(node), node))
        made = _named(planning.built(part.over(child)), part)
    else:
        names = [f"{COLUMN}{number}" for number in range(len(part.needed))]
        touched = TouchedRows(catalyst, source, names)
        leaf = relation(catalyst, part.needed, touched.leaf, "partitions")
        made = _hashed(catalyst, _named(planning.built(part.over(leaf)), part))
    if not can_keep(made.schema, looked_up):
        return None
    by = [name for name in made.columns if not name.startswith(COLUMN)]
    schema = bag_schema(made.schema, [by, *looked_up])
    meaning = meaning_of(catalyst, part.top, meant(part.top), part.tables, str(schema.to_json()))
    return PartitionTable(
        planning=planning,
        path=planning.folder_of(f"{meaning}-partitions", most_rows(part.tables)),
        schema=schema,
        columns=part.top.columns,
        tables=part.tables,
        partitions=part,
        source=source,
        template=planning.template(made, touched),
    )


def _hidden_rows(
    planning: Planning, part: Partitions, keep: Callable[[DataFrame], KeptRows]
) -> RowsTable | None:
    """The rows of a part's partitions as a table of their own; None if it cannot have them."""
    names = [f"{COLUMN}{number}" for number in range(len(part.needed))]
    keys = [f"{_KEY}{number}" for number in range(len(part.keys))]
    rows = planning.built(part.rows).toDF(*names, *keys)
    if not all(_can_be_hashed(rows.schema[key].dataType) for key in keys):
        return None
    hashed = _hashed(planning.catalyst, rows)
    if not can_keep(hashed.schema, [[PARTITION]]):
        return None
    kept = keep(hashed)
    return rows_table(planning, part.rows, part.tables, hashed, kept, [[PARTITION]], part.needed)


def _named(made: DataFrame, part: Partitions) -> DataFrame:
    columns = [f"{COLUMN}{number}" for number in range(len(part.top.columns))]
    return made.toDF(*columns, *(f"{_KEY}{number}" for number in range(len(part.keys))))


def _can_be_hashed(type_: t.DataType) -> bool:
    """Whether values that tell partitions apart are found by a hash."""
    is_text = isinstance(type_, t.StringType)
    return is_text or not any(word in type_.simpleString() for word in _NO_HASH)


def _hashed(catalyst: Catalyst, rows: DataFrame) -> DataFrame:
    """The rows with a hash in place of the columns that tell partitions apart."""
    keys = [name for name in rows.columns if name.startswith(_KEY)]
    others = [name for name in rows.columns if not name.startswith(_KEY)]
    collated = [name for name in keys if "collate" in rows.schema[name].dataType.simpleString()]
    if collated:
        made = catalyst.analyzed(rows)
        outputs = dict(zip(rows.columns, catalyst.output(made), strict=True))
        for number, name in enumerate(collated):
            key = catalyst.collation_key(outputs[name])
            outputs[name] = catalyst.alias(key, name, _COLLATED - number)
        rows = catalyst.dataframe(catalyst.project([*outputs.values()], made))
    return rows.select(*others, F.xxhash64(*keys).alias(PARTITION))
