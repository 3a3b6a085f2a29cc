"""Upserts by key: which columns of a plan hold the key, and what a sink must be keyed by (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from planner.plan.chains import chain_of
from planner.plan.expressions import Call, Column, Expr, Literal, without_ids, without_widening
from planner.plan.nodes import (
    Changelog,
    Filter,
    GroupBy,
    Output,
    Plan,
    Project,
    SignedAggregate,
    Upserts,
    Watermark,
    Wrapper,
)
from upsert.stream_keys import UpsertKey

UNLESS_GONE: Final = "UnlessGone"
"""Call of (kind, value): the value, or NULL for a group that is gone."""

AGGREGATE: Final = UpsertKey(()).of
"""What an aggregate is called as a source of upserts."""

KIND_IF: Final = "KindIf"
"""Call of (kind, condition): the kind where the condition is true, else `-D`; of (kind) alone: the kind."""


def is_marked(output: Output) -> bool:
    """Whether a column is such a kind."""
    return isinstance(output.value, Call) and output.value.name == KIND_IF


@dataclass(frozen=True)
class GroupKey:
    """One GROUP BY expression, and the columns of a plan that hold it, or the start or end of its window."""

    name: str
    ids: frozenset[int]
    window_ids: frozenset[int] = frozenset()


def group_keys(plan: Plan) -> tuple[GroupKey, ...] | None:
    """The key of the upserts that a plan gives; None where it gives none, or those of a topic."""
    match plan:
        case SignedAggregate(groups=groups, outputs=outputs):
            return tuple(held_by(group.by, outputs) for group in groups)
        case Changelog(columns=columns, origin=Upserts(UpsertKey(keys=names))):
            return tuple(
                GroupKey(" or ".join(held), frozenset(c.id for c in columns if c.name in held))
                for held in names
            )
        case Project(child, outputs):
            below = group_keys(child)
            return None if below is None else tuple(_followed(key, outputs) for key in below)
        case Filter() | Watermark() | Wrapper():
            return group_keys(plan.child)
        case _:
            return None


def upsert_key(plan: Plan) -> UpsertKey:
    """The key of a plan that gives upserts, by the names of its columns."""
    keys = group_keys(plan) or ()
    held = tuple(tuple(column.name for column in plan.columns if column.id in key.ids) for key in keys)
    constants = tuple(column.name for column in plan.columns if _is_constant(column, plan))
    return replace(_made_by(plan), keys=held, constants=constants)


def _made_by(plan: Plan) -> UpsertKey:
    """The key that the source of the upserts has, for what else it says of them."""
    match chain_of(plan).leaf:
        case Changelog(origin=Upserts(key)):
            return key
        case _:
            return UpsertKey(())


def uses_keys_only(expr: Expr, keys: Sequence[GroupKey]) -> bool:
    """Whether an expression is computed from group keys and constants: it has a value also in a delete."""
    if isinstance(expr, Column):
        return any(expr.id in key.ids for key in keys)
    return all(uses_keys_only(arg, keys) for arg in expr.args)


def sink_is_keyed_by_groups(plan: Plan, sink_key: Sequence[str]) -> str | None:
    """The sink must replace a row exactly where the upserts have another one of the same key."""
    keys = group_keys(plan) or ()
    what = "group" if _made_by(plan).of == AGGREGATE else "upsert key"
    if not sink_key:
        return "the sink has no primary key"
    found: set[GroupKey] = set()
    for name in sink_key:
        column = next((column for column in plan.columns if column.name == name), None)
        if column is None:
            return f"the sink's key column {name!r} is no column of the query"
        held = {key for key in keys if column.id in key.ids}
        if not held and not _is_constant(column, plan):
            return f"the sink's key column {name!r} is no {what} column"
        found |= held
    missing = [key.name for key in keys if key not in found]
    if missing:
        return f"the sink's key ({', '.join(sink_key)}) lacks the {what} column(s) {', '.join(missing)}"
    return None


def held_by(by: GroupBy, outputs: Sequence[Output]) -> GroupKey:
    """The key of one GROUP BY expression, as the columns of its aggregate hold it."""
    value = without_widening(by.value)
    same = frozenset(o.column.id for o in outputs if without_widening(o.value) == value)
    if by.window is None or not isinstance(value, Column):
        return GroupKey(without_ids(value), same)
    parts = frozenset(o.column.id for o in outputs if _is_part_of(o.value, frozenset({value.id})))
    return GroupKey(value.name, same | parts, same)


def _followed(key: GroupKey, outputs: Sequence[Output]) -> GroupKey:
    """The key as it is known above a projection."""
    same = frozenset(o.column.id for o in outputs if _is_one_of(o.value, key.ids))
    whole = frozenset(o.column.id for o in outputs if _is_one_of(o.value, key.window_ids))
    parts = frozenset(o.column.id for o in outputs if _is_part_of(o.value, key.window_ids))
    return GroupKey(key.name, same | parts, whole)


def _is_one_of(expr: Expr, ids: frozenset[int]) -> bool:
    inner = without_widening(expr)
    return isinstance(inner, Column) and inner.id in ids


def _is_part_of(expr: Expr, windows: frozenset[int]) -> bool:
    """Whether the expression is a window's start or end: windows have one length, so either tells."""
    match without_widening(expr):
        case Call("GetStructField", (Column(number),)):
            return number in windows
        case _:
            return False


def _is_constant(column: Column, plan: Plan) -> bool:
    match plan:
        case Project(child, outputs):
            value = next((o.value for o in outputs if o.column == column), None)
            return isinstance(value, Literal) or (isinstance(value, Column) and _is_constant(value, child))
        case SignedAggregate(outputs=outputs):
            return any(o.column == column and isinstance(o.value, Literal) for o in outputs)
        case Changelog(origin=Upserts(UpsertKey(constants=names))):
            return column.name in names and column in plan.columns
        case Filter() | Watermark() | Wrapper():
            return _is_constant(column, plan.child)
        case _:
            return False
