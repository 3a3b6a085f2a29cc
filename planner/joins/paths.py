"""Which tables the changes of each table look up, in which order and by which index (pure).

`deltajoin.core.plans` decides that, from the indexes of the tables and what their store knows of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from deltajoin.core.plans import Path, UnreachableLookup, paths_of, unreachable_lookups
from deltajoin.tree import Node, flattened
from planner.plan.nodes import DeltaJoin
from planner.plan.sources import ManagedTable, index_within
from planner.refusals import Refused


@dataclass(frozen=True)
class Facts:
    """What is known of the tables of a join when it is planned; indexes that are `assumed` are not there."""

    tables: Sequence[ManagedTable]
    selected: Sequence[tuple[str, ...]]
    assumed: frozenset[tuple[int, tuple[str, ...]]] = frozenset()

    def name(self, table: int) -> str:
        """Its name."""
        return self.tables[table].name

    def index_for(self, table: int, columns: Sequence[str]) -> str | None:
        """What serves a lookup by these columns."""
        found = index_within(self.tables[table].schema, set(columns))
        return "INDEX" if found is None and (table, tuple(columns)) in self.assumed else found

    def rows_per_key(self, table: int, columns: Sequence[str]) -> float:
        """How many rows a lookup is expected to bring for one value of these columns: 1 if unknown."""
        index = self.index_for(table, columns)
        return 1.0 if index is None else self.tables[table].rows_per_key.get(index, 1.0)

    def select(self, table: int) -> tuple[str, ...]:
        """Columns that are read of it."""
        return self.selected[table]


def lookup_paths(join: DeltaJoin) -> tuple[Path, ...]:
    """For each table of a join, in the order in which the tables move, what its changes look up."""
    selected = [tuple(column.name for column in one.columns) for one in join.tables]
    return paths_of(flattened(join.tree), Facts([one.table for one in join.tables], selected))


def lacking_indexes(tree: Node, tables: Sequence[ManagedTable]) -> Iterator[Refused]:
    """What stands in the way of the lookups of a join: one refusal for each index that lacks."""
    selected = [tuple(column.name for column in table.schema.columns) for table in tables]
    assumed: frozenset[tuple[int, tuple[str, ...]]] = frozenset()
    # a path tells the first index that it lacks; with that one it would tell the next
    while found := unreachable_lookups(flattened(tree), Facts(tables, selected, assumed)):
        for lookup in found:
            yield _lacking(lookup)
        if not all(lookup.by for lookup in found):
            return
        assumed |= {(lookup.table, lookup.by) for lookup in found}


def _lacking(lookup: UnreachableLookup) -> Refused:
    columns = ", ".join(lookup.by)
    if not columns:
        return Refused(
            f"no equality leads from {lookup.driver_name!r} to {lookup.name!r}",
            "join on equal columns; any other condition may come in addition",
        )
    return Refused(
        f"no index of {lookup.name!r} lies within its join columns ({columns})",
        f"add INDEX ({columns}) to {lookup.name}",
    )
