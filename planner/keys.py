"""What a join equates, and which index of a table finds rows by columns (pure)."""

from __future__ import annotations

from collections.abc import Iterator

from planner.expressions import Call, Expr, columns_of, conjuncts
from planner.nodes import Join
from upsert.schema import TableSchema
from upsert.store.layout import Layout


def equalities(join: Join) -> Iterator[tuple[Expr, Expr, Expr]]:
    """Conditions that equate an expression of each input: (condition, left, right)."""
    left_ids = {column.id for column in join.left.columns}
    right_ids = {column.id for column in join.right.columns}
    for condition in conjuncts(join.condition):
        match condition:
            case Call("EqualTo", (one, other)):
                used_by_one, used_by_other = columns_of(one), columns_of(other)
                if not used_by_one or not used_by_other:
                    continue
                if used_by_one <= left_ids and used_by_other <= right_ids:
                    yield condition, one, other
                elif used_by_one <= right_ids and used_by_other <= left_ids:
                    yield condition, other, one


def index_within(schema: TableSchema, columns: set[str]) -> str | None:
    """Name of the index that finds rows by no more than these columns, as `Snapshot.index_for` names it."""
    index = Layout.of(schema).best_index(columns)
    return None if index is None else index.label
