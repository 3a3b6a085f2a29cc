"""Stages at work: hidden tables with the sums of a query's aggregates, moved by the changes of its tables.

A stage's table has a row for each group that there has been: its key, and its sums, which the merge engine
``aggregation`` adds up. Each of its commits says which versions of which tables the sums are of, so a step
that is repeated after a crash finds its versions there, and a step that cannot be read is replaced by
computing all sums again. A group without rows stays in the table with a count of 0, and in no result.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as t

from planner.plan.expressions import walk_expression
from planner.plan.nodes import Relation
from planner.plan.trees import expressions, transform_down, walk
from planner.settings import Settings
from planner.spark.build import SumsOf, build_plan
from planner.spark.catalyst import Catalyst
from planner.spark.read import read_plan
from planner.spark.step import as_step
from planner.views.stages import Stage, Tables, changes_of, stages_of, why_not
from upsert.errors import (
    CommitConflictError,
    ConfigurationError,
    SnapshotExpiredError,
    TableNotFoundError,
    UntrackedChangesError,
)
from upsert.managed import frames
from upsert.managed.step import Step
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.schema import Column as TableColumn
from upsert.schema import TableSchema
from upsert.spark_table import stored_type
from upsert.store.commit.append import StandsFor
from upsert.store.read.steps import touched_rows
from upsert.store.table import Table
from upsert.store.version import Version
from upsert.views.refresh import ViewState, consumer_of

FOLDER: Final = "stages"
"""Folder of a view's stages, in that of its table."""

REBUILD_SHARE: Final = 0.3
"""A step that touches more than this share of the tables' rows costs more than all sums computed again."""

_GROUP: Final = "group_"
_IS_NULL: Final = "is_null_"
_ALL: Final = "all_rows"

_DEFAULTS: Final[Mapping[type[t.DataType], object]] = {
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


def kept(df: DataFrame, view: ViewState, settings: Settings) -> DataFrame:
    """What a refresh of a view computes: changes with their kinds, or all rows, of stages where it can be.

    Args:
        df: the view's query over managed tables at stated snapshots.
        view: where the view is.
        settings: of the planner.

    Raises:
        ConfigurationError: the view must be refreshed by what has changed, and cannot.
        CommitConflictError: another process brings the stages to other versions at this moment.
    """
    catalyst = Catalyst(df)
    joined = catalyst.dataframe(catalyst.without_subqueries(catalyst.analyzed(df)))
    plan = read_plan(catalyst, joined)
    consumer = consumer_of(Table.open(view.folder).uuid)
    if (changes := changes_of(plan, settings)) is not None:
        step = step_of(changes.tables, view.versions, consumer)
        return df if step is None else as_step(catalyst, build_plan(catalyst, changes.plan, settings), step)
    found = {}
    for stage in stages_of(plan, settings):
        table = _StageTable.of(catalyst, stage, settings, view.folder, consumer)
        if table is not None:
            found[id(stage.node)] = table.node()
    if not found and view.must_be_incremental:
        raise ConfigurationError(
            f"view {os.path.basename(view.folder)!r}: option 'refresh' = 'incremental' must be possible, got "
            f"a query of which {why_not(plan, settings)}; or leave the option out"
        )
    if not found:
        return df
    return build_plan(catalyst, transform_down(plan, lambda node: found.get(id(node), node)), settings)


def step_of(tables: Tables, known: Mapping[str, int], consumer: str) -> Step | None:
    """The step from known versions to those of a query, held until it has been made.

    None if a table is new to it, or its changes cannot be read, or are too many; then the tables are held at
    the query's versions, from which the next step begins.
    """
    step = Step({Table.open(read.path).uuid: (0, version) for read, version in tables})
    if step.versions.keys() <= known.keys():
        step = Step({uuid: (known[uuid], version) for uuid, (_, version) in step.versions.items()})
        if _is_small(tables, step) and _is_held(tables, step, consumer, 0):
            return step
    _is_held(tables, step, consumer, 1)
    return None


def _is_small(tables: Tables, step: Step) -> bool:
    """Whether the changes of a step can be read, and are worth it."""
    touched = rows = 0
    for read, version in tables:
        table = Table.open(read.path)
        start, end = map(Version.complete, step.versions[table.uuid])
        try:
            if table.advance(start, until=version) != end:
                return False  # an overwrite lies between them
            touched += touched_rows(table.pinned(), start, end)
        except (SnapshotExpiredError, UntrackedChangesError):
            return False
        rows += table.snapshot(version).row_count
    return touched <= rows * REBUILD_SHARE


def _is_held(tables: Tables, step: Step, consumer: str, end: int) -> bool:
    """Hold all tables where a step begins (0) or ends (1); False if one has expired there."""
    for read, _ in tables:
        table = Table.open(read.path)
        version = Version.complete(step.versions[table.uuid][end])
        try:
            if version != Version.EMPTY:
                table.hold(consumer, version)
        except SnapshotExpiredError:
            return False
        except PermissionError:
            continue  # a table of others: if its changes expire, the sums are computed again
    return True


class _StageTable:
    """The table of one stage."""

    def __init__(
        self,
        catalyst: Catalyst,
        stage: Stage,
        settings: Settings,
        sums: SumsOf,
        rows: DataFrame,
        path: str,
        consumer: str,
    ) -> None:
        self.catalyst = catalyst
        self.stage = stage
        self.settings = settings
        self.sums = sums
        self.groups = _groups(sums, rows)
        self.rows = rows.withColumn(ROW_KIND_COLUMN, F.lit(RowKind.INSERT.value))
        self.versions = {Table.open(read.path).uuid: snapshot for read, snapshot in stage.tables}
        self.path = path
        self.consumer = consumer

    @classmethod
    def of(
        cls, catalyst: Catalyst, stage: Stage, settings: Settings, folder: str, consumer: str
    ) -> _StageTable | None:
        """The table of a stage, which may not exist yet; None where its groups cannot be a key."""
        rows = build_plan(catalyst, stage.rows, settings)
        sums = SumsOf(stage.changes)
        groups = _groups(sums, rows)
        if not all(_can_be_key(field.dataType) for field in groups):
            return None
        bases = [Table.open(read.path) for read, _ in stage.tables]
        schemas = (json.dumps(base.schema.to_json(), sort_keys=True) for base in bases)
        uuids = (base.uuid for base in bases)
        name = stage.name_with(*_in_sql(catalyst, stage), *uuids, *schemas, *sums.kept, groups.json())
        path = os.path.join(folder, FOLDER, name)
        return cls(catalyst, stage, settings, sums, rows, path, f"{consumer}-{name}")

    def node(self) -> Relation:
        """The aggregate, read from its stage at the query's versions."""
        table, snapshot = self._current()
        spark = self.catalyst.session
        kept = frames.read(spark, table.path, snapshot)
        names = (self._group(number, field.name) for number, field in enumerate(self.groups))
        groups = kept.select(*names, *self.sums.kept.values())
        rows = self.catalyst.dataframe(self.sums.results(self.catalyst, groups))
        there = rows.where(F.col(ROW_KIND_COLUMN) != RowKind.DELETE.value)
        columns = tuple(output.column for output in self.stage.changes.outputs)
        made = self.catalyst.analyzed(there)
        own = self.catalyst.output(made)[: len(columns)]
        return Relation("stage", columns, ref=self.catalyst.keep(self.catalyst.project(own, made)))

    def _current(self) -> tuple[Table, int]:
        """The table, and its snapshot that stands for the query's versions."""
        table = self._opened()
        if (found := self._snapshot(table)) is not None:
            return table, found
        head = table.snapshot().info
        known = head.base_versions or {}
        if any(known.get(uuid, 0) > version for uuid, version in self.versions.items()):
            raise CommitConflictError(
                f"stage {table.path!r} must be at the versions {self.versions} or earlier ones, it is at "
                f"{dict(known)}: another process has refreshed the view; refresh it again"
            )
        step = step_of(self.stage.tables, known, self.consumer)
        stands_for = {"stands-for": json.dumps(StandsFor(self.versions, head.data_version).to_json())}
        if step is not None:
            frames.write(self._keyed(self._changes(step)), table.path, stands_for)
        else:
            frames.write(self._keyed(self.rows), table.path, stands_for, overwrite=bool(known))
        found = self._snapshot(table)
        assert found is not None  # the commit says so, or has raised
        return table, found

    def _opened(self) -> Table:
        """The table, made if this is the first time."""
        try:
            return Table.open(self.path)
        except TableNotFoundError:
            pass
        keyed = self._keyed(self.rows).schema
        key = tuple(name for name in keyed.names if name not in self.sums.kept.values())
        columns = (
            TableColumn(field.name, stored_type(field, "a stage"), field.name not in key) for field in keyed
        )
        buckets = max(read.buckets for read, _ in self.stage.tables)
        options = {"bucket": str(buckets), "merge-engine": "aggregation"}
        options |= {f"fields.{name}.aggregate-function": "sum" for name in self.sums.kept.values()}
        return Table.create(self.path, TableSchema(tuple(columns), key), options, if_not_exists=True)

    def _changes(self, step: Step) -> DataFrame:
        """What a step changes of them."""
        return as_step(
            self.catalyst, build_plan(self.catalyst, self.stage.changes.child, self.settings), step
        )

    def _keyed(self, rows: DataFrame) -> DataFrame:
        """The sums of some rows by group, as the table has them."""
        key = [F.lit(0).alias(_ALL)] if not self.groups.fields else []
        for number, field in enumerate(self.groups):
            value = F.col(field.name)
            default = F.lit(_DEFAULTS[type(field.dataType)]).cast(field.dataType)
            key.append(F.coalesce(value, default).alias(f"{_GROUP}{number}"))
            key.append(value.isNull().alias(f"{_IS_NULL}{number}"))
        return self.sums.by_group(rows).select(*key, *self.sums.kept.values())

    def _group(self, number: int, name: str) -> Column:
        """The column of a group, made of those of the table."""
        value, is_null = F.col(f"{_GROUP}{number}"), F.col(f"{_IS_NULL}{number}")
        return F.when(~is_null, value).alias(name)

    def _snapshot(self, table: Table) -> int | None:
        """The newest snapshot that stands for the query's versions."""
        for info in reversed(table.history()):
            if dict(info.base_versions or {}) == self.versions:
                return info.data_version
        return None


def _groups(sums: SumsOf, rows: DataFrame) -> t.StructType:
    """The columns of a group among those of the rows that go into the sums."""
    return t.StructType([rows.schema[name] for name in sums.groups])


def _in_sql(catalyst: Catalyst, stage: Stage) -> Iterator[str]:
    """All expressions of a stage in SQL, which says more than the planner reads of them."""
    for node in walk(stage.node):
        for expr in expressions(node):
            for part in walk_expression(expr):
                if part.ref is not None:
                    yield catalyst.text(catalyst.kept(part.ref))


def _can_be_key(type_: t.DataType) -> bool:
    """Whether the values of a type are told apart by a key as GROUP BY tells them apart."""
    if isinstance(type_, t.StringType) and type_.simpleString() != "string":
        return False  # a collation calls other texts equal than a key does
    return type(type_) in _DEFAULTS
