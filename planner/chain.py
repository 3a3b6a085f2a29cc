"""What lies between a join and the table it reads: follow a column down, stack it up again (pure).

For an INNER join, the projections and filters of an input may as well run on the joined rows: they use
columns of their own side only. So a delta join reads raw columns, and the chains of both inputs are
stacked on it, each passing the other side's columns on. See docs/decisions/0005.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from planner.changelogs import Changelog, Relation
from planner.delta_join import DeltaJoin
from planner.expressions import Aggregation, Call, Cast, Column, Expr, Literal, substituted, walk_expression
from planner.nodes import Filter, Output, Plan, Project, Unary, Watermark, Wrapper

INTEGER_WIDTHS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
"""Bits of Spark's integer types, by name."""
_NESTED: Final = ("array", "map", "struct")


@dataclass(frozen=True)
class Chain:
    """Nodes with one input each, from the one next to the leaf upwards, and the leaf."""

    leaf: Plan
    nodes: tuple[Unary, ...]


def chain_of(plan: Plan) -> Chain:
    """The chain that ends in `plan`; its leaf is the first node that has not one known input."""
    nodes: list[Unary] = []
    while isinstance(plan, Project | Filter | Watermark | Wrapper):
        nodes.append(plan)
        plan = plan.child
    return Chain(plan, tuple(reversed(nodes)))


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
    found = frozenset(part for part in walk_expression(expr) if isinstance(part, Column))
    for node in reversed(chain_of(plan).nodes):
        if isinstance(node, Project):
            values = {output.column: output.value for output in node.outputs}
            parts = (part for column in found for part in walk_expression(values[column]))
            found = frozenset(part for part in parts if isinstance(part, Column))
    return found


def inlined(expr: Expr, plan: Plan) -> Expr:
    """The expression over the columns of the leaf of a chain: what its projections compute put in place.

    >>> a, b = Column(1, "a", "int"), Column(2, "b", "int")
    >>> below = Project(Relation("t", (a,)), (Output(b, Call("Abs", (a,))),))
    >>> str(inlined(Call("Not", (b,)), below))
    'Not(Abs(a#1))'
    """
    for node in reversed(chain_of(plan).nodes):
        if isinstance(node, Project):
            expr = substituted(expr, {output.column.id: output.value for output in node.outputs})
    return expr


def without_widening(expr: Expr) -> Expr:
    """The expression without casts that change neither equality nor order of its values.

    >>> str(without_widening(Cast(Column(1, "a", "int"), "bigint")))
    'a#1'
    """
    while isinstance(expr, Cast) and is_widening(expr.value, expr.type):
        expr = expr.value
    return expr


def is_widening(value: Expr, wide: str) -> bool:
    """Whether a cast of the value to a type changes nothing but the width of an integer, at most."""
    if isinstance(value, Call | Aggregation):
        return False
    narrow = value.type
    both_integers = narrow in INTEGER_WIDTHS and wide in INTEGER_WIDTHS
    return narrow == wide or (both_integers and INTEGER_WIDTHS[narrow] <= INTEGER_WIDTHS[wide])


def are_joinable(left: Column, right: Column) -> bool:
    """Whether the columns may be a pair of join keys: of one scalar type, or integers of any width."""
    if left.type in INTEGER_WIDTHS and right.type in INTEGER_WIDTHS:
        return True
    return left.type == right.type and not left.type.startswith(_NESTED)


def folded_integer(expr: Expr) -> Expr:
    """The expression, with a widened integer constant as the constant itself."""
    inner = without_widening(expr)
    return Literal(inner.value, inner.type) if isinstance(inner, Literal) else expr


def restack(chain: Chain, base: Plan, carried: tuple[Column, ...]) -> Plan:
    """The nodes of the chain over `base` instead of its leaf, with the `carried` columns passed on.

    Kinds are left out: the carried columns hold the one kind that counts. Names, hints and distributions
    are left out as well: they concerned one input, not the joined rows.
    """
    plan = base
    for node in chain.nodes:
        match node:
            case Project():
                own = tuple(output for output in node.outputs if not output.column.is_row_kind)
                plan = Project(plan, (*own, *(Output.of(column) for column in carried)))
            case Filter():
                plan = Filter(plan, node.condition)
            case Watermark():
                plan = Watermark(plan, node.column, ref=node.ref)
            case Wrapper():
                pass
    return plan
