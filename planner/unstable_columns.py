"""Columns of changes whose values are not those of the row: the change that takes it away has others (pure).

A managed table gives each change the METADATA of its own commit. What passes rows on may carry such columns;
what finds the rows of a group by them, or leaves rows out by them, would not take away what it has counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from planner.changelogs import Changelog
from planner.expressions import Column, Expr, columns_of
from planner.nodes import Filter, Generate, Join, Plan, Project, SlidingWindows, Union
from planner.sources import ManagedTable
from planner.trees import children, expressions, walk

Unstable = Mapping[int, str]
"""Ids of columns, and the METADATA column that each is made of."""


def unstable_columns(plan: Plan) -> Unstable:
    """The unstable ones among the columns of a plan and of all below it."""
    found: dict[int, str] = {}
    for child in children(plan):
        found |= unstable_columns(child)
    match plan:
        case Changelog(origin=ManagedTable(changing=names)):
            found |= {column.id: column.name for column in plan.columns if column.name in names}
        case Project():
            for output in plan.outputs:
                if (name := first_unstable([output.value], found)) is not None:
                    found[output.column.id] = name
        case Generate():
            if (name := first_unstable([plan.generator], found)) is not None:
                found |= dict.fromkeys((column.id for column in plan.made), name)
        case SlidingWindows():
            if (name := first_unstable(plan.values, found)) is not None:
                found[plan.made.id] = name
        case Union():
            first, *others = map(_without_kinds, plan.inputs)
            for other in others:
                pairs = zip(other, first, strict=True)
                found |= {column.id: found[own.id] for own, column in pairs if own.id in found}
    return found


def deciding(plan: Plan) -> Iterator[Expr]:
    """The conditions below a node by which rows are left out."""
    for node in walk(plan):
        if isinstance(node, Filter | Join):
            yield from expressions(node)


def first_unstable(exprs: Iterable[Expr], unstable: Unstable) -> str | None:
    """The METADATA column that one of some expressions is made of; None if there is none."""
    used = columns_of(*exprs)
    return next((name for id, name in unstable.items() if id in used), None)


def _without_kinds(plan: Plan) -> list[Column]:
    """The columns of a union's input that meet those of the others; some may have their kind already."""
    return [column for column in plan.columns if not column.is_row_kind]
