"""What a planned delta join is to its source: its description, its lookups, and what a step costs (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from deltajoin.core.costs import SharedTable, StepCost
from deltajoin.core.evaluate import split_of_join
from deltajoin.core.plans import Path, UnreachableLookup, paths_of, unreachable_lookups
from deltajoin.core.shards import TASK_ROWS, Bucketing, Split, agreeing
from deltajoin.spec import DeltaJoinSpec, JoinedTable
from deltajoin.tree import Node, flattened
from planner.plan.nodes import DeltaJoin
from planner.plan.sources import ManagedTable, index_within
from planner.refusals import Refused, adding_index


@dataclass(frozen=True)
class _Facts:
    """What is known of the tables of a join when it is planned; indexes that are `assumed` are not there."""

    tables: Sequence[ManagedTable]
    selected: Sequence[tuple[str, ...]]
    assumed: frozenset[tuple[int, tuple[str, ...]]] = frozenset()

    def name(self, table: int) -> str:
        return self.tables[table].name

    @cached_property
    def known(self) -> dict[tuple[int, tuple[str, ...]], str | None]:
        """The indexes that were looked for: orders in which tables are looked up have them in common."""
        return {}

    def index_for(self, table: int, columns: Sequence[str]) -> str | None:
        by = table, tuple(columns)
        if by not in self.known:
            self.known[by] = index_within(self.tables[table].schema, set(columns))
        found = self.known[by]
        return "INDEX" if found is None and (table, tuple(columns)) in self.assumed else found

    def rows_per_key(self, table: int, columns: Sequence[str]) -> float:
        index = self.index_for(table, columns)
        return 1.0 if index is None else self.tables[table].rows_per_key.get(index, 1.0)

    def select(self, table: int) -> tuple[str, ...]:
        return self.selected[table]


def lookup_paths(join: DeltaJoin) -> tuple[Path, ...]:
    """For each table of a join, in the order in which the tables move, what its changes look up."""
    selected = [tuple(column.name for column in one.columns) for one in join.tables]
    return paths_of(flattened(join.tree), _Facts([one.table for one in join.tables], selected))


def spec_of(join: DeltaJoin, shards: int) -> DeltaJoinSpec:
    """The description of the join that its source gets."""
    limit = min(one.table.max_rows for one in join.tables)
    tables = tuple(
        JoinedTable(
            one.table.path,
            tuple(column.name for column in one.columns),
            one.filters,
            tuple(column.name for column in one.emitted) if one.compared else None,
        )
        for one in join.tables
    )
    present = tuple(number for number, _ in join.present)
    return DeltaJoinSpec(tables, join.tree, present, shards, limit, join.keep, join.is_net)


def step_cost(join: DeltaJoin, shards: int) -> StepCost | None:
    """What tasks, of so many at most, take to share a step with the changes of the tables' latest commits.

    None if these are unknown, or worth one task.
    """
    tables = [one.table for one in join.tables]
    rows = [table.changed_rows for table in tables if table.changed_rows is not None]
    spec, keys = spec_of(join, shards), [table.schema.primary_key for table in tables]
    split = split_of_join(spec, lambda ref: tables[ref.table].schema.type_of(ref.column), keys)
    tasks = min(shards, -(-sum(rows) // TASK_ROWS))
    if all(
        split.groups(n, _bucketing(one), one.buckets, one.buckets) == one.buckets
        for n, one in enumerate(tables)
    ):
        tasks = agreeing(tasks, max(one.buckets for one in tables), shards)
    tasks = split.count(tasks)
    if len(rows) < len(tables) or tasks < 2:
        return None
    numbered = enumerate(zip(tables, rows, strict=True))
    return StepCost.of([_shared(split, number, *known, tasks) for number, known in numbered], tasks)


def _shared(split: Split, number: int, table: ManagedTable, rows: int, tasks: int) -> SharedTable:
    return SharedTable(
        rows,
        table.buckets,
        split.groups(number, _bucketing(table), table.buckets, tasks),
        is_cut_by_key=split.keeps_shards(number, table.schema.primary_key),
        is_everywhere=split.columns[number] is None,
    )


def _bucketing(table: ManagedTable) -> Bucketing:
    types = tuple(table.schema.type_of(name) for name in table.bucket_key)
    return Bucketing(table.bucket_key, types)


def lacking_indexes(tree: Node, tables: Sequence[ManagedTable]) -> Iterator[Refused]:
    """What stands in the way of the lookups of a join: one refusal for each index that lacks."""
    selected = [tuple(column.name for column in table.schema.columns) for table in tables]
    assumed: frozenset[tuple[int, tuple[str, ...]]] = frozenset()
    # a path tells the first index that it lacks; with that one it would tell the next
    while found := unreachable_lookups(flattened(tree), _Facts(tables, selected, assumed)):
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
        adding_index(lookup.name, lookup.by),
    )
