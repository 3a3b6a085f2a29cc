"""The projections and filters below the joins of a query, stacked on the delta join (pure).

A delta join emits raw columns of all its tables. The nodes below the joins of a query use columns of their
own input only, so they are stacked on the delta join in the order they had, one input after the other, each
passing the columns of the others on: see docs/decisions/0005.

Two inputs may use one expression id for columns of their own: Spark renews the ids of a table joined with
itself only where both would put out the same id. Then the columns of all inputs but the one being stacked
bear ids of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from planner.plan.expressions import (
    Call,
    Cast,
    Column,
    Expr,
    without_kinds,
)
from planner.plan.nodes import (
    Filter,
    Output,
    Plan,
    Project,
    Unary,
)
from planner.plan.trees import above


@dataclass(frozen=True)
class Raw:
    """The columns of a table: under the ids that the query has for them, and under ids of their own."""

    number: int
    own: tuple[Column, ...]
    hidden: tuple[Column, ...]


@dataclass(frozen=True)
class Chained:
    """A node over an input; `present` is true where the input has a row, None if it always has."""

    node: Unary
    below: Staged
    present: Expr | None = None


@dataclass(frozen=True)
class Joined:
    """Both inputs of a join, and what its condition asks beyond the delta join."""

    left: Staged
    right: Staged
    columns: tuple[Column, ...]
    residual: Expr | None


Staged = Raw | Chained | Joined


def with_hidden_ids(staged: Staged) -> frozenset[int]:
    """Tables whose columns must bear ids of their own: one of their ids is used in another input, too."""
    match staged:
        case Raw():
            return frozenset()
        case Chained(_, below):
            return with_hidden_ids(below)
        case Joined(left, right):
            shared = _ids(left) & _ids(right)
            clashing = (raw.number for raw in _raws(staged) if not shared.isdisjoint(c.id for c in raw.own))
            return with_hidden_ids(left) | with_hidden_ids(right) | frozenset(clashing)


@dataclass(frozen=True)
class Stacker:
    """Stacks nodes on a delta join; the columns of its `hidden` tables have ids of their own in it."""

    hidden: frozenset[int]
    fresh: Iterator[int]

    def over(self, staged: Staged, plan: Plan, carried: tuple[Column, ...]) -> Plan:
        """The nodes over a plan; its `carried` columns come out as well, no node uses their ids."""
        match staged:
            case Raw(number, own, hidden):
                return _renamed(plan, hidden, own, carried) if number in self.hidden else plan
            case Chained(node, below, present):
                if isinstance(node, Project):
                    outputs = tuple(_where_present(output, present) for output in node.outputs)
                    node = replace(node, outputs=outputs)
                return above(node, self.over(below, plan, carried), carried)
            case Joined(_, _, _, residual):
                joined = self._joined(staged, plan, carried)
                return joined if residual is None else Filter(joined, residual)

    def _joined(self, staged: Joined, plan: Plan, carried: tuple[Column, ...]) -> Plan:
        left, right = _columns(staged.left), _columns(staged.right)
        raws = _raws(staged.right)
        raw = tuple(c for part in raws for c in (part.hidden if part.number in self.hidden else part.own))
        plan = self.over(staged.left, plan, (*raw, *carried))
        if _ids(staged.right).isdisjoint(column.id for column in left):
            return self.over(staged.right, plan, (*left, *carried))
        apart = tuple(replace(column, id=next(self.fresh), ref=None) for column in left)
        plan = _renamed(plan, left, apart, (*raw, *carried))
        plan = self.over(staged.right, plan, (*apart, *carried))
        return _renamed(plan, apart, left, (*right, *carried))


def _columns(staged: Staged) -> tuple[Column, ...]:
    """The columns that the nodes put out for the query, without kinds."""
    match staged:
        case Raw(_, own):
            return own
        case Chained(Project() as project, _):
            return tuple(replace(column, ref=None) for column in without_kinds(project.columns))
        case Chained(_, below):
            return _columns(below)
        case Joined(_, _, columns):
            return columns


def _where_present(output: Output, present: Expr | None) -> Output:
    """The output as it would be in a row that is NULL as a whole, where the input's row is not there."""
    value = output.value
    while isinstance(value, Cast):
        value = value.value
    if present is None or isinstance(value, Column):
        return output
    return Output(output.column, Call("CaseWhen", (present, output.value)))


def _renamed(
    plan: Plan, before: Sequence[Column], after: Sequence[Column], carried: Sequence[Column]
) -> Plan:
    pairs = zip(before, after, strict=True)
    renamed = (Output(replace(new, ref=None), replace(old, ref=None)) for old, new in pairs)
    return Project(plan, (*renamed, *map(Output.of, carried)))


def _raws(staged: Staged) -> Iterator[Raw]:
    match staged:
        case Raw():
            yield staged
        case Chained(_, below):
            yield from _raws(below)
        case Joined(left, right):
            yield from _raws(left)
            yield from _raws(right)


def _ids(staged: Staged) -> frozenset[int]:
    """All column ids that occur in the nodes."""
    match staged:
        case Raw(_, own):
            return frozenset(column.id for column in own)
        case Chained(node, below):
            return _ids(below).union(column.id for column in without_kinds(node.columns))
        case Joined(left, right):
            return _ids(left) | _ids(right)
