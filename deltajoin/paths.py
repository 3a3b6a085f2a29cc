"""Paths in words: what the changes of each table look up, in turn, and what stands in the way (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from deltajoin.lookup_order import TableFacts, delta_of, moving_order
from deltajoin.plans import (
    Attach,
    Delta,
    InnerDelta,
    InnerLookup,
    LeafLookup,
    Lookup,
    OuterDelta,
    OuterLookup,
    WhereDelta,
    WhereLookup,
)
from deltajoin.tree import Node
from deltajoin.unreachable import NoLookupError, Unreachable


@dataclass(frozen=True)
class Step:
    """One lookup of a path: of which table, by which columns and index, how many rows for each it expects."""

    table: int
    name: str
    by: tuple[str, ...]
    index: str
    rows: float

    def __str__(self) -> str:
        by = ", ".join(self.by)
        return f"t{self.table} {self.name} by ({by}) with {self.index}, ~{self.rows:g} rows a key"


@dataclass(frozen=True)
class Path:
    """What changes of one table look up, in turn."""

    table: int
    name: str
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return " → ".join((f"changes of t{self.table} {self.name}", *map(str, self.steps)))


def paths_of(tree: Node, facts: TableFacts) -> tuple[Path, ...]:
    """The path of each table, in the order in which the tables move: see `moving_order`.

    Raises:
        SchemaError: a path needs a lookup that no index serves; the message names the INDEX to add.
    """
    return tuple(
        Path(table, facts.name(table), tuple(_steps(delta_of(tree, table, facts), facts)))
        for table in moving_order(tree)
    )


def unreachable(tree: Node, facts: TableFacts) -> tuple[Unreachable, ...]:
    """What stands in the way of each path, at most one for each; none when the join is eligible."""
    found: dict[tuple[int, tuple[str, ...]], Unreachable] = {}
    for table in moving_order(tree):
        try:
            delta_of(tree, table, facts)
        except NoLookupError as missing:
            found.setdefault((missing.lookup.table, missing.lookup.by), missing.lookup)
    return tuple(found.values())


def _steps(plan: Delta | Lookup | Attach, facts: TableFacts) -> Iterator[Step]:
    """All lookups of a plan, in the order in which they are made."""
    match plan:
        case LeafLookup(table, by, index, rows):
            yield Step(table, facts.name(table), tuple(ref.column for ref in by), index, rows)
        case Attach(lookup):
            yield from _steps(lookup, facts)
        case WhereLookup(child) | WhereDelta(child):
            yield from _steps(child, facts)
        case InnerLookup(_, steps):
            for step in steps:
                yield from _steps(step, facts)
        case OuterLookup(_, start, other):
            yield from _steps(start, facts)
            yield from _steps(other, facts)
        case InnerDelta(child, _, _, steps):
            yield from _steps(child, facts)
            for step in steps:
                yield from _steps(step, facts)
        case OuterDelta(child, other, back=back):
            yield from _steps(child, facts)
            yield from _steps(other, facts)
            if back is not None:
                yield from _steps(back, facts)
