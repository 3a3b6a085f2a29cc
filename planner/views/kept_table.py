"""Hidden tables: each has what a part of a view's query gives, as of versions of the tables that this reads.

Each commit of one says which versions of which tables it stands for, so a step that is repeated after a crash
finds its versions there. They lie in the folder of the view, and their names say what they mean:

    KeptTable                                   what all have in common
    ├─ RowsTable                                refreshed as a view is: by changes of its rows, or all of them
    │  │    MEANING-input                       the rows of a part, with the indexes that are needed
    │  │    MEANING-top-LINE                    the first rows of an order
    │  │    MEANING-rows-INDEXES                the results of a stage
    │  └─ StageTable, MEANING                   the sums of an aggregate
    └─ PartitionTable, MEANING-partitions       what partitions and groups give that are computed again
"""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as t

from planner.plan.expressions import Aggregation, Call, Column, walk_expression
from planner.plan.nodes import Opaque, Output, Plan, Project, Relation, TableRows
from planner.plan.sources import ManagedTable
from planner.plan.trees import expressions, walk
from planner.spark.catalyst import Catalyst, JavaObject
from planner.views.drawing import Part, keys_of, named
from planner.views.inputs import Planning
from planner.views.moves import Bases, Versions, bases_of
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
from upsert.views.progress import known_versions, uuids_of
from upsert.views.refresh import Computed, are_few, tried

COLUMN: Final = "column_"
"""What the names of the columns of such a table begin with; their numbers follow."""

_ROWS_OF_BUCKET: Final = 10_000_000
"""A hidden table has a bucket for so many rows: each one costs a commit files of its own."""

_IDS: Final = -2_120_000_000
"""Ids for the columns of a plan that is only looked at, below all that rules draw."""


@dataclass(frozen=True, eq=False, kw_only=True)
class KeptTable(ABC):
    """A hidden table in place of a part of a view's plan, which may not be there yet.

    Attributes:
        planning: of the view.
        path: its folder.
        schema: its columns, of which the first ones are most often those of the part.
        columns: those of the part, in the plan.
        tables: what its rows are of, at the versions at which the plan reads it.
        options: those that other such tables have not.
        row_count: about how many rows it will have, if that is known.
        kind: what EXPLAIN calls it.
    """

    planning: Planning
    path: str
    schema: TableSchema
    columns: Sequence[Column]
    tables: Tables
    options: Mapping[str, str] = field(default_factory=dict)
    row_count: int | None = None
    kind: ClassVar[str] = "table"

    @cached_property
    def bases(self) -> Bases:
        """Folders of the tables that its rows are of, by their uuids."""
        return bases_of(self.tables)

    @property
    def by(self) -> tuple[str, ...]:
        """The columns of its first index; () for none."""
        return self.schema.indexes[0].columns if self.schema.indexes else ()

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

    @property
    def name(self) -> str:
        """That of its folder."""
        return os.path.basename(self.path)

    @property
    def title(self) -> str:
        """Its name, its keys, and its rows as far as they are known."""
        keys, rows = keys_of(self.schema), self.planning.rows_in_words(self.path)
        return f"{self.kind} {self.name}{f' ({keys})' if keys else ''}, {rows}"

    @property
    def planned(self) -> Project:
        """The part as what is read of the table, for a plan that is only looked at."""
        read = ManagedTable(self.name, self.path, self.schema, _buckets_for(self.tables), rows=self.row_count)
        return _read_of(read, self.columns)

    def node(self, versions: Versions) -> Relation:
        """The part as what is read of the table at some versions of the base tables.

        It is brought there, unless the view is only explained.

        Raises:
            CommitConflictError: another process has brought it further.
        """
        catalyst, table = self.planning.catalyst, self.opened()
        is_explained = self.planning.view.scratch is not None
        version = table.snapshot().info.data_version if is_explained else self.at(versions)
        read = catalyst.analyzed(self.read(version))
        return relation(catalyst, self.columns, read, f"{self.kind} {self.name}")

    def read(self, version: int) -> DataFrame:
        """The rows of the part, and maybe more columns after its own, in a snapshot of the table."""
        return frames.read(self.planning.catalyst.session, self.path, version)

    @property
    def is_there(self) -> bool:
        """Whether an earlier plan has made the table."""
        return self.planning.has(self.path)

    @property
    def uuid(self) -> str:
        """The table's, once it is there."""
        return Table.open(self.path).uuid

    def opened(self) -> Table:
        """The table, made if this is the first time."""
        with suppress(TableNotFoundError):
            return Table.open(self.path)
        options = {"bucket": str(_buckets_for(self.tables)), **self.options}
        return Table.create(self.path, self.schema, options, if_not_exists=True)

    def known_at(self, versions: Versions) -> int | None:
        """The snapshot that stands for some versions of the base tables, if there is one."""
        if not self.bases.keys() <= versions.keys():
            return None
        return self._snapshot_of(self.opened(), {uuid: versions[uuid] for uuid in self.bases})

    def brought(self, versions: Versions, rows: Callable[[Versions, Costs], Computed]) -> int:
        """The table's snapshot that stands for some versions of the base tables.

        Args:
            versions: of these and maybe other tables.
            rows: what brings it there from the versions that it stands for, by what earlier refreshes took.

        Raises:
            CommitConflictError: another process has brought it further.
            Exception: what the computation raises, with a note that names the table.
        """
        table, target = self.opened(), {uuid: versions[uuid] for uuid in self.bases}
        if (found := self._snapshot_of(table, target)) is not None:
            return found
        head = table.snapshot()
        known = known_versions(head.info, self._named_bases)
        if any(known.get(uuid, 0) > version for uuid, version in target.items()):
            raise CommitConflictError(
                f"hidden table {table.name!r} must be at the versions {target} or earlier ones, it is at "
                f"{dict(known)}: another process has refreshed the view; refresh it again"
            )
        try:
            tried(
                Costs.after(head.info.refresh, head.info.time_ms),
                lambda costs: self._commit(table, head, target, rows(known, costs)),
            )
        except Exception as error:  # each error says where it happened
            shown = "EXPLAIN MATERIALIZED VIEW shows it"
            error.add_note(f"while hidden table {table.name!r} was computed; {shown}")
            raise
        found = self._snapshot_of(table, target)
        assert found is not None  # the commit says so, or has raised
        return found

    @property
    def _named_bases(self) -> Mapping[str, tuple[str, str]]:
        """Folder and uuid of each base table, by its uuid."""
        return {uuid: (path, uuid) for uuid, path in self.bases.items()}

    def _commit(self, table: Table, head: Snapshot, target: Versions, computed: Computed) -> None:
        """Let the table stand for versions of others by what was computed of the state that it is in."""
        uuids = uuids_of(target, self._named_bases)
        stands_for = StandsFor(target, head.info.data_version, computed.refresh, uuids)
        changes, is_replaced = computed.rows, computed.are_all and bool(head.info.base_versions)
        if is_replaced and isinstance(changes, pa.Table) and _is_compared(head):
            changes = signed_rows(
                table.layout, head.scan(), collected(changes), f"hidden table {table.name!r}"
            )
            is_replaced = False
        frames.commit(changes, table.path, stands_for, overwrite=is_replaced)

    def _snapshot_of(self, table: Table, versions: Versions) -> int | None:
        """The newest snapshot that stands for these versions."""
        for info in table.published.backwards():
            known = info.base_versions or {}
            # a refresh that failed may have left it ahead of the view, and a base table come back older since
            if known == versions == known_versions(info, self._named_bases):
                return info.data_version
            if any(known.get(uuid, 0) < version for uuid, version in versions.items()):
                return None  # no table goes back
        return None


def _is_compared(rows: Snapshot) -> bool:
    """Whether all rows of a table are compared with those that come, so that only what differs is committed.

    What is above follows from the changes of the table, which are all of its rows where these are replaced.
    """
    return are_few(rows) and not rows.layout.merge.needs_present_rows


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
    said = (
        replace(one, comment=None, default=None, nullable=one.may_be_null, had_nulls=False) for one in read
    )
    return json.dumps([one.to_json() for one in said], sort_keys=True)


def relation(catalyst: Catalyst, columns: Sequence[Column], made: JavaObject, name: str) -> Relation:
    """Columns of a plan as a leaf: the first ones that another plan gives, under their own ids."""
    given = catalyst.output(made)[: len(columns)]
    named = [catalyst.alias(one, column.name, column.id) for one, column in zip(given, columns, strict=True)]
    return Relation(name, tuple(columns), ref=catalyst.keep(catalyst.project(named, made)))


def bag_schema(rows: t.StructType, indexes: Sequence[Sequence[str]]) -> TableSchema:
    """The schema of a table of such rows without a key."""
    never_null = [field.name for field in rows if not field.nullable]
    columns = columns_of(rows, never_null)
    return TableSchema(columns, (), indexes=tuple(Index.over(list(names)) for names in indexes))


def columns_of(rows: t.StructType, never_null: Collection[str]) -> tuple[TableColumn, ...]:
    """The columns of a table of such rows, of which some are never NULL."""
    return tuple(
        TableColumn(one.name, stored_type(one, "a stage"), one.name not in never_null) for one in rows
    )


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


def _buckets_for(tables: Tables) -> int:
    """How many buckets a hidden table of some tables has: as many as these, fewer if they are small.

    >>> import pyarrow as pa
    >>> schema = TableSchema.of({"id": pa.int64()}, primary_key=["id"])
    >>> sales = ManagedTable("sales", "/sales", schema, buckets=8, rows=1_000_000)
    >>> _buckets_for(((sales, 1),)), _buckets_for(((replace(sales, rows=25_000_000), 1),))
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
