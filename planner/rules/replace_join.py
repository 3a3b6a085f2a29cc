"""Replace a join of two changelogs by a delta join (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.chain import chain_of, restack
from planner.conditions import Refused
from planner.expressions import Column, conjunction, conjuncts
from planner.join_conditions import JOIN_CONDITIONS, tables_of
from planner.keys import choose_keys, equated_columns
from planner.plan import Changelog, DeltaJoin, Filter, Join, JoinSide, Output, Plan, Project
from planner.settings import Settings
from planner.trees import reads_changes, row_kind_of, walk


def replace_join(node: Plan, settings: Settings) -> Plan | Refused | None:
    """Replace an inner equi-join of two indexed tables by lookups on both sides.

    Only when every condition of `planner.join_conditions.JOIN_CONDITIONS` holds. The delta join emits raw
    columns of both tables; the projections and filters of both inputs are stacked on it, then what the
    join's condition asks beyond its keys, then the columns of the join in their order:

        Join inner ON ((k#2 = id#5) AND (x#3 > y#6))      Project [columns of the join, _row_kind]
          Filter …                                          Filter (x#3 > y#6)
            Changelog a                             =>        Filter …
          Changelog b                                           DeltaJoin

    A join that reads no changelog is Spark's business, unless the strategy is "force".
    """
    if not isinstance(node, Join):
        return None
    if not reads_changes(node):
        return _not_about_changes() if settings.strategy == "force" else None
    for condition in JOIN_CONDITIONS:
        if refused := condition(node):
            return refused
    if settings.strategy == "none":
        return Refused(
            "strategy is 'none', and Spark's own join would take each change for a row",
            "allow a delta join with strategy='auto'",
        )
    return _delta_join(node)


def _not_about_changes() -> Refused:
    return Refused(
        "strategy is 'force', and this join reads no changes of managed tables",
        "join catalog.read_changes of two tables, or leave the strategy at 'auto'",
    )


def _delta_join(join: Join) -> Plan:
    one, other = (_changelog(chain_of(plan).leaf) for plan in (join.left, join.right))
    left_table, right_table = tables_of(join)
    keys = choose_keys(equated_columns(join), left_table, right_table)
    row_kind = row_kind_of(one)
    if keys is None or row_kind is None:
        raise AssertionError("the conditions of a delta join promise keys and kinds")
    left_keys = tuple(pair.left.name for pair in keys.pairs)
    right_keys = tuple(pair.right.name for pair in keys.pairs)
    base = DeltaJoin(
        JoinSide(left_table, _own(one.columns), left_keys, keys.left_index),
        JoinSide(right_table, _own(other.columns), right_keys, keys.right_index),
        replace(row_kind, ref=None),
    )
    plan = _stacked_apart(join, base) if _share_ids(join.left, join.right) else _stacked(join, base)
    by_key = {pair.condition for pair in keys.pairs}
    residual = conjunction([part for part in conjuncts(join.condition) if part not in by_key])
    plan = plan if residual is None else Filter(plan, residual)
    return Project(plan, (*(Output(c, c) for c in _own(join.columns)), Output.of(base.row_kind)))


def _stacked(join: Join, base: DeltaJoin) -> Plan:
    plan = restack(chain_of(join.left), base, (*base.right.columns, base.row_kind))
    return restack(chain_of(join.right), plan, (*_own(join.left.columns), base.row_kind))


def _stacked_apart(join: Join, base: DeltaJoin) -> Plan:
    """Stack both chains where one expression id means a column of either side: move the other side's away.

    Spark renews the ids of a table joined with itself only where both inputs would put out the same id;
    below that, one id may be in both chains.
    """
    left, raw_right = _own(join.left.columns), base.right.columns
    hidden_left = tuple(replace(column, id=-2 * column.id - 2, ref=None) for column in left)
    hidden_right = tuple(replace(column, id=-2 * column.id - 1, ref=None) for column in raw_right)
    base = replace(base, right=replace(base.right, columns=hidden_right))
    plan = restack(chain_of(join.left), base, (*hidden_right, base.row_kind))
    swapped = (*_aliases(left, hidden_left), *_aliases(hidden_right, raw_right), Output.of(base.row_kind))
    plan = restack(chain_of(join.right), Project(plan, swapped), (*hidden_left, base.row_kind))
    back = (*_aliases(hidden_left, left), *map(Output.of, _own(join.right.columns)), Output.of(base.row_kind))
    return Project(plan, back)


def _aliases(old: Sequence[Column], new: Sequence[Column]) -> list[Output]:
    return [
        Output(replace(after, ref=None), replace(before, ref=None))
        for before, after in zip(old, new, strict=True)
    ]


def _own(columns: Sequence[Column]) -> tuple[Column, ...]:
    return tuple(column for column in columns if not column.is_row_kind)


def _share_ids(left: Plan, right: Plan) -> bool:
    in_left, in_right = ({c.id for node in walk(plan) for c in node.columns} for plan in (left, right))
    return not in_left.isdisjoint(in_right)


def _changelog(leaf: Plan) -> Changelog:
    if not isinstance(leaf, Changelog):
        raise AssertionError(f"the conditions of a delta join promise changelogs, got {leaf}")
    return leaf
