"""Which columns a join equates, and which index of each table finds rows by them (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.chain import are_joinable, trace
from planner.expressions import Call, Column, Expr, columns_of, conjuncts
from planner.plan import Join
from planner.sources import ManagedTable
from upsert.schema import TableSchema
from upsert.store.layout import Layout


@dataclass(frozen=True)
class KeyPair:
    """A column of the left table and one of the right that the join holds equal, and by which condition."""

    left: Column
    right: Column
    condition: Expr


@dataclass(frozen=True)
class JoinKeys:
    """The pairs that a delta join looks up by, and the index that serves each side."""

    pairs: tuple[KeyPair, ...]
    left_index: str
    right_index: str


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


def equated_columns(join: Join) -> tuple[KeyPair, ...]:
    """Pairs of plain table columns that the join equates; each pair once, in the order of the condition."""
    pairs: dict[tuple[int, int], KeyPair] = {}
    for condition, left, right in equalities(join):
        one, other = trace(left, join.left), trace(right, join.right)
        if one is not None and other is not None and are_joinable(one, other) and not one.is_row_kind:
            pairs.setdefault((one.id, other.id), KeyPair(one, other, condition))
    return tuple(pairs.values())


def choose_keys(pairs: Sequence[KeyPair], left: ManagedTable, right: ManagedTable) -> JoinKeys | None:
    """As many pairs as possible with an index of each table within them, or None where there are none.

    A column takes part in one pair only; another pair with it is a condition like any other.
    """
    for chosen in _one_to_one(tuple(pairs)):
        left_index = index_within(left.schema, {pair.left.name for pair in chosen})
        right_index = index_within(right.schema, {pair.right.name for pair in chosen})
        if chosen and left_index is not None and right_index is not None:
            return JoinKeys(chosen, left_index, right_index)
    return None


def _one_to_one(pairs: tuple[KeyPair, ...]) -> Iterator[tuple[KeyPair, ...]]:
    if not pairs:
        yield ()
        return
    first, *rest = pairs
    free = tuple(pair for pair in rest if pair.left != first.left and pair.right != first.right)
    yield from ((first, *others) for others in _one_to_one(free))
    if len(free) < len(rest):
        yield from _one_to_one(tuple(rest))


def index_within(schema: TableSchema, columns: set[str]) -> str | None:
    """Name of the index that finds rows by no more than these columns, as `Snapshot.index_for` names it."""
    index = Layout.of(schema).best_index(columns)
    return None if index is None else index.label
