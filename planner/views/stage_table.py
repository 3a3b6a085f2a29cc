"""Stages at work: hidden tables with the sums of a query's aggregates, moved by the changes of its tables.

A stage's table has a row for each group that there has been: its key, and its sums, which the merge engine
``aggregation`` adds up. Each of its commits says which versions of which tables the sums are of, so a step
that is repeated after a crash finds its versions there, and a step that cannot be read is replaced by
computing all sums again. A group without rows stays in the table with a count of 0, and in no result.

What the aggregate gives may be a table of its own, for plans that join it or aggregate it again. Its rows are
made of those of the stage: a step of the stage is a step of this table. A plan reads it as it reads any
table: by its key, by indexes, and by its changes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as t
from pyspark.sql.types import StructField, StructType

from planner.plan.nodes import Plan, Relation
from planner.spark.build import SumsOf
from planner.spark.catalyst import JavaObject
from planner.spark.template import Template
from planner.views.drawing import Part, keys_of
from planner.views.inputs import Input, Planning
from planner.views.kept_table import (
    COLUMN,
    KeptTable,
    brought,
    buckets_for,
    meaning_of,
    most_rows,
    names_of,
    relation,
    snapshot_of,
    step_in_words,
)
from planner.views.moves import Move, Versions, bases_of
from planner.views.stages import Stage, looked_up, shown
from upsert.errors import TableNotFoundError
from upsert.managed import frames
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.schema import Column as TableColumn
from upsert.schema import Index, TableSchema
from upsert.spark.columns import spark_schema, stored_type
from upsert.store.metadata.stands_for import Costs
from upsert.store.table import Table
from upsert.types import is_scalar
from upsert.views.refresh import Computed, are_few

_GROUP: Final = "group_"
IS_NULL: Final = "is_null_"
"""What the names of columns begin with that say whether a value is NULL."""

_ALL: Final = "all_rows"

DEFAULTS: Final[Mapping[type[t.DataType], object]] = {
    t.BooleanType: False,
    t.ByteType: 0,
    t.ShortType: 0,
    t.IntegerType: 0,
    t.LongType: 0,
    t.DecimalType: 0,
    t.StringType: "",
    t.BinaryType: b"",
    t.DateType: "1970-01-01",
    t.TimestampType: "1970-01-01 00:00:00",
    t.TimestampNTZType: "1970-01-01 00:00:00",
}
"""Types that a group can have as a key, and what stands for NULL in a column that must have a value."""


class StageTable:
    """The table of one stage."""

    def __init__(
        self, planning: Planning, stage: Stage, sums: SumsOf, rows: DataFrame, path: str, consumer: str
    ) -> None:
        """Use ``of``."""
        self.path = path
        self.catalyst = planning.catalyst
        self._planning = planning
        self._consumer = consumer
        self.stage = stage
        self._sums = sums
        self._groups = _groups(sums, rows)
        self.bases = bases_of(stage.tables)
        all_rows = self._keyed(rows.withColumn(ROW_KIND_COLUMN, F.lit(RowKind.INSERT.value)))
        self._schema = self._table_schema(all_rows.schema)
        self._rows = planning.template(all_rows)
        self._changes = planning.template(self._keyed(planning.built(stage.changes.child)))

    @classmethod
    def of(cls, planning: Planning, stage: Stage) -> StageTable | None:
        """The table of a stage, which may not exist yet; None where its groups cannot be a key."""
        rows = planning.built(stage.rows)
        sums = SumsOf(stage.changes)
        groups = _groups(sums, rows)
        if not all(_can_be_key(field.dataType) for field in groups):
            return None
        more = *sums.kept, groups.json()
        name = meaning_of(planning.catalyst, stage.node, stage.text, stage.tables, *more)
        path = planning.folder_of(name, most_rows(stage.tables))
        return cls(planning, stage, sums, rows, path, f"{planning.consumer}-{name}")

    @property
    def group_outputs(self) -> tuple[int, ...]:
        """Where the groups are among the outputs of the stage, each once; () if it is of all rows."""
        values = [output.value for output in self.stage.changes.outputs]
        return tuple(dict.fromkeys(values.index(group.by.value) for group in self.stage.changes.groups))

    @property
    def part(self) -> Part:
        """What it is, and what moves it."""
        rows = self._planning.rows_in_words(self.path, "groups")
        title = f"stage {self.name}, one row"
        if self._groups.fields:
            title = f"stage {self.name} ({keys_of(self._schema)}), {rows}"
        moved = f"by changes: its sums are moved by {step_in_words(self.stage.tables, self.stage.still)}"
        reads = names_of(self.stage.tables)
        return Part(self.name, title, (moved,), shown(self.stage.changes), reads=reads)

    @property
    def name(self) -> str:
        """That of its folder."""
        return os.path.basename(self.path)

    @property
    def columns(self) -> t.StructType:
        """Those of the table."""
        return spark_schema(self._schema, row_kind=False)

    def results(self, kept: DataFrame) -> DataFrame:
        """The aggregate's columns and their kind, made of rows of the table."""
        fields = enumerate(self._groups)
        values = (_value(field.dataType, str(number)).alias(field.name) for number, field in fields)
        groups = kept.select(*values, *self._sums.kept.values())
        return self.catalyst.dataframe(self._sums.results(self.catalyst, groups))

    def changed_results(self, changes: DataFrame) -> DataFrame:
        """The same of the table's changes, for each group that has changed.

        A group that no row is left of stays, with sums of nothing, until all sums are computed again.
        """
        kind, count = F.col(ROW_KIND_COLUMN), self._sums.count
        left = F.when(kind == RowKind.DELETE.value, F.lit(0).cast("bigint")).otherwise(F.col(count))
        after = changes.where(kind != RowKind.UPDATE_BEFORE.value).withColumn(count, left)
        return self.results(after)

    def at(self, versions: Versions) -> tuple[Table, int]:
        """The table, and its snapshot that stands for some versions of the base tables: brought there.

        Raises:
            CommitConflictError: another process has brought it further.
        """
        target = {uuid: versions[uuid] for uuid in self.bases}

        def rows(known: Versions, costs: Costs) -> Computed:
            move = self._planning.move(self.bases, known, target, costs, self._consumer, self.stage.still)
            template = self._rows if move.step is None else self._changes
            return Computed(self._planning.computed(template, move), move.refresh, are_all=move.step is None)

        return brought(self.opened(), target, rows)

    def relation(self, made: JavaObject) -> Relation:
        """The aggregate in a plan as a leaf: the first columns of a plan, under its own ids."""
        return relation(self.catalyst, self.stage.columns, made, f"stage {self.name}")

    @property
    def row_count(self) -> int:
        """How many groups there are; 0 before the first time, if that is to come."""
        return self._planning.rows_in(self.path)

    def opened(self) -> Table:
        """The table, made if this is the first time."""
        try:
            return Table.open(self.path)
        except TableNotFoundError:
            buckets = buckets_for(self.stage.tables)
            options = {"bucket": str(buckets), "merge-engine": "aggregation"}
            sums = self._sums.kept.values()
            options |= {f"fields.{name}.aggregate-function": "sum" for name in sums}
            return Table.create(self.path, self._schema, options, if_not_exists=True)

    def _table_schema(self, rows: t.StructType) -> TableSchema:
        """The table's columns: a key of the groups, and the sums."""
        key = tuple(name for name in rows.names if name not in self._sums.kept.values())
        columns = (
            TableColumn(field.name, stored_type(field, "a stage"), field.name not in key) for field in rows
        )
        return TableSchema(tuple(columns), key)

    def _keyed(self, rows: DataFrame) -> DataFrame:
        """The sums of some rows by group, as the table has them."""
        key = [F.lit(0).alias(_ALL)] if not self._groups.fields else []
        for number, field in enumerate(self._groups):
            key += key_of(F.col(field.name), field.dataType, _GROUP, str(number))
        return self._sums.by_group(rows).select(*key, *self._sums.kept.values())


class StageRows:
    """A stage where a query reads it; see `Input`.

    Attributes:
        node: the aggregate, made of the rows of the stage.
        leaf: what stands for these rows in it.
        schema: their columns.
    """

    def __init__(self, table: StageTable) -> None:
        """One place of a stage."""
        catalyst, self._table, self.schema = table.catalyst, table, table.columns
        kept = catalyst.session.createDataFrame([], self.schema)
        self.leaf = catalyst.analyzed(kept)
        there = table.results(kept).where(F.col(ROW_KIND_COLUMN) != RowKind.DELETE.value)
        self.node = table.relation(catalyst.analyzed(there))

    @property
    def meaning(self) -> Hashable:
        """The stage."""
        return self._table.path

    def rows(self, move: Move) -> pa.Table | None:
        """The rows at the versions that a refresh goes to, if they are few."""
        table, snapshot = self._table.at(move.versions)
        found = table.snapshot(snapshot)
        return found.scan(self.schema.names) if are_few(found) else None

    def frame(self, move: Move) -> DataFrame:
        """The same, read by Spark."""
        table, snapshot = self._table.at(move.versions)
        return frames.read(self._table.catalyst.session, table.path, snapshot)


def key_of(value: Column, type_: t.DataType, kind: str, number: str) -> list[Column]:
    """The columns of a key for a value that may be NULL, or for those of a struct: none of them is NULL.

    Args:
        value: of a type for which `can_be_key` holds.
        type_: that type.
        kind: what begins the names of the columns for values.
        number: what ends all of their names.
    """
    is_null = value.isNull().alias(f"{IS_NULL}{number}")
    if isinstance(type_, t.StructType):
        fields = ((value.getField(one.name), one.dataType) for one in type_.fields)
        inner = (key_of(*one, kind, f"{number}_{place}") for place, one in enumerate(fields))
        return [*(column for columns in inner for column in columns), is_null]
    default = F.lit(DEFAULTS[type(type_)]).cast(type_)
    return [F.coalesce(value, default).alias(f"{kind}{number}"), is_null]


def _value(type_: t.DataType, number: str) -> Column:
    """The value of a group, made of the columns of its key."""
    value = (
        F.col(f"{_GROUP}{number}")
        if not isinstance(type_, t.StructType)
        else F.struct(
            *(
                _value(one.dataType, f"{number}_{place}").alias(one.name)
                for place, one in enumerate(type_.fields)
            )
        )
    )
    return F.when(~F.col(f"{IS_NULL}{number}"), value)


def _groups(sums: SumsOf, rows: DataFrame) -> t.StructType:
    """The columns of a group among those of the rows that go into the sums."""
    return t.StructType([rows.schema[name] for name in sums.groups])


def _can_be_key(type_: t.DataType) -> bool:
    """Whether the values of a type are told apart by a key as GROUP BY tells them apart."""
    if isinstance(type_, t.StructType):
        return bool(type_.fields) and all(_can_be_key(field.dataType) for field in type_.fields)
    if isinstance(type_, t.StringType) and type_.simpleString() != "string":
        return False  # a collation calls other texts equal than a key does
    return type(type_) in DEFAULTS


_KEY: Final = "key_"


class ResultTable(KeptTable):
    """The rows of one aggregate where a plan reads them."""

    def __init__(self, planning: Planning, stage: StageTable, plan: Plan) -> None:
        """Of a stage in a plan; the table itself may not be there yet."""
        self._stage = stage
        self._groups = stage.group_outputs
        sums, columns, rows = stage.opened(), stage.stage.columns, stage.row_count
        self._all_rows = self._made(stage.results(frames.read(planning.catalyst.session, sums.path, 0)))
        schema = self._schema_of(self._all_rows, looked_up(plan, columns))
        path = planning.folder_of(f"{stage.name}-rows-{_short(schema)}", rows)
        buckets, tables = sums.options.bucket, stage.stage.tables
        super().__init__(planning, path, schema, columns, tables, buckets=buckets, rows=rows)

    @cached_property
    def _rows(self) -> Template[Input]:
        """All rows of the table; made, as the changes are, when it is wanted: one of them often is not."""
        return self._planning.template(self._all_rows.where(F.col(ROW_KIND_COLUMN) != RowKind.DELETE.value))

    @cached_property
    def _changes(self) -> Template[Input]:
        """The changes of the table, made of those of the stage."""
        session, sums = self._planning.catalyst.session, self._stage.opened()
        changed = frames.read_changes(session, sums.path, scan_source="files")
        return self._planning.template(self._made(self._stage.changed_results(changed)))

    @property
    def part(self) -> Part:
        """What it is, and what moves it."""
        return Part(self.name, self.title, ("by changes: the results of its stage",), "", (self._stage.part,))

    def at(self, versions: Versions) -> int:
        """As of a `KeptTable`."""

        def rows(known: Versions, costs: Costs) -> Computed:
            sums, to = self._stage.at(versions)
            since = snapshot_of(sums, known) if known else None
            begin = {} if since is None else {sums.uuid: since}
            move = self._planning.move({sums.uuid: sums.path}, begin, {sums.uuid: to}, costs)
            template = self._rows if move.step is None else self._changes
            return Computed(self._planning.computed(template, move), move.refresh, are_all=move.step is None)

        return self.brought(versions, rows)[1]

    def _made(self, results: DataFrame) -> DataFrame:
        """The table's rows and their kind, of results of the stage."""
        names = [f"{COLUMN}{number}" for number in range(len(results.columns) - 1)]
        numbered = results.toDF(*names, ROW_KIND_COLUMN)
        return numbered.select(*names, *self._keys(numbered), ROW_KIND_COLUMN)

    def _keys(self, rows: DataFrame) -> list[Column]:
        """Columns for the key where groups may be NULL, or are of several fields, which no key may be."""
        found = []
        for number in self._groups:
            field = rows.schema[number]
            if not _is_key(field):
                found += key_of(F.col(field.name), field.dataType, _KEY, str(number))
        return found

    def _schema_of(self, rows: DataFrame, indexes: Sequence[tuple[int, ...]]) -> TableSchema:
        fields = [field for field in rows.schema if field.name != ROW_KIND_COLUMN]
        key = []
        for number in self._groups:
            whole = f"{COLUMN}{number}"
            made = (f"{_KEY}{number}", f"{IS_NULL}{number}")
            parts = [
                name
                for name in rows.columns
                if name in made or name.startswith(tuple(f"{one}_" for one in made))
            ]
            key += [whole] if _is_key(rows.schema[whole]) else parts
        columns = (
            TableColumn(field.name, stored_type(field, "a stage"), field.name not in key) for field in fields
        )
        types = tuple(columns)
        scalars = {column.name for column in types if is_scalar(column.type)}
        by = ([f"{COLUMN}{number}" for number in numbers] for numbers in indexes)
        found = ([name for name in names if name in scalars] for names in by)  # no index is over a struct
        kept = dict.fromkeys(Index.over(names) for names in found if names)
        return TableSchema(types, tuple(key), indexes=tuple(kept))


def _is_key(field: StructField) -> bool:
    return not field.nullable and not isinstance(field.dataType, StructType)


def _short(schema: TableSchema) -> str:
    """What tells tables of one stage apart that are looked up by other columns."""
    return hashlib.sha256(json.dumps(schema.to_json(), sort_keys=True).encode()).hexdigest()[:8]
