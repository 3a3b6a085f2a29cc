"""Let a delta join leave rows out by columns that nothing else of the query uses (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from deltajoin import expressions as inside
from deltajoin.condition_types import check_is_condition
from deltajoin.expressions import Condition
from planner.chain import Chain, chain_of, inlined
from planner.delta_join import DeltaJoin
from planner.expressions import Expr, columns_of, conjunction, conjuncts
from planner.nodes import Filter, Plan, Project
from planner.settings import Settings
from planner.translate import NotTranslatableError, translated
from planner.trees import expressions, with_children
from upsert.errors import ConfigurationError

_CAN_FAIL: Final = frozenset({"+", "-", "*", "neg", "abs"})
"""Operators that must not see rows which another filter leaves out."""

Parts = Mapping[tuple[int, Expr], Condition]
"""Parts of the filters of a chain: number of the node, and a condition that must hold there."""


def keep_rows_inside(node: Plan, settings: Settings) -> Plan | None:  # noqa: ARG001
    """Move a filter above a delta join into it, if it is all that uses some column.

    So that the column need not come out. An update of it would come out as a row and its opposite, since
    both its images pass the filter and are equal in all that the query gives. Other filters stay with Spark.
    `prune_columns` has to come after this:

        Project [order_id#1, _row_kind#5]          Project [order_id#1, _row_kind#5]
          Filter (amount#3 > 2.0)            =>      DeltaJoin _row_kind#5
            DeltaJoin _row_kind#5                      … keeping (t0.amount > 2.0)
              …
    """
    chain = chain_of(node)
    if not isinstance(join := chain.leaf, DeltaJoin):
        return None
    found = {
        (number, part): condition
        for number, below in enumerate(chain.nodes)
        if isinstance(below, Filter)
        for part in conjuncts(below.condition)
        if (condition := _condition(inlined(part, below.child), join)) is not None
    }
    others = _used_besides(node, chain, found)
    moved = {
        (number, part): condition
        for (number, part), condition in found.items()
        if not columns_of(inlined(part, chain.nodes[number].child)) <= others
    }
    return _rebuilt(chain, join, moved) if moved else None


def _condition(expr: Expr, join: DeltaJoin) -> Condition | None:
    """What the delta join can decide just as Spark does; None for all else."""
    try:
        found = translated(expr, join.refs)
        check_is_condition(found, lambda ref: join.tables[ref.table].table.schema.type_of(ref.column))
    except (NotTranslatableError, ConfigurationError):
        return None
    fails = any(isinstance(part, inside.Call) and part.op in _CAN_FAIL for part in inside.walk(found))
    return None if fails else found


def _used_besides(node: Plan, chain: Chain, found: Collection[tuple[int, Expr]]) -> frozenset[int]:
    """Columns of the join that the query puts out, or uses in what must stay above the join."""
    used = [inlined(column, node) for column in node.columns]
    for number, below in enumerate(chain.nodes):
        parts = conjuncts(below.condition) if isinstance(below, Filter) else expressions(below)
        if not isinstance(below, Project):
            used += (inlined(part, below.child) for part in parts if (number, part) not in found)
    return columns_of(*used)


def _rebuilt(chain: Chain, join: DeltaJoin, moved: Parts) -> Plan:
    plan: Plan = replace(join, keep=inside.conjunction(join.keep, *moved.values()))
    for number, node in enumerate(chain.nodes):
        if isinstance(node, Filter) and any(at == number for at, _ in moved):
            rest = [part for part in conjuncts(node.condition) if (number, part) not in moved]
            condition = conjunction(rest)
            plan = plan if condition is None else Filter(plan, condition)
        else:
            plan = with_children(node, [plan])
    return plan
