"""Rules that leave unread what the query does not use: rows, columns, and records of topics (pure).

What is pushed down only has to leave out nothing that the query keeps, because the query applies its own
conditions again. Offsets of a topic grow within a partition, so they are bounded on both sides. The times of
records need not grow: everything before the *first* record of a time may be left out, nothing after one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from deltajoin import expressions as inside
from deltajoin.expressions import Condition, refs_of
from deltajoin.tree import columns_of as columns_of_tree
from deltajoin.tree import null_supplied, visible
from planner.plan.expressions import (
    INTEGER_WIDTHS,
    Call,
    Expr,
    columns_of,
    conjunction,
    conjuncts,
    walk_expression,
)
from planner.plan.nodes import (
    Aggregate,
    Changelog,
    DeltaJoin,
    Filter,
    Generate,
    Join,
    Output,
    Plan,
    Project,
    RegularJoin,
    Relation,
    SlidingWindows,
    Watermark,
    Wrapper,
)
from planner.plan.sources import KafkaTopic, Mode, RecordRange
from planner.plan.translate import NotTranslatableError, predicates_of, translated
from planner.plan.trees import (
    Chain,
    chain_of,
    children,
    expressions,
    inlined,
    is_observed,
    static_input,
    trace,
    transform_down,
    transform_up,
    walk,
    with_children,
)
from planner.settings import Settings
from upsert.conditions.evaluate import check_is_condition
from upsert.errors import ConfigurationError


def push_filters(node: Plan, _settings: Settings) -> Plan | None:
    """Hand what a filter over a delta join says of one table's columns to that table of the join.

    Only what `predicates_of` translates, and only of tables that every row has a part of: without a
    row of any other table, an outer join would put out a row of NULLs. The filter itself stays: the table may
    keep rows that the filter drops, never the other way round. What is observed below the filter are rows
    that it drops, too.
    """
    if not isinstance(node, Filter) or not isinstance(join := chain_of(node).leaf, DeltaJoin):
        return None
    if is_observed(node):
        return None
    found = [one for part in conjuncts(node.condition) for one in predicates_of(part, node.child)]
    always_there = visible(join.tree) - null_supplied(join.tree)
    tables = []
    for number, table in enumerate(join.tables):
        own = [part for column, part in found if column in table.columns and number in always_there]
        tables.append(replace(table, where=tuple(dict.fromkeys((*table.where, *own)))))
    narrowed = replace(join, tables=tuple(tables))
    if narrowed == join:
        return None
    return transform_up(node, lambda below: narrowed if below is join else below)


_CAN_FAIL: Final = frozenset({"+", "-", "*", "neg", "abs"})
"""Operators that must not see rows which another filter leaves out."""


def keep_rows_inside(node: Plan, _settings: Settings) -> Plan | None:
    """Move a filter above a delta join into it, if it is all that uses some column.

    So that the column need not come out. An update of it would come out as a row and its opposite, since
    both its images pass the filter and are equal in all that the query gives. Other filters stay with Spark,
    and those above what is observed. `prune_columns` has to come after this.
    """
    chain = chain_of(node)
    if not isinstance(join := chain.leaf, DeltaJoin):
        return None
    # parts of the filters: number of the node, and a condition that must hold there
    found = {
        (number, part): condition
        for number, below in enumerate(chain.nodes)
        if isinstance(below, Filter) and not is_observed(below)
        for part in conjuncts(below.condition)
        if (condition := _inside(inlined(part, below.child), join)) is not None
    }
    others = _used_besides(node, chain, found)
    moved = {
        (number, part): condition
        for (number, part), condition in found.items()
        if not columns_of(inlined(part, chain.nodes[number].child)) <= others
    }
    if not moved:
        return None
    plan: Plan = replace(join, keep=inside.conjunction(join.keep, *moved.values()))
    for number, below in enumerate(chain.nodes):
        if isinstance(below, Filter) and any(at == number for at, _ in moved):
            rest = [part for part in conjuncts(below.condition) if (number, part) not in moved]
            plan = plan if (left := conjunction(rest)) is None else Filter(plan, left)
        else:
            plan = with_children(below, [plan])
    return plan


def _inside(expr: Expr, join: DeltaJoin) -> Condition | None:
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


_PRUNED: Final = DeltaJoin | RegularJoin | Join | Generate | SlidingWindows


def prune_columns(node: Plan, _settings: Settings) -> Plan | None:
    """Drop what a Project does not use from the Project, the join or the generator below it.

    A Project that only chooses columns of a delta join, for one above it, is dropped itself.

    Spark prunes columns too, but neither into the rows that come from Python, nor from what a regular join
    keeps in its state. Works downwards: a Project that was pruned asks for less. What a delta join compares
    is always read; what nothing above uses does not come out of it, so rows that differ in it alone cancel.
    """
    if not isinstance(node, Project) or not isinstance(leaf := chain_of(node).leaf, _PRUNED):
        return None
    used = columns_of(*expressions(node))
    pruned = _pruned(node.child, used)
    while isinstance(leaf, DeltaJoin) and isinstance(pruned, Project) and _only_chooses(pruned):
        pruned = _pruned(pruned.child, used)
    return None if pruned is node.child else with_children(node, [pruned])


def _only_chooses(project: Project) -> bool:
    return not project.known_keys and all(output.value == output.column for output in project.outputs)


def _pruned(plan: Plan, needed: frozenset[int]) -> Plan:
    match plan:
        case Project():
            kept = tuple(output for output in plan.outputs if output.column.id in needed)
            return plan if len(kept) == len(plan.outputs) else replace(plan, outputs=kept, ref=None)
        case Filter() | Watermark() | Wrapper():
            return with_children(plan, [_pruned(plan.child, needed | columns_of(*expressions(plan)))])
        case DeltaJoin():
            return plan if (slim := _slim(plan, needed)) == plan else slim
        case Join() if static_input(plan) is None:
            return plan
        case RegularJoin() | Join() | SlidingWindows() | Generate():
            used = needed | columns_of(*expressions(plan))
            return with_children(plan, [_chosen(child, used) for child in children(plan)])
        case Relation() | Changelog() if _may_be_read_in_part(plan):
            return _read_in_part(plan, needed)
        case _:
            return plan


def read_used_columns(top: Plan, _settings: Settings) -> Plan | None:
    """Read of a topic only the columns that a Project or an Aggregate above it uses.

    Between them may be what passes rows on one by one. What Spark keeps as state above is made of the columns
    that are used, so it is the same. A topic that is normalized is read whole: the rows that are remembered
    do not follow the query, which may have other columns when it starts again. So is one that two branches of
    a union have in common, which is one source to Spark and in its checkpoint.
    """
    shared = _shared_columns(top)

    def change(node: Plan) -> Plan:
        if not isinstance(node, Project | Aggregate):
            return node
        leaf = chain_of(node.child).leaf
        if not _may_be_read_in_part(leaf) or any(column.id in shared for column in leaf.columns):
            return node
        return with_children(node, [_pruned(node.child, columns_of(*expressions(node)))])

    after = transform_down(top, change)
    return None if after is top else after


def _shared_columns(top: Plan) -> frozenset[int]:
    """The columns of sources that several branches of a union have in common."""
    leaves = (leaf for leaf in walk(top) if isinstance(leaf, Relation | Changelog))
    count = Counter(column.id for leaf in leaves for column in leaf.columns)
    return frozenset(id for id, times in count.items() if times > 1)


def _may_be_read_in_part(leaf: Plan) -> bool:
    match leaf:
        case Relation(topic=KafkaTopic()):
            return True
        case Changelog(origin=KafkaTopic(mode=mode)):
            return mode in (Mode.UPSERT, Mode.CDC, Mode.CDC_NET)
        case _:
            return False


def _read_in_part(leaf: Relation | Changelog, needed: frozenset[int]) -> Plan:
    """The leaf with the needed columns, and at least one."""
    kept = tuple(column for column in leaf.columns if column.id in needed or column.is_row_kind)
    kept = kept or leaf.columns[:1]
    return leaf if len(kept) == len(leaf.columns) else replace(leaf, columns=kept, ref=None)


def _chosen(plan: Plan, needed: frozenset[int]) -> Plan:
    kept = [column for column in plan.columns if column.id in needed or column.is_row_kind]
    return plan if len(kept) == len(plan.columns) else Project(plan, tuple(map(Output.of, kept)))


def _slim(join: DeltaJoin, needed: frozenset[int]) -> DeltaJoin:
    refs = (*columns_of_tree(join.tree), *refs_of(join.keep))
    compared = {(ref.table, ref.column) for ref in refs}
    tables = []
    for number, table in enumerate(join.tables):
        out = tuple(column for column in table.emitted if column.id in needed)
        rest = tuple(c for c in table.columns if c not in out and (number, c.name) in compared)
        tables.append(replace(table, columns=(*out, *rest), compared=frozenset(rest)))
    flags = tuple((number, flag) for number, flag in join.present if flag.id in needed)
    return replace(join, tables=tuple(tables), present=flags)


def narrow_kafka_range(top: Plan, _settings: Settings) -> Plan | None:
    """Hand what a filter says of a record's partition, offset and time to the source, as its options.

    Only what `range_of` finds, in addition to what the query's own options say. The filter itself stays. A
    source with a normalizer is left alone: it must see every change of a key. A query that continues from its
    checkpoint with a wider filter reads what it left unread, except what lies before its first offsets. A
    source that two branches of a union have in common is one to Spark and in its checkpoint, and stays so.
    """
    shared = _shared_columns(top)
    after = transform_up(top, lambda node: _with_narrowed_topic(node, shared))
    return None if after is top else after


def _with_narrowed_topic(node: Plan, shared: frozenset[int]) -> Plan:
    if not isinstance(node, Filter):
        return node
    match leaf := chain_of(node).leaf:
        case Changelog(origin=KafkaTopic(mode=Mode.CDC) as topic) | Relation(topic=KafkaTopic() as topic):
            range_ = topic.range & range_of(node, topic)
        case _:
            return node
    if range_ == topic.range or range_.is_empty or any(column.id in shared for column in leaf.columns):
        return node
    narrowed = topic.within(range_)
    source: Plan = (
        replace(leaf, origin=narrowed, ref=None)
        if isinstance(leaf, Changelog)
        else replace(leaf, topic=narrowed, ref=None)
    )
    return transform_up(node, lambda below: source if below is leaf else below)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST: Final = (1 << 63) - 1
_HIGHEST_PARTITION: Final = (1 << 31) - 1


def range_of(node: Filter, topic: KafkaTopic) -> RecordRange:
    """The records of the topic, the leaf of the filter's chain, that the filter can be true of.

    All of them where leaving some out would change more than what the filter drops: counts, random values.
    """
    exprs = (expr for one in chain_of(node).nodes for expr in expressions(one))
    calls = (part for expr in exprs for part in walk_expression(expr) if isinstance(part, Call))
    found = RecordRange()
    if is_observed(node) or not all(call.is_deterministic for call in calls):
        return found
    for part in conjuncts(node.condition):
        for narrower in _ranges(part, node.child, topic):
            found &= narrower
    return found


def _ranges(condition: Expr, plan: Plan, topic: KafkaTopic) -> Iterator[RecordRange]:
    watermarks = [node for node in chain_of(plan).nodes if isinstance(node, Watermark)]
    for column, (_, operator, value) in predicates_of(condition, plan):
        if any(trace(node.column, node.child) == column for node in watermarks):
            continue  # it follows the values of the column
        is_number = column.type in INTEGER_WIDTHS
        match topic.metadata_key(column.name), operator:
            case "partition", "==" | "in" if is_number:
                numbers = value if operator == "in" else (value,)
                possible = {number for number in numbers if 0 <= number <= _HIGHEST_PARTITION}
                if possible:
                    yield RecordRange(partitions=tuple(sorted(possible)))
            case "offset", _ if is_number:
                yield from _offsets(operator, value)
            case "timestamp", "==" | ">" | ">=":
                yield from _times(column.type, operator, value)


def _offsets(operator: str, number: Any) -> Iterator[RecordRange]:
    if operator in ("==", ">", ">=") and 0 < (first := number + (operator == ">")) <= _LONGEST:
        yield RecordRange(offset_from=first)
    if operator in ("==", "<", "<=") and 0 < (end := number + (operator != "<")) <= _LONGEST:
        yield RecordRange(offset_until=end)


def _times(type_: str, operator: str, value: Any) -> Iterator[RecordRange]:
    """Lower bounds alone: a record that is too young may be followed by one that is not."""
    if type_ == "bigint":
        first = value + (operator == ">")
    elif type_ in ("timestamp", "timestamp_ntz"):
        micros = (value.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
        first = micros // 1000 + 1 if operator == ">" else -(-micros // 1000)
    else:
        return
    if 0 < first <= _LONGEST:
        yield RecordRange(timestamp_from=first)
