"""What lies between a node and the leaf it reads: follow a column down, stack the nodes up again (pure)."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from planner.plan.expressions import (
    Call,
    Column,
    Expr,
    columns_of,
    conjuncts,
    substituted,
    walk_expression,
    without_widening,
)
from planner.plan.nodes import (
    OBSERVATION,
    Changelog,
    DeltaJoin,
    Filter,
    Join,
    Opaque,
    Output,
    Plan,
    Project,
    Relation,
    Unary,
    Watermark,
    Wrapper,
)
from planner.plan.trees import walk


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
        case Changelog(name) | Relation(name) | Opaque(name):
            return name
        case Join():
            names = (part.name for part in walk(leaf) if isinstance(part, Changelog | Relation))
            return " and ".join(names)
        case _:
            return "a join"
