"""Which tables a query's joins must look rows up in by columns that no key or index serves (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planner.plan.expressions import Column, equal_columns
from planner.plan.nodes import Filter, Join, Plan, Project, Relation, Union, Wrapper
from planner.plan.sources import index_within
from planner.plan.trees import children, walk

_PASSING = (Filter, Join, Project, Union, Wrapper)
"""What lies between a join and the tables that it looks rows up in."""

Origin = tuple[Relation, Column]
"""A relation, and a column of it."""


def unindexed(plan: Plan) -> Mapping[int, tuple[Relation, tuple[tuple[Column, ...], ...]]]:
    """The relations of a batch query that lack an index, by identity, with all columns by which joins look.

    >>> from planner.plan.expressions import Call
    >>> from planner.plan.nodes import TableRows
    >>> from planner.plan.sources import ManagedTable
    >>> import pyarrow as pa
    >>> from upsert.schema import TableSchema
    >>> schema = TableSchema.of({"id": pa.int64(), "x": pa.int64()}, primary_key=["id"])
    >>> one, other = (
    ...     Relation(name, (Column(n, "id", "bigint"), Column(n + 1, "x", "bigint")),
    ...              rows=TableRows(ManagedTable(name, f"/{name}", schema), 1))
    ...     for n, name in ((1, "one"), (3, "other"))
    ... )
    >>> on = Call("EqualTo", (one.columns[1], other.columns[0]), "boolean")
    >>> join = Join(one, other, "inner", on, (*one.columns, *other.columns))
    >>> [(leaf.name, [[column.name for column in by] for by in found])
    ...  for leaf, found in unindexed(join).values()]
    [('one', [['x']])]

    By another name it is the same column:

    >>> from planner.plan.nodes import Output
    >>> renamed = Project(one, (Output(Column(9, "y", "bigint"), one.columns[1]),))
    >>> on = Call("EqualTo", (renamed.columns[0], other.columns[0]), "boolean")
    >>> join = Join(renamed, other, "inner", on, (*renamed.columns, *other.columns))
    >>> [[[column.name for column in by] for by in found] for _, found in unindexed(join).values()]
    [[['x']]]
    """
    found: dict[int, tuple[Relation, dict[tuple[int, ...], tuple[Column, ...]]]] = {}
    lacking = set()
    for node in walk(plan):
        if not isinstance(node, Filter | Join):
            continue
        for leaf, by in _looked_up(node, _origins(node)):
            if leaf.rows is None or leaf.rows.snapshot is None:
                continue
            ids = tuple(column.id for column in by)
            found.setdefault(id(leaf), (leaf, {}))[1][ids] = by
            if index_within(leaf.rows.table.schema, {column.name for column in by}) is None:
                lacking.add(id(leaf))
    # what takes a relation's place has no other index than these, nor its key
    return {number: (leaf, tuple(by.values())) for number, (leaf, by) in found.items() if number in lacking}


def _looked_up(
    node: Filter | Join, origins: Mapping[int, Origin]
) -> Iterator[tuple[Relation, tuple[Column, ...]]]:
    """Each relation with the columns of it that a condition sets equal to those of one other relation."""
    pairs: dict[tuple[int, int], dict[int, Column]] = {}
    for one, other in equal_columns(node.condition):
        left, right = origins.get(one.id), origins.get(other.id)
        for mine, others in ((left, right), (right, left)):
            if mine is not None and (others is None or mine[0] is not others[0]):
                pair = id(mine[0]), -1 if others is None else id(others[0])
                pairs.setdefault(pair, {})[mine[1].id] = mine[1]
    relations = {id(leaf): leaf for leaf, _ in origins.values()}
    for (mine_id, _), columns in pairs.items():
        yield relations[mine_id], tuple(columns[number] for number in sorted(columns))


def _origins(plan: Plan) -> dict[int, Origin]:
    """By the id of a column that can be looked up: the relation that it is read from, and its name there."""
    if isinstance(plan, Relation):
        return {column.id: (plan, column) for column in plan.columns}
    if not isinstance(plan, _PASSING):
        return {}
    found = {id: origin for child in children(plan) for id, origin in _origins(child).items()}
    if isinstance(plan, Project):
        named = {one.column.id: one.value for one in plan.outputs}
        found |= {
            id: found[value.id]
            for id, value in named.items()
            if isinstance(value, Column) and value.id in found
        }
    return found
