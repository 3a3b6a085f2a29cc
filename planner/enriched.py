"""A stream that looks its rows up in a managed table, as a node of a plan (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.delta_join import filters_in_words, typed
from planner.expressions import Column, ref_field
from planner.sources import ManagedTable

if TYPE_CHECKING:
    from planner.nodes import Plan


@dataclass(frozen=True)
class TableRows:
    """What a query that reads rows of a managed table reads: the newest ones, or those of one snapshot."""

    table: ManagedTable
    snapshot: int | None = None

    def __str__(self) -> str:
        pinned = "" if self.snapshot is None else f" at snapshot {self.snapshot}"
        where = filters_in_words(self.table.where)
        return f"table {self.table.name}{pinned}{f' where {where}' if where else ''}"


@dataclass(frozen=True)
class Enriched:
    """The rows of a stream with the rows of a table that match them when they are processed.

    Attributes:
        child: the stream; its rows are only added.
        rows: the table.
        added: the table's columns, under the ids that they have in the query.
        keys: pairs of a column of the stream and the name of the table's column that must equal it.
        how: "inner" or "left".
        ref: never set: a rule makes such a node.
    """

    child: Plan
    rows: TableRows
    added: tuple[Column, ...]
    keys: tuple[tuple[Column, str], ...]
    how: str
    ref: int | None = ref_field()

    @property
    def columns(self) -> tuple[Column, ...]:
        """The stream's, then the table's."""
        return (*self.child.columns, *self.added)

    def __str__(self) -> str:
        on = ", ".join(f"{column} = {name}" for column, name in self.keys)
        return f"Enriched {self.how} by {self.rows} {typed(self.added)} on ({on})"
