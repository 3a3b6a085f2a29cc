"""An aggregate that signed sums cannot answer, by looking the rows of its groups up; or why not (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from deltajoin.aggregate.evaluate import result_type
from deltajoin.aggregate.spec import Measure, of_table
from deltajoin.core.conditions import check_is_condition
from deltajoin.expressions import Call as InsideCall
from deltajoin.expressions import Condition, Ref
from planner.plan.chains import chain_of, inlined
from planner.plan.expressions import Aggregation, Column, Expr, Literal, without_ids, without_kinds
from planner.plan.nodes import (
    Aggregate,
    Changelog,
    Computed,
    DeltaJoin,
    Filter,
    Group,
    LookupAggregate,
    Plan,
    RegularJoin,
)
from planner.plan.sources import KafkaTopic, ManagedTable, Mode, index_within
from planner.plan.translate import NotTranslatableError, translated
from planner.plan.trees import aggregations, fresh_ids
from planner.refusals import Refused, Rewrite, not_held, read_apart
from upsert.errors import ConfigurationError, SchemaError
from upsert.rowkind import ROW_KIND_COLUMN

_FUNCTIONS: Final[Mapping[str, str]] = {
    "Average": "avg",
    "BoolAnd": "min",
    "BoolOr": "max",
    "CollectList": "collect_list",
    "CollectSet": "collect_set",
    "Count": "count",
    "Max": "max",
    "MaxBy": "max_by",
    "Min": "min",
    "MinBy": "min_by",
    "Sum": "sum",
}
"""Catalyst class -> function of `deltajoin.aggregate`."""

_ON_A_SNAPSHOT: Final = "run it over a snapshot, catalog.read, of its input in a managed table"

_ON_A_TABLE: Final = (
    "write its input into a managed table with an INDEX on the group columns, with catalog.write_changes, "
    "and aggregate that table's changes"
)


class _NotComputableError(ValueError):
    """What cannot be computed by lookups, in words, and the remedy; caught in this module."""

    def __init__(self, fault: str, remedy: str = _ON_A_TABLE) -> None:
        super().__init__(fault)
        self.remedy = remedy


def lookup_aggregate(node: Aggregate, because: str) -> LookupAggregate | Refused:
    """The aggregate, which fulfils `AGGREGATE_CONDITIONS`, by lookups; `because` it is no signed sum."""
    what = f"{because}, so the rows of a group that changes must be looked up"
    match leaf := chain_of(node.child).leaf:
        case Changelog(origin=ManagedTable() as table):
            pass
        case Changelog(origin=KafkaTopic(mode=Mode.ALL, mirror=ManagedTable() as table)):
            pass
        case Changelog(origin=KafkaTopic(mode=Mode.ALL, apart=str()) as topic):
            how, remedy = read_apart(topic)
            return Refused(f"{what}, and the query {how}", remedy)
        case Changelog(origin=KafkaTopic(mode=Mode.ALL, table=str(name))):
            return Refused(
                f"{what}, and a topic cannot be looked up",
                f"mirror the topic in a managed table: start catalog.mirror(spark, {name!r})",
            )
        case DeltaJoin() | RegularJoin():
            return Refused(
                f"{what}, and the rows of a join are nowhere to be looked up",
                f"write the join into a managed table with {_index_on(node)}, catalog.write_changes, and "
                "aggregate that table's changes, catalog.read_changes",
            )
        case _:
            return Refused(f"{what}, and the aggregate does not read one managed table", _ON_A_TABLE)
    if refused := not_held(table, Rewrite.AGGREGATE):
        return Refused(f"{what}, and {refused.reason}", refused.remedy)
    if not node.groups:
        return Refused(
            f"{what}, and an aggregate without GROUP BY would look every row up",
            "group by a column, or run it over a snapshot, catalog.read",
        )
    try:
        keys = tuple(_stored(group.value, node.child) for group in node.groups)
        index = index_within(table.schema, {key.name for key in keys})
        if index is None:
            names = ", ".join(key.name for key in keys)
            reason = f"{what}, and no PRIMARY KEY prefix or INDEX of {table.name!r} lies within ({names})"
            return Refused(reason, f"add INDEX ({names}) to {table.name}")
        return _made(node, table, leaf, keys, index)
    except _NotComputableError as fault:
        return Refused(f"{what}; but {fault}", fault.remedy)


def _index_on(node: Aggregate) -> str:
    """The index that a table must have to serve the groups, in words."""
    computed = [without_ids(group.value) for group in node.groups if not isinstance(group.value, Column)]
    if computed or not node.groups:
        return f"{' and '.join(computed) or 'what to group by'} as columns and an INDEX on the group columns"
    return f"INDEX ({', '.join(without_ids(group.value) for group in node.groups)})"


def _made(
    node: Aggregate, table: ManagedTable, leaf: Plan, keys: tuple[Column, ...], index: str
) -> LookupAggregate:
    ids = fresh_ids(node)
    refs = {column.id: of_table(column.name) for column in without_kinds(leaf.columns)}
    by_name = {key.name: key for key in keys}  # GROUP BY k, k
    made = {
        name: replace(key, id=next(ids), name=f"group_{number}", ref=None)
        for number, (name, key) in enumerate(by_name.items())
    }
    groups = tuple(Group(by, made[key.name]) for by, key in zip(node.groups, keys, strict=True))
    measures = tuple(
        Computed(
            function,
            _computation(function, node.child, refs, table),
            Column(next(ids), f"result_{number}", "computed"),
        )
        for number, function in enumerate(aggregations(node))
    )
    kind = Column(next(ids), ROW_KIND_COLUMN, "string")
    names = tuple(by_name)
    where = _all_of([_condition(part, below, refs, table) for part, below in _filters(node.child)])
    return LookupAggregate(table, groups, names, index, measures, where, node.outputs, kind)


def _computation(function: Aggregation, plan: Plan, refs: Mapping[int, Ref], table: ManagedTable) -> Measure:
    conditions = [] if function.condition is None else [function.condition]
    values = list(function.values)
    name = _FUNCTIONS.get(function.name)
    if function.name == "CountIf":
        name, conditions, values = "count", [*conditions, *values], []
    if name == "count":
        values = [value for value in values if not isinstance(value, Literal) or value.value is None]
    detail = dict(function.detail)
    if name is None or detail.get("ignoreNulls", "true").lower() == "false":
        raise _NotComputableError(f"{without_ids(function)} is not computed by lookups", _ON_A_SNAPSHOT)
    if name in ("sum", "avg") and not any("ANSI" in value for value in detail.values()):
        raise _NotComputableError(
            f"{without_ids(function)} would have to overflow as it does without ANSI mode",
            "set spark.sql.ansi.enabled, which makes an overflow an error",
        )
    columns = tuple(_stored(value, plan).name for value in values)
    where = _all_of([_condition(part, plan, refs, table) for part in conditions])
    measure = Measure(name, columns, function.is_distinct, where)
    try:
        result_type(measure, tuple(table.schema.type_of(column) for column in columns))
    except SchemaError as cause:
        raise _NotComputableError(str(cause)) from cause
    return measure


def _stored(expr: Expr, plan: Plan) -> Column:
    """The stored column that an expression is."""
    found = inlined(expr, plan)
    if not isinstance(found, Column):
        raise _NotComputableError(f"{without_ids(found)} is computed, and only stored columns are looked up")
    return found


def _condition(expr: Expr, plan: Plan, refs: Mapping[int, Ref], table: ManagedTable) -> Condition:
    whole = inlined(expr, plan)
    try:
        condition = translated(whole, refs)
        check_is_condition(condition, lambda ref: table.schema.type_of(ref.column))
    except (NotTranslatableError, ConfigurationError, SchemaError) as cause:
        raise _NotComputableError(f"the condition {without_ids(whole)} cannot be checked there") from cause
    return condition


def _all_of(conditions: list[Condition]) -> Condition | None:
    if len(conditions) < 2:
        return conditions[0] if conditions else None
    return InsideCall("and", tuple(conditions))


def _filters(plan: Plan) -> Iterator[tuple[Expr, Plan]]:
    """The conditions of a chain, each with the plan whose columns it uses."""
    for node in chain_of(plan).nodes:
        if isinstance(node, Filter):
            yield node.condition, node.child
