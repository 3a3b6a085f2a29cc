"""Aggregates as nodes of a plan: as the user wrote them, and as upserts of their groups (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from deltajoin.aggregate.spec import Measure as Computation
from deltajoin.expressions import Condition
from planner.delta_join import filters_in_words
from planner.expressions import Aggregation, Column, Expr, ref_field
from planner.sources import ManagedTable

if TYPE_CHECKING:
    from planner.nodes import Output, Plan


class WindowKind(StrEnum):
    """What `window(…)` or `session_window(…)` made a column."""

    TIME = "window"
    SESSION = "session_window"


@dataclass(frozen=True)
class GroupBy:
    """One expression of a GROUP BY; `window` where it is a window of time."""

    value: Expr
    window: WindowKind | None = None

    def __str__(self) -> str:
        return str(self.value) if self.window is None else f"{self.window} {self.value}"


@dataclass(frozen=True)
class Aggregate:
    """An aggregate as the user wrote it; without `groups` it is of all rows."""

    child: Plan
    groups: tuple[GroupBy, ...]
    outputs: tuple[Output, ...]
    ref: int | None = ref_field()

    @property
    def columns(self) -> tuple[Column, ...]:
        """The computed columns, in order."""
        return tuple(output.column for output in self.outputs)

    def __str__(self) -> str:
        outputs = ", ".join(map(str, self.outputs))
        return f"Aggregate by ({', '.join(map(str, self.groups))}) [{outputs}]"


@dataclass(frozen=True)
class Group:
    """A GROUP BY expression, and the column of the input that holds it."""

    by: GroupBy
    column: Column

    def __str__(self) -> str:
        return f"{self.by} in {self.column}"


@dataclass(frozen=True)
class Measure:
    """An aggregate function, and the columns of the input that hold its values and its condition."""

    function: Aggregation
    values: tuple[Column, ...]
    condition: Column | None = None

    def __str__(self) -> str:
        where = "" if self.condition is None else f" where {self.condition}"
        return f"{self.function.name}({', '.join(map(str, self.values))}){where}"


@dataclass(frozen=True)
class Computed:
    """An aggregate function, how it is computed from a table's rows, and the column that holds the result."""

    function: Aggregation
    by: Computation
    column: Column

    def __str__(self) -> str:
        return f"{self.function} in {self.column}"


@dataclass(frozen=True)
class LookupAggregate:
    """Leaf: the changes of an aggregate of one table, whose groups are computed anew from their rows.

    Attributes:
        table: what is read.
        groups: a column of the table for each GROUP BY expression.
        keys: names of these columns.
        index: by what the rows of a group are found.
        measures: what is computed.
        where: which rows count; None for all.
        outputs: the columns of the user's aggregate.
        row_kind: the kind of each change.
    """

    table: ManagedTable
    groups: tuple[Group, ...]
    keys: tuple[str, ...]
    index: str
    measures: tuple[Computed, ...]
    where: Condition | None
    outputs: tuple[Output, ...]
    row_kind: Column

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the user's aggregate, and the kind."""
        return (*(output.column for output in self.outputs), self.row_kind)

    def __str__(self) -> str:
        conditions = (filters_in_words(self.table.where), "" if self.where is None else str(self.where))
        where = "".join(f" where {condition}" for condition in conditions if condition)
        outputs = ", ".join(map(str, self.outputs))
        by = f"({', '.join(self.keys)}) by {self.index}"
        return f"LookupAggregate {self.table.name} {by}{where} [{outputs}, {self.row_kind}]"


@dataclass(frozen=True)
class SignedAggregate:
    """Upserts of groups: of each that changes its new row, `+U`, or `-D` where no row of it is left.

    The input has nothing but the columns that groups and measures name, and the kind. An aggregate of all
    rows has one group, which is never deleted.
    """

    child: Plan
    groups: tuple[Group, ...]
    measures: tuple[Measure, ...]
    outputs: tuple[Output, ...]
    row_kind: Column

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the user's aggregate, and the kind."""
        return (*(output.column for output in self.outputs), self.row_kind)

    def __str__(self) -> str:
        groups, measures, outputs = (
            ", ".join(map(str, part)) for part in (self.groups, self.measures, self.outputs)
        )
        return f"SignedAggregate by ({groups}) of ({measures}) [{outputs}, {self.row_kind}]"
