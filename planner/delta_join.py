"""The delta join as a leaf of a rewritten plan: its tables, its tree, and how they print (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from deltajoin.expressions import Condition, Ref
from deltajoin.filters import Filters
from deltajoin.tree import Inner, Leaf, Node, On, Outer, Where, visible
from planner.expressions import Column
from planner.sources import ManagedTable

Predicate = tuple[str, str, Any]
"""A filter of the store: column, operator, value."""


def predicates_in_words(predicates: Sequence[Predicate]) -> str:
    """Filters that must all hold, as text.

    >>> predicates_in_words([("a", ">", 3), ("b", "is null", None)])
    'a > 3 and b is null'
    """
    parts = ((column, op, None if value is None else repr(value)) for column, op, value in predicates)
    return " and ".join(" ".join(filter(None, part)) for part in parts)


def filters_in_words(filters: Filters | None) -> str:
    """Alternatives of which one must hold, as text; empty for None."""
    return " or ".join(map(predicates_in_words, filters or ()))


@dataclass(frozen=True)
class JoinTable:
    """One table of a delta join: what is read of it, and which of its rows are left out.

    `compared` are those of the columns that do not come out of the join, at their end.
    """

    table: ManagedTable
    columns: tuple[Column, ...]
    where: tuple[Predicate, ...] = ()
    compared: frozenset[Column] = frozenset()

    @property
    def emitted(self) -> tuple[Column, ...]:
        """The columns that come out of the join."""
        return tuple(column for column in self.columns if column not in self.compared)

    @property
    def filters(self) -> Filters | None:
        """Which rows of the table take part: those that the read asks for, without those left out here."""
        if self.table.where is None:
            return (self.where,) if self.where else None
        return tuple((*parts, *self.where) for parts in self.table.where)

    @property
    def filters_in_words(self) -> str:
        """The same as text; empty for all rows."""
        return filters_in_words(self.filters)

    def __str__(self) -> str:
        compared = tuple(column for column in self.columns if column in self.compared)
        where = self.filters_in_words
        return (
            f"{self.table.name} {typed(self.emitted)}"
            + (f" comparing {typed(compared)}" if compared else "")
            + (f" where {where}" if where else "")
        )


@dataclass(frozen=True)
class DeltaJoin:
    """Leaf: the changes of a tree of joins of managed tables, which are numbered from 0.

    Attributes:
        tables: the tables by number.
        tree: how they are joined.
        present: table and flag: whether a row has a part of the table, for those where that is asked.
        row_kind: the kind of each change.
        keep: which rows come out; None for all.
        is_net: whether no row may come out with both signs; where signs are summed they may.
    """

    tables: tuple[JoinTable, ...]
    tree: Node
    row_kind: Column
    present: tuple[tuple[int, Column], ...] = ()
    keep: Condition | None = None
    is_net: bool = True

    @property
    def columns(self) -> tuple[Column, ...]:
        """Columns of the tables that come out, in their order, the flags, and the kind."""
        numbers = sorted(visible(self.tree))
        of_tables = (column for number in numbers for column in self.tables[number].emitted)
        return (*of_tables, *(flag for _, flag in self.present), self.row_kind)

    @property
    def refs(self) -> dict[int, Ref]:
        """Id of each column that comes out of a table -> the table and the column."""
        return {
            column.id: Ref(number, column.name)
            for number in sorted(visible(self.tree))
            for column in self.tables[number].emitted
        }

    def __str__(self) -> str:
        flags = "".join(f" {flag}" for _, flag in self.present)
        return f"DeltaJoin {self.row_kind}{flags}"

    def lines(self) -> Iterator[str]:
        """The tree, then the tables, as text."""
        keep = "" if self.keep is None else f" keeping {self.keep}"
        yield f"{tree_in_words(self.tree)}{keep}{'' if self.is_net else ' not net'}"
        yield from (f"t{number} {table}" for number, table in enumerate(self.tables))


def typed(columns: Sequence[Column]) -> str:
    """Columns with their types, as text."""
    return f"[{', '.join(f'{column}: {column.type}' for column in columns)}]"


def tree_in_words(node: Node) -> str:
    """A join tree in one line.

    >>> from deltajoin.expressions import Ref
    >>> tree_in_words(Outer("left", Leaf(0), Leaf(1), ((Ref(0, "a"), Ref(1, "b")),)))
    'left(t0, t1: t0.a = t1.b)'
    """
    match node:
        case Leaf(table):
            return f"t{table}"
        case Inner(children, on, where):
            return f"inner({', '.join(map(tree_in_words, children))}{_match(on, where)})"
        case Outer(kind, left, right, on, where):
            return f"{kind}({tree_in_words(left)}, {tree_in_words(right)}{_match(on, where)})"
        case Where(child, condition):
            return f"where({tree_in_words(child)}: {condition})"


def _match(on: On, where: Condition | None) -> str:
    parts = [f"{one} = {other}" for one, other in on] + ([] if where is None else [str(where)])
    return f": {' and '.join(parts)}" if parts else ""
