"""The rows of a part of a query as a hidden table, moved by the changes of the tables that it reads.

What is above reads it as it reads any table: some of its rows by an index, its changes, or all of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from pyspark.sql import DataFrame

from planner.plan.expressions import Column
from planner.plan.nodes import Plan
from planner.views.drawing import Part
from planner.views.inputs import Planning
from planner.views.kept_table import (
    KeptTable,
    bag_schema,
    meaning_of,
    most_rows,
    named_tables,
    names_of,
)
from planner.views.moves import Versions
from planner.views.stages import Tables, meant
from upsert.codec import Jsonable
from upsert.store.metadata.stands_for import Costs
from upsert.store.read.snapshot import Snapshot
from upsert.views.refresh import Computed, PlanOutgrownError


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


class KeptRows(Protocol):
    """How the rows of a part of a query are kept."""

    @property
    def part(self) -> Part:
        """The hidden tables that they are computed from."""

    def at(self, known: Versions, versions: Versions, costs: Costs) -> Computed:
        """What makes the rows those of other versions of the base tables."""


class RowsTable(KeptTable):
    """The table of the rows of one plan.

    Attributes:
        by: the columns of its first index; () for none.
        where: which of its rows are read: all.
    """

    where: Final = None

    def __init__(
        self,
        planning: Planning,
        plan: Plan,
        tables: Tables,
        rows: DataFrame,
        kept: KeptRows,
        indexes: Sequence[Sequence[str]],
        columns: Sequence[Column],
        name: str | None = None,
        line: Line | None = None,
    ) -> None:
        """Of a plan, its rows with their names, and how they are kept; the table may not be there yet.

        Its columns have the names that the DataFrame gives; the first ones are those of the plan that are
        given. With a line it is of other rows than the plan, and has a name of its own.
        """
        comment = None if line is None else json.dumps(line.to_json())
        schema = replace(bag_schema(rows.schema, indexes), comment=comment)
        self._line = line
        self._plan = plan
        self._kept = kept
        self.by = tuple(indexes[0]) if indexes else ()
        if name is None:
            meaning = str(schema.to_json())
            name = f"{meaning_of(planning.catalyst, plan, meant(plan), tables, meaning)}-input"
        path = planning.folder_of(name, most_rows(tables) if line is None else line.most)
        super().__init__(planning, path, schema, columns, tables)

    @property
    def compared(self) -> tuple[str, ...]:
        """The columns of its first index: its rows come and go, and do not change."""
        return self.by

    @property
    def part(self) -> Part:
        """What it is, and what moves it."""
        which = "its rows" if self._line is None else "the first rows of an order,"
        moved = f"by changes: {which} moved by a step of {named_tables(self.tables)}"
        below = self._kept.part
        reads = below.reads | names_of(self.tables)
        return Part(self.name, self.title, (moved,), meant(self._plan), below.inputs, reads)

    def at(self, versions: Versions) -> int:
        """As of a `KeptTable`.

        Raises:
            PlanOutgrownError: it has too few rows of an order, or too many.
        """
        table, found = self.brought(versions, lambda known, costs: self._kept.at(known, versions, costs))
        if self._line is not None and not self._line.fits(table.snapshot(found)):
            raise PlanOutgrownError
        return found
