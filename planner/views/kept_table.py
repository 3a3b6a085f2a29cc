"""Hidden tables that stand for versions of others: brought to the versions that a refresh goes to.

Each commit of one says which versions of which tables it stands for, so a step that is repeated after a crash
finds its versions there.
"""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import pyarrow as pa
from pyspark.sql import types as t

from planner.plan.expressions import Aggregation, Call, Column, walk_expression
from planner.plan.nodes import Opaque, Output, Plan, Project, Relation, TableRows
from planner.plan.sources import ManagedTable
from planner.plan.trees import expressions, walk
from planner.spark.catalyst import Catalyst, JavaObject
from planner.views.drawing import Part, keys_of, named
from planner.views.inputs import Planning
from planner.views.moves import Versions, bases_of
from planner.views.stages import Folders, Tables
from upsert.errors import CommitConflictError, SchemaError, TableNotFoundError
from upsert.managed import frames
from upsert.schema import Column as TableColumn
from upsert.schema import Index, TableSchema
from upsert.spark.batches import collected
from upsert.spark.columns import stored_type
from upsert.store.metadata.stands_for import Costs, StandsFor
from upsert.store.read.snapshot import Snapshot
from upsert.store.table import Table
from upsert.views.difference import signed_rows
from upsert.views.refresh import Computed, are_few, tried

COLUMN: Final = "column_"
"""What the names of the columns of such a table begin with; their numbers follow."""

_ROWS_OF_BUCKET: Final = 10_000_000
"""A hidden table has a bucket for so many rows: each one costs a commit files of its own."""

_IDS: Final = -2_120_000_000
"""Ids for the columns of a plan that is only looked at, below all that rules draw."""


class KeptTable(ABC):
    """A hidden table in place of a part of a view's plan, which may not be there yet.

    Attributes:
        path: its folder.
        schema: its columns, of which the first ones are those of the part.
        tables: what its rows are of, at the versions at which the plan reads it.
        bases: the same tables.
    """

    def __init__(
        self,
        planning: Planning,
        path: str,
        schema: TableSchema,
        columns: Sequence[Column],
        tables: Tables,
        *,
        buckets: int | None = None,
        rows: int | None = None,
    ) -> None:
        """Of a part with such columns, in as many buckets as its tables ask for if that is not said.

        It has about so many ``rows``, if that is known.
        """
        self._planning = planning
        self.path = path
        self.schema = schema
        self._columns = columns
        self._buckets = buckets or buckets_for(tables)
        self.tables = tables
        self.bases = bases_of(tables)
        self._row_count = rows

    @property
    @abstractmethod
    def part(self) -> Part:
        """What it is, and what moves it."""

    @abstractmethod
    def at(self, versions: Versions) -> int:
        """The table's snapshot that stands for some versions of the base tables: brought there.

        Raises:
            CommitConflictError: another process has brought it further.
        """

    def brought(self, versions: Versions, rows: Callable[[Versions, Costs], Computed]) -> tuple[Table, int]:
        """The table and that snapshot, by rows as of the function `brought`."""
        return brought(self.opened(), {uuid: versions[uuid] for uuid in self.bases}, rows)

    @property
    def name(self) -> str:
        """That of its folder."""
        return os.path.basename(self.path)

    @property
    def title(self) -> str:
        """Its name, its keys, and its rows as far as they are known."""
        keys = keys_of(self.schema)
        return f"table {self.name}{f' ({keys})' if keys else ''}, {self._planning.rows_in_words(self.path)}"

    @property
    def planned(self) -> Project:
        """The part as what is read of the table, for a plan that is only looked at."""
        read = ManagedTable(self.name, self.path, self.schema, self._buckets, rows=self._row_count)
        return _read_of(read, self._columns)

    def node(self, versions: Versions) -> Relation:
        """The part as what is read of the table at some versions of the base tables.

        It is brought there, unless the view is only explained.

        Raises:
            CommitConflictError: another process has brought it further.
        """
        catalyst, table = self._planning.catalyst, self.opened()
        is_explained = self._planning.view.scratch is not None
        version = table.snapshot().info.data_version if is_explained else self.at(versions)
        read = frames.read(catalyst.session, self.path, version)
        return relation(catalyst, self._columns, catalyst.analyzed(read), self.name)

    @property
    def is_there(self) -> bool:
        """Whether an earlier plan has made the table."""
        return self._planning.has(self.path)

    @property
    def uuid(self) -> str:
        """The table's, once it is there."""
        return Table.open(self.path).uuid

    def opened(self) -> Table:
        """The table, made if this is the first time."""
        with suppress(TableNotFoundError):
            return Table.open(self.path)
        return Table.create(self.path, self.schema, {"bucket": str(self._buckets)}, if_not_exists=True)

    def known_at(self, versions: Versions) -> int | None:
        """The snapshot that stands for some versions of the base tables, if there is one."""
        if not self.bases.keys() <= versions.keys():
            return None
        return snapshot_of(self.opened(), {uuid: versions[uuid] for uuid in self.bases})


def brought(table: Table, target: Versions, rows: Callable[[Versions, Costs], Computed]) -> tuple[Table, int]:
    """A table that stands for versions of others, and its snapshot that stands for certain ones.

    Args:
        table: the table.
        target: the versions.
        rows: what brings it there from the versions that it stands for, by what earlier refreshes took.

    Raises:
        CommitConflictError: another process has brought it further.
        Exception: what the computation raises, with a note that names the table.
    """
    if (found := snapshot_of(table, target)) is not None:
        return table, found
    rows_before = table.snapshot()
    head = rows_before.info
    known = head.base_versions or {}
    if any(known.get(uuid, 0) > version for uuid, version in target.items()):
        raise CommitConflictError(
            f"stage {table.path!r} must be at the versions {target} or earlier ones, it is at {dict(known)}: "
            "another process has refreshed the view; refresh it again"
        )

    def bring(costs: Costs) -> None:
        computed = rows(known, costs)
        stands_for = StandsFor(target, head.data_version, computed.refresh)
        changes = computed.rows
        is_replaced = computed.are_all and bool(known)
        if is_replaced and isinstance(changes, pa.Table) and _is_compared(rows_before):
            changes = signed_rows(
                table.layout, rows_before.scan(), collected(changes), f"hidden table {table.name!r}"
            )
            is_replaced = False
        frames.commit(changes, table.path, stands_for, overwrite=is_replaced)

    try:
        tried(Costs.after(head.refresh, head.time_ms), bring)
    except Exception as error:  # each error says where it happened
        error.add_note(f"while hidden table {table.name!r} was computed; EXPLAIN MATERIALIZED VIEW shows it")
        raise
    found = snapshot_of(table, target)
    assert found is not None  # the commit says so, or has raised
    return table, found


def _is_compared(rows: Snapshot) -> bool:
    """Whether all rows of a table are compared with those that come, so that only what differs is committed.

    What is above follows from the changes of the table, which are all of its rows where these are replaced.
    """
    return are_few(rows) and not rows.layout.merge.needs_present_rows


def snapshot_of(table: Table, versions: Versions) -> int | None:
    """The newest snapshot that stands for these versions."""
    for info in table.published.backwards():
        known = info.base_versions or {}
        if known == versions:
            return info.data_version
        if any(known.get(uuid, 0) < version for uuid, version in versions.items()):
            return None  # no table goes back
    return None


def meaning_of(catalyst: Catalyst, plan: Plan, text: str, tables: Tables, *more: str) -> str:
    """A name for a plan over tables that is shown as this text, and for nothing that means something else.

    It is the same whatever columns and indexes the tables get that the plan does not read.
    """
    bases = [Table.open(read.path) for read, _ in tables]
    columns = (_columns_read(plan, base) for base in bases)
    parts = text, *_in_sql(catalyst, plan), *(base.uuid for base in bases), *columns, *more
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _columns_read(plan: Plan, base: Table) -> str:
    """What the columns of a table are that a plan reads, as far as their values follow from it."""
    names = {
        column.name
        for leaf in walk(plan)
        if isinstance(leaf, Relation) and leaf.rows is not None and leaf.rows.table.path == base.path
        for column in leaf.columns
    }
    read = (column for column in base.schema.columns if column.name in names)
    return json.dumps([replace(one, comment=None, default=None).to_json() for one in read], sort_keys=True)


def relation(catalyst: Catalyst, columns: Sequence[Column], made: JavaObject, name: str) -> Relation:
    """Columns of a plan as a leaf: the first ones that another plan gives, under their own ids."""
    given = catalyst.output(made)[: len(columns)]
    named = [catalyst.alias(one, column.name, column.id) for one, column in zip(given, columns, strict=True)]
    return Relation(name, tuple(columns), ref=catalyst.keep(catalyst.project(named, made)))


def bag_schema(rows: t.StructType, indexes: Sequence[Sequence[str]]) -> TableSchema:
    """The schema of a table of such rows without a key."""
    columns = (TableColumn(field.name, stored_type(field, "a stage"), field.nullable) for field in rows)
    return TableSchema(tuple(columns), (), indexes=tuple(Index.over(list(names)) for names in indexes))


def can_keep(rows: t.StructType, indexes: Sequence[Sequence[str]]) -> bool:
    """Whether a table can have columns of these types, and be looked up by these."""
    try:
        bag_schema(rows, indexes)
    except SchemaError:
        return False
    return True


def names_of(tables: Tables) -> frozenset[str]:
    """The names of some tables."""
    return frozenset(read.name for read, _ in tables)


def tables_in(plan: Plan) -> frozenset[str]:
    """The names of the tables that a batch query reads itself."""
    leaves = (node.rows for node in walk(plan) if isinstance(node, Relation))
    return frozenset(rows.table.name for rows in leaves if rows is not None)


def named_tables(tables: Tables) -> str:
    """The tables in words."""
    return named(list(names_of(tables)))


def step_in_words(tables: Tables, still: Folders) -> str:
    """From which tables' changes something follows, and of which it does not."""
    step = f"a step of {named_tables(tuple(one for one in tables if one[0].path not in still))}"
    if not still:
        return step
    resting = named_tables(tuple(one for one in tables if one[0].path in still))
    return f"{step}; from all rows if {resting} changes, joined without equality"


def most_rows(tables: Tables) -> int:
    """How many rows the largest of some tables has."""
    return max(read.rows or 0 for read, _ in tables)


def row_count(tables: Tables) -> int:
    """How many rows some tables have together."""
    return sum(read.rows or 0 for read, _ in tables)


def buckets_for(tables: Tables) -> int:
    """How many buckets a hidden table of some tables has: as many as these, fewer if they are small.

    >>> import pyarrow as pa
    >>> schema = TableSchema.of({"id": pa.int64()}, primary_key=["id"])
    >>> sales = ManagedTable("sales", "/sales", schema, buckets=8, rows=1_000_000)
    >>> buckets_for(((sales, 1),)), buckets_for(((replace(sales, rows=25_000_000), 1),))
    (1, 3)
    """
    return min(max(read.buckets for read, _ in tables), most_rows(tables) // _ROWS_OF_BUCKET + 1)


def _in_sql(catalyst: Catalyst, plan: Plan) -> Iterator[str]:
    """All expressions of a plan in SQL, which says more than the planner reads of them, and what it omits."""
    for node in walk(plan):
        for expr in expressions(node):
            for part in walk_expression(expr):
                if part.ref is not None:
                    yield catalyst.text(catalyst.kept(part.ref))
                if isinstance(part, Aggregation | Call) and part.detail:
                    yield str(part.detail)
        if isinstance(node, Opaque) and node.ref is not None:
            for one in catalyst.evaluated(catalyst.kept(node.ref)):
                yield from (catalyst.text(one), catalyst.shown(one))


def _read_of(read: ManagedTable, outputs: Sequence[Column]) -> Project:
    """Columns of a plan as what is read of a table, for a plan that is only looked at."""
    ids = range(_IDS, _IDS - len(outputs), -1)
    columns = tuple(
        replace(column, id=id, name=f"{COLUMN}{number}", ref=None)
        for number, (id, column) in enumerate(zip(ids, outputs, strict=True))
    )
    leaf = Relation("stage", columns, rows=TableRows(read, 1))
    return Project(leaf, tuple(Output(one, by) for one, by in zip(outputs, columns, strict=True)))
