"""Plans as trees: what lies below a node, how one is rewritten, what it reads, and how it prints (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from planner.expressions import Column, Expr
from planner.plan import (
    Changelog,
    DeltaJoin,
    Distinct,
    Filter,
    Generate,
    Join,
    Net,
    Normalized,
    Opaque,
    Plan,
    Project,
    Union,
    Watermark,
    Wrapper,
)


def children(node: Plan) -> tuple[Plan, ...]:
    """The inputs of a node, from left to right."""
    match node:
        case Project() | Filter() | Watermark() | Wrapper() | Generate() | Distinct() | Net():
            return (node.child,)
        case Join():
            return (node.left, node.right)
        case Opaque() | Union():
            return node.inputs
        case _:
            return ()


def with_children(node: Plan, inputs: Sequence[Plan]) -> Plan:
    """The node over other inputs; the very same object when they are the ones it has."""
    if all(new is old for new, old in zip(inputs, children(node), strict=True)):
        return node
    match node:
        case Project() | Filter() | Watermark() | Wrapper() | Generate() | Distinct() | Net():
            return replace(node, child=inputs[0])
        case Join(kind=kind):
            left, right = inputs
            passed_on = (
                left.columns if kind in ("left semi", "left anti") else (*left.columns, *right.columns)
            )
            return replace(node, left=left, right=right, columns=passed_on)
        case Opaque() | Union():
            return replace(node, inputs=tuple(inputs))
        case _:
            return node


def expressions(node: Plan) -> tuple[Expr, ...]:
    """The expressions that a node itself evaluates."""
    match node:
        case Project():
            return tuple(output.value for output in node.outputs)
        case Filter():
            return (node.condition,)
        case Watermark():
            return (node.column,)
        case Generate():
            return (node.generator,)
        case Join(condition=condition) if condition is not None:
            return (condition,)
        case _:
            return ()


def walk(plan: Plan) -> Iterator[Plan]:
    """The plan's nodes from the top, each before its inputs."""
    yield plan
    for child in children(plan):
        yield from walk(child)


def transform_up(plan: Plan, change: Callable[[Plan], Plan]) -> Plan:
    """The plan with `change` applied to every node, inputs first; what is unchanged stays the same object."""
    return change(with_children(plan, [transform_up(child, change) for child in children(plan)]))


def transform_down(plan: Plan, change: Callable[[Plan], Plan]) -> Plan:
    """The plan with `change` applied to every node, before its inputs."""
    changed = change(plan)
    return with_children(changed, [transform_down(child, change) for child in children(changed)])


def reads_changes(plan: Plan) -> bool:
    """Whether a changelog lies in the plan."""
    return any(isinstance(node, Changelog | DeltaJoin) for node in walk(plan))


def at_top(plan: Plan, change: Callable[[Plan], Plan]) -> Plan:
    """The plan with `change` applied to its top node alone: for rules about the whole query."""
    return change(plan)


def row_kind_of(plan: Plan) -> Column | None:
    """The column that holds the kind of the plan's rows, if it still has one."""
    return next((column for column in reversed(plan.columns) if column.is_row_kind), None)


def tree(plan: Plan, depth: int = 0) -> str:
    """The plan as text: one node a line, inputs indented below.

    >>> from planner.plan import Relation
    >>> print(tree(Filter(Relation("t", (Column(1, "a", "int"),)), Column(1, "a", "int"))))
    Filter a#1
      Relation t [a#1: int]
    """
    below = [tree(child, depth + 1) for child in children(plan)]
    match plan:
        case DeltaJoin():
            below = [f"{'  ' * (depth + 1)}{name} {side}" for name, side in plan.sides]
        case Changelog(origin=Normalized(input=given)):
            below = [tree(given, depth + 1)]
    return "\n".join([f"{'  ' * depth}{plan}", *below])
