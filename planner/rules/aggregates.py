"""Rules on aggregates and DISTINCT over changes: by signed sums, by lookups of groups, or refused (pure).

A managed table gives each change the METADATA of its own commit: the change that takes a row away has other
values than the one that brought it. What passes rows on may carry such *unstable* columns; what finds the
rows of a group by them, or leaves rows out by them, would not take away what it has counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from deltajoin.aggregate.spec import Measure as Computation
from deltajoin.aggregate.spec import of_table
from deltajoin.expressions import Call as InsideCall
from deltajoin.expressions import Condition, Ref
from planner.plan.expressions import (
    Aggregation,
    Column,
    Expr,
    Literal,
    columns_of,
    without_ids,
    without_kinds,
)
from planner.plan.keys import group_keys, is_unique_by
from planner.plan.nodes import (
    Aggregate,
    Changelog,
    Computed,
    DeltaJoin,
    Distinct,
    Filter,
    Generate,
    Group,
    GroupBy,
    Join,
    LookupAggregate,
    Measure,
    Output,
    Plan,
    Project,
    RegularJoin,
    SignedAggregate,
    SlidingWindows,
    Union,
    Watermark,
    WindowKind,
)
from planner.plan.sources import KafkaTopic, ManagedTable, Mode, index_within
from planner.plan.translate import NotTranslatableError, translated
from planner.plan.trees import (
    aggregations,
    chain_of,
    children,
    expressions,
    fresh_ids,
    inlined,
    is_observed,
    reads_changes,
    row_kind_of,
    sources,
    transform_up,
    walk,
)
from planner.refusals import Refused, Rewrite, adding_index, first_refusal, not_held, read_apart
from planner.rules.row_kinds import carry_row_kind
from planner.settings import Settings
from planner.signed_sums import SIGNED, is_summable
from upsert.conditions.evaluate import check_is_condition
from upsert.errors import ConfigurationError, SchemaError
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.store.rows.measures import result_type


def drop_needless_distinct(node: Plan, _settings: Settings) -> Plan | Refused | None:
    """Leave out DISTINCT and dropDuplicates over changes whose columns hold the key of every table below.

    No two rows are equal in them at any time, so nothing is to be dropped. Where whole rows can be equal,
    `group_distinct` counts them. A dropDuplicates by some columns is refused: it does not say which row
    stays, and so not which one comes back when that goes.
    """
    if not isinstance(node, Distinct) or not reads_changes(node):
        return None
    keys = without_kinds(node.keys)
    if is_unique_by(node.child, keys):
        return node.child
    if node.is_of_whole_rows:
        return None
    named = ", ".join(key.name for key in keys)
    return Refused(
        f"dropDuplicates by ({named}) over the changes of {sources(node)} would treat deleted rows as rows, "
        "and does not say which of several rows stays",
        f"write the changes into a managed table with PRIMARY KEY ({named}), or take max_by(…) with "
        f"GROUP BY {named}",
    )


def group_distinct(node: Plan, _settings: Settings) -> Plan | None:
    """Make DISTINCT of whole rows over changes a GROUP BY of all columns, which `replace_aggregate` signs.

    So the rows of a group are counted, and its one row goes with the last of them. Comes after
    `drop_needless_distinct`: what is left can have equal rows.
    """
    if not isinstance(node, Distinct) or not reads_changes(node) or not node.is_of_whole_rows:
        return None
    keys = without_kinds(node.keys)
    return Aggregate(node.child, tuple(map(GroupBy, keys)), tuple(Output(key, key) for key in keys))


def _unstable_columns(plan: Plan) -> dict[int, str]:
    """Ids of the unstable columns of a plan and all below, and the METADATA column that each is made of."""
    found: dict[int, str] = {}
    for child in children(plan):
        found |= _unstable_columns(child)
    made: list[tuple[Column, Sequence[Expr]]] = []
    match plan:
        case Changelog(origin=ManagedTable(changing=names)):
            found |= {column.id: column.name for column in plan.columns if column.name in names}
        case Project():
            made = [(output.column, [output.value]) for output in plan.outputs]
        case Generate():
            made = [(column, [plan.generator]) for column in plan.made]
        case SlidingWindows():
            made = [(plan.made, plan.values)]
        case Union():
            first, *others = (without_kinds(one.columns) for one in plan.inputs)
            for other in others:
                pairs = zip(other, first, strict=True)
                found |= {column.id: found[own.id] for own, column in pairs if own.id in found}
    for column, values in made:
        if (name := _first_unstable(values, found)) is not None:
            found[column.id] = name
    return found


def _first_unstable(exprs: Iterable[Expr], unstable: Mapping[int, str]) -> str | None:
    """The METADATA column that one of some expressions is made of; None for none."""
    used = columns_of(*exprs)
    return next((name for id, name in unstable.items() if id in used), None)


_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")

_EXACT_DIGITS: Final = 28
"""Digits of a DECIMAL that may be added up ten billion times: a sum has ten digits more, at most 38."""

_BY_COLUMN: Final = "use min_by(value, column) or max_by(value, column), which say what they go by"

_BY_ORDER: Final = {
    "AnyValue": "use min(value), which is one of them",
    "First": _BY_COLUMN,
    "Last": _BY_COLUMN,
    "ListAgg": "use array_join(array_sort(collect_list(value)), ', '), which has an order",
}
"""Functions whose result the order of rows decides, and what to use instead."""


def changes_are_whole(node: Aggregate) -> Refused | None:
    """Upserts do not say what they replace, so it cannot be taken out of the group it was in."""
    for leaf in walk(node.child):
        match leaf:
            case Changelog(origin=KafkaTopic(mode=Mode.UPSERT) as topic):
                return Refused(
                    f"an aggregate over {topic.name!r}, read with changelog = 'upsert', cannot take out the "
                    "rows that upserts replace",
                    "read the topic with changelog = 'all', or make its changes whole with "
                    "upsert.normalize(df, key=[…], order_by=…)",
                )
    return None


def changes_are_read_from_the_beginning(node: Aggregate) -> Refused | None:
    """What was never counted must not be taken away."""
    for leaf in walk(node.child):
        match leaf:
            case Changelog(name, origin=ManagedTable(scan_mode=mode)) if mode != "full":
                option = "scan.mode"
            case Changelog(name, origin=KafkaTopic(starts_late=str(mode))):
                option = "scan.startup.mode"
            case _:
                continue
        return Refused(
            f"an aggregate over {name!r}, read with {option} = {mode!r}, would delete rows that it never "
            "counted",
            f"leave out {option!r}",
        )
    return None


def groups_are_no_sessions(node: Aggregate) -> Refused | None:
    """Where a session begins and ends depends on all of its rows, so one that goes may split it."""
    if any(group.window is WindowKind.SESSION for group in node.groups):
        return Refused(
            f"session_window over the changes of {sources(node)}: a deleted row may split a session, which "
            "sums of signed rows cannot detect",
            "group by window(…), or by a session's id that is written with its rows",
        )
    return None


def functions_need_no_order(node: Aggregate) -> Refused | None:
    """Which row is the first is not defined for the rows of a table, and less so for its changes."""
    for function in aggregations(node.outputs):
        if (remedy := _BY_ORDER.get(function.name)) is not None:
            return Refused(
                f"{without_ids(function)} over the changes of {sources(node)} depends on the order in which "
                "rows come, which changes do not have",
                remedy,
            )
    return None


def groups_are_of_lasting_values(node: Aggregate) -> Refused | None:
    """A row must leave the group that it came into, so nothing may go by metadata of the change."""
    deciding = (below for below in walk(node.child) if isinstance(below, Filter | Join))
    used = (expr for one in (node, *deciding) for expr in expressions(one))
    found = _first_unstable(used, _unstable_columns(node.child))
    if found is None:
        return None
    return Refused(
        f"an aggregate over the changes of {sources(node)} uses {found!r}, metadata of a change: the "
        "deletion of a row has another value",
        "leave the column out of groups, functions and the conditions below, or write the changes into a "
        "table with catalog.write_changes and group its rows",
    )


AGGREGATE_CONDITIONS: Final = (
    changes_are_whole,
    changes_are_read_from_the_beginning,
    groups_are_no_sessions,
    groups_are_of_lasting_values,
    functions_need_no_order,
)
"""What every aggregate over changes must fulfil."""


def functions_are_sums(node: Aggregate) -> str | None:
    """What a signed sum cannot answer must be computed again from all rows of the group."""
    for function in aggregations(node.outputs):
        if function.name not in SIGNED:
            return f"{without_ids(function)} is no sum"
        if function.is_distinct:
            return f"{without_ids(function)} counts values, not rows"
    return None


def sums_can_be_undone(node: Aggregate) -> Refused | None:
    """A sum that has left its type's range never comes back."""
    for function in aggregations(node.outputs):
        if function.name not in ("Sum", "Average"):
            continue
        (type_,) = function.types
        if not is_summable(type_):
            return Refused(
                f"{without_ids(function)} over the changes of {sources(node)} is of type {type_}, whose sums "
                "cannot be taken apart here",
                "sum a number, such as the microseconds of an interval",
            )
        is_loud = any("ANSI" in value for _, value in function.detail)
        if not is_loud and (remedy := instead_of_sum(type_)) is not None:
            return Refused(
                f"{without_ids(function)} over the changes of {sources(node)} is of type {type_}: a sum that "
                "overflows becomes NULL, and would stay NULL when rows are deleted",
                remedy,
            )
    return None


def instead_of_sum(type_: str) -> str | None:
    """What to write where sums of a type may overflow without ANSI mode; None where they do not.

    >>> instead_of_sum("decimal(28,2)"), instead_of_sum("bigint")
    (None, None)
    """
    found = _DECIMAL.fullmatch(type_)
    if found is None or int(found[1]) <= _EXACT_DIGITS:
        return None
    return (
        f"write CAST(… AS DECIMAL({_EXACT_DIGITS}, {min(int(found[2]), _EXACT_DIGITS)})), or set "
        "spark.sql.ansi.enabled, which makes an overflow an error"
    )


def replace_aggregate(node: Plan, settings: Settings) -> Plan | Refused | None:
    """Replace a GROUP BY of changes by sums of signs, which Spark's own aggregation keeps by group.

    Only when all `AGGREGATE_CONDITIONS` hold. Its input is cut down to what groups and functions need;
    watermarks below are left out, since a change that comes late must still count.
    """
    if not isinstance(node, Aggregate) or not reads_changes(node):
        return None
    if group_keys(node.child) is not None:
        return None  # the business of refuse_over_groups
    if refused := first_refusal(AGGREGATE_CONDITIONS, node):
        return refused
    if reason := functions_are_sums(node):
        return lookup_aggregate(node, reason)
    if refused := sums_can_be_undone(node):
        return refused
    # an aggregate below that this rule has just replaced has a kind now
    child = transform_up(node.child, lambda below: carry_row_kind(below, settings) or below)
    row_kind = row_kind_of(child)
    return _without_kind(node) if row_kind is None else _signed(replace(node, child=child), row_kind)


def _signed(node: Aggregate, row_kind: Column) -> SignedAggregate:
    ids = fresh_ids(node)
    groups, measures, inputs = list[Group](), list[Measure](), list[Output]()

    def column(name: str, type_: str, value: Expr) -> Column:
        made = Column(next(ids), name, type_)
        inputs.append(Output(made, value))
        return made

    for number, by in enumerate(node.groups):
        type_ = by.value.type if isinstance(by.value, Column) else "computed"
        groups.append(Group(by, column(f"group_{number}", type_, by.value)))
    for number, function in enumerate(aggregations(node.outputs)):
        given = enumerate(zip(function.types, function.values, strict=True))
        values = tuple(column(f"value_{number}_{n}", type_, value) for n, (type_, value) in given)
        where = function.condition
        condition = None if where is None else column(f"condition_{number}", "boolean", where)
        measures.append(Measure(function, values, condition))
    child = Project(transform_up(node.child, _for_sums), (*inputs, Output.of(row_kind)))
    new_kind = Column(next(ids), ROW_KIND_COLUMN, "string")
    return SignedAggregate(child, tuple(groups), tuple(measures), node.outputs, new_kind)


def _for_sums(node: Plan) -> Plan:
    """A node below sums of signs: late rows must not be dropped, opposite rows may come to the sums."""
    match node:
        case Watermark(child):
            return child
        case DeltaJoin():
            return replace(node, is_net=False)
        case _:
            return node


def _without_kind(node: Aggregate) -> Refused | None:
    """A join or an aggregate below that could not be replaced has said why; nothing else loses the kind."""
    if any(isinstance(below, Join | Aggregate) and reads_changes(below) for below in walk(node.child)):
        return None
    return Refused(
        f"the changes of {sources(node)} have lost their {ROW_KIND_COLUMN!r} below an aggregate",
        "write planner.optimize(df) of the whole query; if this is it, report it as a bug",
    )


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
    leaf = chain_of(node.child).leaf
    table = _looked_up(leaf, node, what)
    if isinstance(table, Refused):
        return table
    if refused := not_held(table, Rewrite.AGGREGATE):
        return Refused(f"{what}, and {refused.reason}", refused.remedy)
    if is_observed(node.child):
        return Refused(
            f"{what}, and the rows of {table.name!r} are observed, which such an aggregate does not read",
            "call observe on the aggregated DataFrame",
        )
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
            return Refused(reason, adding_index(table.name, (key.name for key in keys)))
        return _made(node, table, leaf, keys, index)
    except _NotComputableError as fault:
        return Refused(f"{what}; but {fault}", fault.remedy)


def _looked_up(leaf: Plan, node: Aggregate, what: str) -> ManagedTable | Refused:
    """The table whose rows an aggregate looks up, by what it reads; ``what`` it needs begins a refusal."""
    match leaf:
        case Changelog(origin=ManagedTable() as table):
            return table
        case Changelog(origin=KafkaTopic(mode=mode, mirror=ManagedTable() as table)) if mode != Mode.UPSERT:
            return table
        case Changelog(origin=KafkaTopic(mode=mode, apart=str()) as topic) if mode != Mode.UPSERT:
            how, remedy = read_apart(topic)
            return Refused(f"{what}, and the query {how}", remedy)
        case Changelog(origin=KafkaTopic(mode=mode, table=str(name))) if mode != Mode.UPSERT:
            return Refused(
                f"{what}, and a topic cannot be looked up",
                f"mirror the topic in a managed table: start catalog.mirror(spark, {name!r})",
            )
        case DeltaJoin() | RegularJoin():
            return Refused(
                f"{what}, and the rows of a join cannot be looked up",
                f"write the join into a managed table with {_index_on(node)}, catalog.write_changes, and "
                "aggregate that table's changes, catalog.read_changes",
            )
    return Refused(f"{what}, and the aggregate does not read one managed table", _ON_A_TABLE)


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
    measures = []
    for number, function in enumerate(aggregations(node.outputs)):
        computation = _computation(function, node.child, refs, table)
        measures.append(Computed(function, computation, Column(next(ids), f"result_{number}", "computed")))
    kind = Column(next(ids), ROW_KIND_COLUMN, "string")
    filters = [below for below in chain_of(node.child).nodes if isinstance(below, Filter)]
    where = _all_of([_condition(one.condition, one.child, refs, table) for one in filters])
    return LookupAggregate(table, groups, tuple(by_name), index, tuple(measures), where, node.outputs, kind)


def _computation(
    function: Aggregation, plan: Plan, refs: Mapping[int, Ref], table: ManagedTable
) -> Computation:
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
    measure = Computation(name, columns, function.is_distinct, where)
    try:
        result_type(measure.function, [table.schema.type_of(column) for column in columns])
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
