"""Rows of a plan of joins as parts that are all joined INNER (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deltajoin.expressions import Condition, conjunction, refs_of
from deltajoin.tree import Inner, Node, On, Where, null_supplied, visible
from planner.expressions import Expr
from planner.stack import Staged


@dataclass(frozen=True)
class Part:
    """The rows of a plan.

    Attributes:
        children: what is joined; a single one is just that.
        on: equal columns of different children.
        where: what must hold besides.
        columns: id of a column of the plan -> what it is computed from, in raw columns.
        staged: what is to be done above the delta join.
        witnesses: tables of which one is there in every row.
        tried: conditions that might have been equalities, for messages.
    """

    children: tuple[Node, ...]
    on: On
    where: tuple[Condition, ...]
    columns: Mapping[int, Expr]
    staged: Staged
    witnesses: tuple[int, ...]
    tried: tuple[Expr, ...] = ()

    @property
    def visible(self) -> frozenset[int]:
        """Tables whose columns the rows have."""
        return frozenset().union(*map(visible, self.children))

    @property
    def always_there(self) -> frozenset[int]:
        """Tables of which every row has a part."""
        return self.visible.difference(*map(null_supplied, self.children))


def as_node(part: Part) -> Node:
    """The part as one node; a condition of one child alone becomes a filter of it."""
    own: list[list[Condition]] = [[] for _ in part.children]
    common: list[Condition] = []
    for condition in part.where:
        tables = {ref.table for ref in refs_of(condition)}
        of = (of for of, child in zip(own, part.children, strict=True) if tables <= visible(child))
        next(of, common).append(condition)
    children = tuple(map(_where, part.children, own))
    if len(children) == 1:
        return _where(children[0], common)
    return Inner(children, part.on, conjunction(*common))


def unconnected(part: Part) -> tuple[frozenset[int], frozenset[int]] | None:
    """Tables that can be looked up from each other, and those that cannot be from them; None if all can."""
    reached = visible(part.children[0])
    rest = list(part.children[1:])
    while found := [child for child in rest if _are_joined(reached, visible(child), part.on)]:
        reached = reached.union(*map(visible, found))
        rest = [child for child in rest if child not in found]
    return (reached, frozenset().union(*map(visible, rest))) if rest else None


def decided_by(kind: str, left: Part, right: Part) -> frozenset[int]:
    """Tables whose rows cannot come out, nor keep others from it, if they fail the ON condition."""
    match kind:
        case "left" | "anti":
            return right.always_there
        case "semi":
            return left.always_there | right.always_there
        case _:
            return frozenset()


def _are_joined(one: frozenset[int], other: frozenset[int], on: On) -> bool:
    return any((a.table in one and b.table in other) or (b.table in one and a.table in other) for a, b in on)


def _where(node: Node, conditions: Sequence[Condition]) -> Node:
    condition = conjunction(*conditions)
    return node if condition is None else Where(node, condition)
