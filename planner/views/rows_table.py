"""The rows of a part of a query as a hidden table, moved by the changes of the tables that it reads.

What is above reads it as it reads any table: some of its rows by an index, its changes, or all of it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame

from planner.plan.expressions import Column
from planner.plan.nodes import Plan, Project, Relation
from planner.plan.sources import ManagedTable
from planner.views.inputs import Planning
from planner.views.kept_table import (
    FOLDER,
    bag_schema,
    brought,
    indented,
    meaning_of,
    meant,
    read_of,
    relation,
    snapshot_of,
)
from planner.views.moves import Versions, bases_of
from planner.views.stages import Tables
from upsert.managed import frames
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.store.table import Table
from upsert.views.refresh import Kept


class RowsTable:
    """The table of the rows of one plan.

    Attributes:
        path: its folder.
        by: the columns of its first index; () for none.
        bases: the tables that its rows are of.
        schema: its columns, under the names that the DataFrame gives.
    """

    def __init__(
        self,
        planning: Planning,
        plan: Plan,
        tables: Tables,
        rows: DataFrame,
        kept: Kept,
        indexes: Sequence[Sequence[str]],
        columns: Sequence[Column],
    ) -> None:
        """Of a plan, its rows with their names, and how they are kept; the table may not be there yet.

        The first columns of the table are those of the plan that are given.
        """
        self._planning = planning
        self._columns = columns
        self.bases = bases_of(tables)
        self.schema = bag_schema(rows.schema, indexes)
        self._tables = tables
        self._plan = plan
        self._kept = kept
        self.by = tuple(indexes[0]) if indexes else ()
        self._buckets = max(read.buckets for read, _ in tables)
        meaning = str(self.schema.to_json())
        name = meaning_of(planning.catalyst, plan, meant(plan), tables, meaning)
        self.path = os.path.join(planning.view.folder, FOLDER, f"{name}-input")

    @property
    def planned(self) -> Project:
        """The rows as what is read of the table, for a plan that is only looked at."""
        read = ManagedTable(os.path.basename(self.path), self.path, self.schema, self._buckets)
        return read_of(read, self._columns)

    def node(self, versions: Versions) -> Relation:
        """The rows as what is read of the table, which is brought to some versions of the base tables.

        Raises:
            CommitConflictError: another process has brought it further.
        """
        catalyst = self._planning.catalyst
        read = frames.read(catalyst.session, self.path, self.at(versions))
        return relation(catalyst, self._columns, catalyst.analyzed(read), "rows")

    @property
    def uuid(self) -> str:
        """The table's, once it is there."""
        return Table.open(self.path).uuid

    @property
    def explanation(self) -> str:
        """What is kept, and what moves it, line by line."""
        tables = ", ".join(sorted(read.name for read, _ in self._tables))
        indexes = ", ".join(f"INDEX ({', '.join(index.columns)})" for index in self.schema.indexes)
        name = os.path.basename(self.path) + (f" ({indexes})" if indexes else "")
        kept = f"table {name}: rows moved by a step of {tables}"
        return f"{kept}\n{indented(meant(self._plan))}"

    def opened(self) -> Table:
        """The table, made if this is the first time."""
        options = {"bucket": str(self._buckets)}
        return Table.create(self.path, self.schema, options, if_not_exists=True)

    def at(self, versions: Versions) -> int:
        """The table's snapshot that stands for some versions of the base tables: brought there.

        Raises:
            CommitConflictError: another process has brought it further.
        """

        def rows(known: Versions) -> tuple[DataFrame | pa.Table, bool]:
            found = self._kept.at(known, versions)
            names = found.column_names if isinstance(found, pa.Table) else found.columns
            return found, ROW_KIND_COLUMN not in names

        _, found = brought(self.opened(), {uuid: versions[uuid] for uuid in self.bases}, rows)
        return found

    def known_at(self, versions: Versions) -> int | None:
        """The snapshot that stands for some versions of the base tables, if there is one."""
        target = {uuid: versions[uuid] for uuid in self.bases if uuid in versions}
        return snapshot_of(self.opened(), target) if len(target) == len(self.bases) else None
