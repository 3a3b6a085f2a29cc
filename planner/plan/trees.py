"""Plans as trees: what lies below a node, how one is rewritten, what it reads, and how it prints (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count

from planner.plan.expressions import Aggregation, Column, Expr, walk_expression
from planner.plan.nodes import (
    Aggregate,
    Changelog,
    DeltaJoin,
    Distinct,
    Enriched,
    Filter,
    Generate,
    Join,
    LookupAggregate,
    Normalized,
    Opaque,
    Output,
    Plan,
    Project,
    RegularJoin,
    Relation,
    SignedAggregate,
    SlidingWindows,
    Union,
    Watermark,
    Wrapper,
)


def children(node: Plan) -> tuple[Plan, ...]:
    """The inputs of a node, from left to right."""
    match node:
        case Project() | Filter() | Watermark() | Wrapper() | Generate() | Distinct() | Enriched():
            return (node.child,)
        case Aggregate() | SignedAggregate() | SlidingWindows():
            return (node.child,)
        case Join() | RegularJoin():
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
        case Project() | Filter() | Watermark() | Wrapper() | Generate() | Distinct() | Enriched():
            return replace(node, child=inputs[0])
        case Aggregate() | SignedAggregate() | SlidingWindows():
            return replace(node, child=inputs[0])
        case Join(kind=kind):
            left, right = inputs
            passed_on = (
                left.columns if kind in ("left semi", "left anti") else (*left.columns, *right.columns)
            )
            return replace(node, left=left, right=right, columns=passed_on)
        case RegularJoin():
            return replace(node, left=inputs[0], right=inputs[1])
        case Opaque() | Union():
            return replace(node, inputs=tuple(inputs))
        case _:
            return node


def expressions(node: Plan) -> tuple[Expr, ...]:
    """The expressions that a node itself evaluates."""
    match node:
        case Project():
            return tuple(output.value for output in node.outputs)
        case Aggregate():
            return (*(group.value for group in node.groups), *(output.value for output in node.outputs))
        case Filter():
            return (node.condition,)
        case Watermark():
            return (node.column,)
        case Generate():
            return (node.generator,)
        case SlidingWindows():
            return node.values
        case Join(condition=condition) | RegularJoin(condition=condition) if condition is not None:
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


def at_join_trees(plan: Plan, change: Callable[[Plan], Plan]) -> Plan:
    """The plan with `change` applied to each join that reads changes and is no input of another such join.

    Joins that read no changes, or join them with static rows, are shown to it one by one.
    """
    if isinstance(plan, Join) and (changed := change(plan)) is not plan:
        return changed
    return with_children(plan, [_below_join_tree(child, plan, change) for child in children(plan)])


def _below_join_tree(plan: Plan, above: Plan, change: Callable[[Plan], Plan]) -> Plan:
    is_part = joins_changes(above)
    if is_part and joins_changes(plan):
        below = [_below_join_tree(child, plan, change) for child in children(plan)]
    elif is_part and isinstance(plan, Project | Filter | Watermark | Wrapper):
        below = [_below_join_tree(plan.child, above, change)]
    else:
        return at_join_trees(plan, change)
    return with_children(plan, below)


def joins_changes(plan: Plan) -> bool:
    """Whether this is a join that reads changes, but not one of them with rows that never change."""
    return isinstance(plan, Join) and reads_changes(plan) and static_input(plan) is None


def static_input(join: Join) -> Plan | None:
    """The input that is no stream, if the other one reads changes."""
    for one, other in ((join.left, join.right), (join.right, join.left)):
        if reads_changes(other) and not reads_changes(one) and not is_streaming(one):
            return one
    return None


def is_streaming(plan: Plan) -> bool:
    """Whether a stream of rows that are no changes lies in the plan."""
    return any(isinstance(node, Relation) and node.is_streaming for node in walk(plan))


def reads_changes(plan: Plan) -> bool:
    """Whether a changelog lies in the plan."""
    return any(isinstance(node, Changelog | DeltaJoin | LookupAggregate) for node in walk(plan))


def at_top(plan: Plan, change: Callable[[Plan], Plan]) -> Plan:
    """The plan with `change` applied to its top node alone: for rules about the whole query."""
    return change(plan)


def row_kind_of(plan: Plan) -> Column | None:
    """The column that holds the kind of the plan's rows, if it still has one."""
    return next((column for column in reversed(plan.columns) if column.is_row_kind), None)


def with_row_kind_last(plan: Plan) -> Plan:
    """The plan with its kind as the last column, and as the only one; the very same object if it is so."""
    kinds = [column for column in plan.columns if column.is_row_kind]
    if not kinds or plan.columns[-1:] == tuple(kinds):
        return plan
    own = (column for column in plan.columns if not column.is_row_kind)
    return Project(plan, tuple(Output.of(column) for column in (*own, kinds[-1])))


def fresh_ids(plan: Plan) -> Iterator[int]:
    """Ids that no column of the plan has: negative ones, for which `build` draws others."""
    used = (column.id for node in walk(plan) for column in node.columns)
    return count(min((0, *used)) - 1, -1)


def tree(plan: Plan, depth: int = 0) -> str:
    """The plan as text: one node a line, inputs indented below.

    >>> from planner.plan.nodes import Relation
    >>> print(tree(Filter(Relation("t", (Column(1, "a", "int"),)), Column(1, "a", "int"))))
    Filter a#1
      Relation t [a#1: int]
    """
    below = [tree(child, depth + 1) for child in children(plan)]
    match plan:
        case DeltaJoin():
            below = [f"{'  ' * (depth + 1)}{line}" for line in plan.lines()]
        case Changelog(origin=Normalized(input=given)):
            below = [tree(given, depth + 1)]
    return "\n".join([f"{'  ' * depth}{plan}", *below])


def sources(node: Plan) -> str:
    """Names of the changelogs that a plan reads, for messages."""
    names: dict[str, None] = {}
    for leaf in walk(node):
        match leaf:
            case Changelog():
                names[repr(leaf.name)] = None
            case LookupAggregate():
                names[repr(leaf.table.name)] = None
            case DeltaJoin():
                names |= dict.fromkeys(repr(one.table.name) for one in leaf.tables)
    return " and ".join(names)


def aggregations(node: Aggregate) -> Iterator[Aggregation]:
    """The aggregate functions of the node, each once, in the order of its columns."""
    found = (part for output in node.outputs for part in walk_expression(output.value))
    yield from dict.fromkeys(part for part in found if isinstance(part, Aggregation))
