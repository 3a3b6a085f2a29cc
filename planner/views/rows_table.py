"""How the rows of a view, or of a part of its query, are refreshed; and tables of the rows of such parts.

What is above reads such a table as it reads any: some of its rows by an index, its changes, or all of it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame

from planner.plan.expressions import Column
from planner.plan.nodes import Plan
from planner.spark.template import Template
from planner.views.drawing import Part, once
from planner.views.inputs import Input, Planning
from planner.views.kept_table import (
    KeptTable,
    bag_schema,
    meaning_of,
    most_rows,
    named_tables,
)
from planner.views.moves import Bases, Move, Versions
from planner.views.stages import Folders, Tables, meant
from upsert.codec import Jsonable
from upsert.store.metadata.stands_for import Costs, Refresh
from upsert.store.read.snapshot import Snapshot
from upsert.views.refresh import Computed, PlanOutgrownError

FROM_HIDDEN: Final = "computed from its hidden tables"
"""Why all rows of a view are computed: what they are of is kept."""


class Followed(NamedTuple):
    """How the changes of some rows follow from those of tables.

    Attributes:
        bases: the tables.
        still: folders of those whose changes are not followed: if one changes, all rows are computed.
        template: what gives the changes.
        is_unique: whether the view's key is proven, so that changes need not be compared with its rows.
    """

    bases: Bases
    still: Folders
    template: Template[Input]
    is_unique: bool = True


@dataclass(frozen=True, eq=False)
class KeptRows:
    """How the rows of a view, or of a hidden table, are refreshed: made once, run at any versions of tables.

    Attributes:
        planning: of the view.
        followed: how the changes of the rows follow from those of what is read; None where all are computed.
        rest: what gives all rows.
        part: how the rows are computed, and from which hidden tables.
        why_rest: why all are computed, where they are.
        is_incremental: whether anything but all rows of what is read is read.
        is_lasting: whether it holds for other versions than those of the query that it was made of.
        below: the hidden tables that are read, those first over which others are.
        small: uuids of the small tables that the query joins without equality.
        name: of the hidden table that holds changes of the tables until they have been read; "" for the view.
    """

    planning: Planning
    followed: Followed | None
    rest: Template[Input]
    part: Part
    _: KW_ONLY
    why_rest: str = ""
    is_incremental: bool = True
    is_lasting: bool = True
    below: tuple[Sequence[KeptTable], ...] = ()
    small: frozenset[str] = frozenset()
    name: str = ""

    @property
    def is_unique(self) -> bool:
        """Whether the view's key is proven, so that changes need not be compared with its rows."""
        return self.followed is None or self.followed.is_unique

    @property
    def hidden(self) -> frozenset[str]:
        """Names of the hidden tables that are read."""
        return self.part.hidden

    def at(self, known: Versions, versions: Versions, costs: Costs) -> Computed:
        """What makes the rows those of other versions: changes with their kinds, or all rows.

        Args:
            known: data version of each table that the rows are of, by the table's uuid; none of one that is
                being created.
            versions: those to come.
            costs: what earlier refreshes took.

        Raises:
            CommitConflictError: another process brings the hidden tables to other versions at this moment.
        """
        for tables in self.below:
            were = {one.uuid: one.known_at(known) for one in tables}
            are = {one.uuid: one.at(versions) for one in tables}
            known = {**known, **{uuid: version for uuid, version in were.items() if version is not None}}
            versions = {**versions, **are}
        if self.followed is None:
            return self._all_rows(versions, self.why_rest, costs)
        bases, still, template, is_unique = self.followed
        move = self.planning.move(bases, known, versions, costs, self.name, still)
        if move.step is None:
            return Computed(self.planning.computed(self.rest, move), move.refresh, are_all=True)
        found = self.planning.computed(template, move)
        if is_unique or isinstance(found, pa.Table):
            return Computed(found, move.refresh, are_all=False)
        return self._all_rows(versions, "many rows have changed, and the view's key is not proven", costs)

    def _all_rows(self, versions: Versions, reason: str, costs: Costs) -> Computed:
        refresh = Refresh.now(reason == FROM_HIDDEN, reason, 0, 0, costs)
        return Computed(self.planning.computed(self.rest, Move(versions, refresh)), refresh, are_all=True)

    def over(self, tables: Collection[KeptTable]) -> KeptRows:
        """The same of a query in which hidden tables stand for some parts, which are brought along first."""
        part = self.part.over(once(one.part for one in tables))
        return replace(self, part=part, is_incremental=True, below=(tuple(tables), *self.below))


@dataclass(frozen=True)
class Line(Jsonable):
    """Up to where the rows of an order are kept.

    Attributes:
        key: that of the last ones, as text; None for all rows.
        least: how many there must be.
        most: how many there may be.
    """

    key: str | None
    least: int
    most: int

    def fits(self, rows: Snapshot) -> bool:
        """Whether a table has neither too few rows nor too many."""
        names = rows.layout.schema.names[:1]
        return rows.row_count <= self.most and self.least <= rows.scan(names).num_rows <= self.most


@dataclass(frozen=True, eq=False, kw_only=True)
class RowsTable(KeptTable):
    """A hidden table that is refreshed as a view is: by changes of its rows, or all of them.

    Attributes:
        kept: how.
        moved: by what it is moved, in words.
        shown: what is computed, as text.
        line: up to where it has the rows of an order; None if it has all of them.
        where: which of its rows are read: all.
    """

    kept: KeptRows
    moved: str
    shown: str = ""
    line: Line | None = None
    where: ClassVar[None] = None

    @property
    def compared(self) -> tuple[str, ...]:
        """The columns of its first index: its rows come and go, and do not change."""
        return self.by

    @property
    def part(self) -> Part:
        """What it is, and what moves it."""
        below, notes = self.kept.part, (f"by changes: {self.moved}",)
        return Part(self.name, self.title, notes, self.shown, below.inputs, below.reads)

    def at(self, versions: Versions) -> int:
        """As of a `KeptTable`.

        Raises:
            PlanOutgrownError: it has too few rows of an order, or too many.
        """
        found = self.brought(versions, lambda known, costs: self.kept.at(known, versions, costs))
        if self.line is not None and not self.line.fits(self.opened().snapshot(found)):
            raise PlanOutgrownError
        return found


def rows_table(
    planning: Planning,
    plan: Plan,
    tables: Tables,
    rows: DataFrame,
    kept: KeptRows,
    indexes: Sequence[Sequence[str]],
    columns: Sequence[Column],
) -> RowsTable:
    """The table of a plan, which may not be there yet: its rows with their names, and how they are kept.

    The first columns are those of the plan that are given.
    """
    schema = bag_schema(rows.schema, indexes)
    meaning = meaning_of(planning.catalyst, plan, meant(plan), tables, str(schema.to_json()))
    return RowsTable(
        planning=planning,
        path=planning.folder_of(f"{meaning}-input", most_rows(tables)),
        schema=schema,
        columns=columns,
        tables=tables,
        kept=kept,
        moved=f"its rows moved by a step of {named_tables(tables)}",
        shown=meant(plan),
    )
