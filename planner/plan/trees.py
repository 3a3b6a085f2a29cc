"""Plans as trees: what lies below a node, how one is rewritten, what it reads, and how it prints (pure).

A chain is what lies between a node and the leaf it reads: a column is followed down along it, and its nodes
are stacked up again.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any, Final, get_args, get_type_hints

from planner.plan.expressions import (
    Aggregation,
    Call,
    Column,
    Expr,
    columns_of,
    conjuncts,
    substituted,
    walk_expression,
    without_kinds,
    without_widening,
)
from planner.plan.nodes import (
    OBSERVATION,
    Aggregate,
    Changelog,
    DeltaJoin,
    Distinct,
    Filter,
    GroupBy,
    Join,
    LookupAggregate,
    LookupRows,
    Normalized,
    Opaque,
    Output,
    Plan,
    Project,
    Relation,
    SignedAggregate,
    TableRows,
    Unary,
    Watermark,
    Wrapper,
)


def _fields(*types: object) -> dict[type, tuple[str, ...]]:
    """For each class of nodes the names of the fields that are declared with one of these types."""
    hints = {kind: get_type_hints(kind).items() for kind in get_args(Plan)}
    return {kind: tuple(name for name, type_ in found if type_ in types) for kind, found in hints.items()}


_INPUTS: Final = _fields(Plan, tuple[Plan, ...])
_EVALUATED: Final = _fields(Expr, Expr | None, tuple[Expr, ...], tuple[Output, ...], tuple[GroupBy, ...])


def children(node: Plan) -> tuple[Plan, ...]:
    """The inputs of a node, from left to right."""
    return tuple(one for name in _INPUTS[type(node)] for one in _each(getattr(node, name)))


def with_children(node: Plan, inputs: Sequence[Plan]) -> Plan:
    """The node over other inputs; the very same object when they are the ones it has."""
    if all(new is old for new, old in zip(inputs, children(node), strict=True)):
        return node
    given, changed = iter(inputs), dict[str, Any]()
    for name in _INPUTS[type(node)]:
        old = getattr(node, name)
        changed[name] = tuple(islice(given, len(old))) if isinstance(old, tuple) else next(given)
    if isinstance(node, Join):
        left, right = inputs
        is_of_left = node.kind in ("left semi", "left anti")
        changed["columns"] = left.columns if is_of_left else (*left.columns, *right.columns)
    return replace(node, **changed)


def expressions(node: Plan) -> tuple[Expr, ...]:
    """The expressions that a node itself evaluates."""
    found = (part for name in _EVALUATED[type(node)] for part in _each(getattr(node, name)))
    return tuple(part.value if isinstance(part, Output | GroupBy) else part for part in found)


def _each(value: Any) -> tuple[Any, ...]:
    """What a field holds, as a tuple."""
    if value is None:
        return ()
    return value if isinstance(value, tuple) else (value,)


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
    if not joins_changes(above) or not (joins_changes(plan) or isinstance(plan, Unary)):
        return at_join_trees(plan, change)
    nearest = above if isinstance(plan, Unary) else plan
    return with_children(plan, [_below_join_tree(child, nearest, change) for child in children(plan)])


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
    return Project(plan, tuple(map(Output.of, (*without_kinds(plan.columns), kinds[-1]))))


def fresh_ids(plan: Plan) -> Iterator[int]:
    """Ids that no column of the plan has: negative ones, for which `build` draws others."""
    used = (column.id for node in walk(plan) for column in node.columns)
    return count(min((0, *used)) - 1, -1)


def tree(plan: Plan, depth: int = 0) -> str:
    """The plan as text: one node a line, inputs indented below.

    >>> from planner.plan.nodes import Filter
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


def aggregations(outputs: Iterable[Output]) -> list[Aggregation]:
    """The aggregate functions of some columns, each once, in their order."""
    found = (part for output in outputs for part in walk_expression(output.value))
    return list(dict.fromkeys(part for part in found if isinstance(part, Aggregation)))


@dataclass(frozen=True)
class Chain:
    """Nodes with one input each, from the one next to the leaf upwards, and the leaf."""

    leaf: Plan
    nodes: tuple[Unary, ...]


def chain_of(plan: Plan) -> Chain:
    """The chain that ends in `plan`; its leaf is the first node that has not one known input."""
    nodes: list[Unary] = []
    while isinstance(plan, Unary):
        nodes.append(plan)
        plan = plan.child
    return Chain(plan, tuple(reversed(nodes)))


def is_observed(plan: Plan) -> bool:
    """Whether the chain that ends in `plan` counts its rows: `DataFrame.observe`."""
    return any(isinstance(node, Wrapper) and node.name == OBSERVATION for node in chain_of(plan).nodes)


def trace(expr: Expr, plan: Plan) -> Column | None:
    """The column of the table below `plan` whose value the expression has, or None if it is computed.

    Aliases are followed and casts to a wider integer type are undone: they keep equality and order.
    """
    expr = without_widening(expr)
    if not isinstance(expr, Column):
        return None
    match plan:
        case Project(child, outputs):
            found = next((output.value for output in outputs if output.column == expr), None)
            return None if found is None else trace(found, child)
        case Filter() | Watermark() | Wrapper():
            return trace(expr, plan.child)
        case Changelog() | DeltaJoin() | Relation():
            return next((column for column in plan.columns if column == expr), None)
        case _:
            return None


def origins(expr: Expr, plan: Plan) -> frozenset[Column]:
    """The columns of the leaf below `plan`, a chain, that the expression is computed from."""
    return frozenset(part for part in walk_expression(inlined(expr, plan)) if isinstance(part, Column))


def inlined(expr: Expr, plan: Plan) -> Expr:
    """The expression over the columns of the leaf of a chain: with what its projections compute put in.

    >>> a, b = Column(1, "a", "int"), Column(2, "b", "int")
    >>> below = Project(Relation("t", (a,)), (Output(b, Call("Abs", (a,))),))
    >>> str(inlined(Call("Not", (b,)), below))
    'Not(Abs(a#1))'
    """
    for node in reversed(chain_of(plan).nodes):
        if isinstance(node, Project):
            expr = substituted(expr, {output.column.id: output.value for output in node.outputs})
    return expr


def above(node: Unary, plan: Plan, carried: Sequence[Column]) -> Plan:
    """The node over another input, with the `carried` columns of that passed on.

    Kinds are left out: the carried columns hold the one kind that counts. Names, hints and distributions
    are left out as well: they concerned one input, not the joined rows.
    """
    match node:
        case Project():
            own = (output for output in node.outputs if not output.column.is_row_kind)
            return Project(plan, (*own, *map(Output.of, carried)))
        case Filter():
            return Filter(plan, node.condition)
        case Watermark():
            return Watermark(plan, node.column, ref=node.ref)
        case Wrapper():
            return plan


def equalities(join: Join, names: Container[str] = ("EqualTo",)) -> Iterator[tuple[Expr, Expr, Expr]]:
    """Conditions that equate an expression of each input: (condition, left, right)."""
    left, right = ({column.id for column in plan.columns} for plan in (join.left, join.right))
    for condition in conjuncts(join.condition):
        match condition:
            case Call(name, (one, other)) if name in names and columns_of(one) and columns_of(other):
                if columns_of(one) <= left and columns_of(other) <= right:
                    yield condition, one, other
                elif columns_of(one) <= right and columns_of(other) <= left:
                    yield condition, other, one


def join_in_words(join: Join) -> str:
    """A join by its kind, its inputs and its condition."""
    left, right = map(_name_of, (join.left, join.right))
    condition = "" if join.condition is None else f" on {join.condition}"
    return f"{join.kind} join of {left} with {right}{condition}"


def _name_of(plan: Plan) -> str:
    match leaf := chain_of(plan).leaf:
        case Relation(rows=TableRows(table)) | Relation(lookups=LookupRows(table)):
            return table.name
        case Changelog(name) | Relation(name) | Opaque(name):
            return name
        case Join():
            return " and ".join(
                _name_of(part) for part in walk(leaf) if isinstance(part, Changelog | Relation)
            )
        case Aggregate() | SignedAggregate() | LookupAggregate() | Distinct():
            return "an aggregate"
        case _:
            return "a join"
