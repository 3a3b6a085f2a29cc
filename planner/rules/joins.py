"""Rules on joins of changes: one delta join, else Spark's own join over signed rows, else refused (pure).

Conditions are tried in order, so a later one may rely on the earlier ones.

Spark's own join can be made right: signs multiplied, what cancels left out. An inner join is bilinear: what a
micro-batch adds to a join over signed rows is the change of the join. Spark never drops a row of either input
from its state, and must not: a row and its opposite meet each later row of the other side, and both results
cancel. So it is the second choice, for inputs of which one cannot be looked up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from planner.join_tree import KINDS, JoinTree
from planner.plan.expressions import conjunction, conjuncts, without_kinds
from planner.plan.nodes import (
    Aggregate,
    Changelog,
    DeltaJoin,
    Distinct,
    EnrichedUpserts,
    Filter,
    Join,
    JoinTable,
    Normalized,
    Opaque,
    Output,
    Plan,
    Project,
    RegularJoin,
    Relation,
    SignedAggregate,
    Upserts,
    Watermark,
)
from planner.plan.sources import KafkaTopic, ManagedTable, Mode
from planner.plan.trees import (
    at_join_trees,
    chain_of,
    equalities,
    is_observed,
    is_streaming,
    joins_changes,
    reads_changes,
    row_kind_of,
    sources,
    walk,
    with_children,
)
from planner.refusals import Refused, Rewrite, first_refusal, not_held, operator_in_words, read_apart
from planner.rules.temporal_joins import looked_up_side
from planner.rules.unsupported import changes_have_their_kind
from planner.settings import Settings
from planner.stacking import Stacker, with_hidden_ids


def merge_filter_into_join(node: Plan, _settings: Settings) -> Plan | None:
    """Make a filter right above an inner join of changelogs, or with lookups, a part of the join's condition.

    Equal for an INNER or CROSS join only: above an outer join a filter also drops padded rows.
    """
    match node:
        case Filter(Join(kind="inner" | "cross") as join, condition):
            if reads_changes(join) or looked_up_side(join) is not None:
                merged = conjunction((*conjuncts(join.condition), *conjuncts(condition)))
                return replace(join, kind="inner", condition=merged, ref=None)
    return None


def joins_of(join: Join) -> Iterator[Join]:
    """The join, and those that lie right below it, with nothing but projections and filters between."""
    for plan in (join.left, join.right):
        leaf = chain_of(plan).leaf
        if isinstance(leaf, Join) and joins_changes(leaf):
            yield from joins_of(leaf)
    yield join


def join_is_of_a_known_kind(join: Join) -> Refused | None:
    """What a delta join can do: INNER, LEFT, RIGHT, FULL, SEMI and ANTI."""
    if join.kind in KINDS:
        return None
    return Refused(
        f"the join over the changes of {sources(join)} is {join.kind!r}, a delta join must be one of "
        f"{', '.join(KINDS)}",
        "write it as one of these, or run it over snapshots of the tables, catalog.read",
    )


def inputs_have_their_kind(join: Join) -> Refused | None:
    """A row of a table without `_row_kind` may be one that went."""
    leaves = (chain_of(plan).leaf for _, plan in _inputs(join))
    return next((refused for leaf in leaves if (refused := changes_have_their_kind(leaf))), None)


def inputs_can_be_looked_up(join: Join) -> Refused | None:
    """The rows of the other side are found in a table; a topic is a log, and knows no row by its key."""
    for side, plan in _inputs(join):
        remedy = "write it into a managed table with catalog.write_changes and join the changes of that table"
        match chain_of(plan).leaf:
            case Changelog(origin=KafkaTopic(apart=str()) as topic):
                what, remedy = read_apart(topic)
            case Changelog(name, origin=KafkaTopic(table=table)):
                what = f"reads the topic {name!r}"
                if table is not None:
                    remedy = f"mirror the topic in a managed table: start catalog.mirror(spark, {table!r})"
            case Changelog(origin=Normalized()):
                what = "is made by upsert.normalize"
            case _:
                continue
        return Refused(
            f"the {side} input of the join {what}, and a delta join must look its rows up in a table",
            remedy,
        )
    return None


def inputs_are_changelogs(join: Join) -> Refused | None:
    """Both inputs must read the changes of one managed table each, through projections and filters alone."""
    for side, plan in _inputs(join):
        leaf = chain_of(plan).leaf
        if not reads_changes(plan):
            what = _rows_in_words(plan) if is_streaming(plan) else "a static DataFrame"
            return Refused(
                f"the {side} input reads no changelog; it is {what}",
                "keep its rows in a managed table and join the changes of that, catalog.read_changes",
            )
        if is_observed(plan):
            return Refused(
                f"the {side} input is observed, and a delta join emits only joined rows",
                "call observe on the joined DataFrame",
            )
        match leaf:
            case Changelog(origin=ManagedTable()):
                continue
            case Join() if joins_changes(leaf):
                continue
            case Changelog(origin=None) | DeltaJoin():
                return Refused(
                    f"the {side} input was optimized by itself",
                    "join first and optimize the whole query: planner.optimize(df)",
                )
            case Join():
                between = "a join with static rows"
            case RegularJoin():
                between = "Spark's own join"
            case _:
                between = operator_in_words(leaf)
        return Refused(
            f"between the {side} input and its table lies {between}, only projections and filters may",
            "apply it in another query and join the managed table which that one writes",
        )
    return None


def inputs_are_read_in_full(join: Join) -> Refused | None:
    """A lookup sees all rows of a table, so each of them must have been a change as well."""
    for leaf in (chain_of(plan).leaf for _, plan in _inputs(join)):
        match leaf:
            case Changelog(origin=ManagedTable(name, scan_mode=mode)) if mode != "full":
                return Refused(
                    f"table {name!r} is read with scan.mode {mode!r}, a join needs 'full'",
                    "leave out the option 'scan.mode'",
                )
            case Changelog(origin=ManagedTable() as table):
                if refused := not_held(table, Rewrite.DELTA_JOIN):
                    return refused
    return None


JOIN_CONDITIONS: Final = (
    inputs_have_their_kind,
    inputs_can_be_looked_up,
    join_is_of_a_known_kind,
    inputs_are_changelogs,
    inputs_are_read_in_full,
)


def _rows_in_words(plan: Plan) -> str:
    topics = [node.topic.name for node in walk(plan) if isinstance(node, Relation) and node.topic is not None]
    return f"a stream of the rows of {', '.join(map(repr, topics))}" if topics else "a stream of rows"


def join_is_bilinear(join: Join) -> Refused | None:
    """An outer join counts matches, which Spark does over rows, not over signed ones."""
    if join.kind in ("inner", "cross"):
        return None
    return Refused(
        f"the join over the changes of {sources(join)} is {join.kind!r}, and Spark's own join is right over "
        "changes only if it is 'inner'",
        "make it an inner join, or a delta join: keep its inputs in managed tables with an INDEX of the join "
        "columns",
    )


def join_has_an_equality(join: Join) -> Refused | None:
    """Spark joins streams by hash: something of one input must equal something of the other."""
    if any(equalities(join, ("EqualTo", "EqualNullSafe"))):
        return None
    return Refused(
        f"the join over the changes of {sources(join)} has no equality between its inputs, and Spark joins "
        "streams by equal values only",
        "join on equal columns; any other condition may come in addition",
    )


def inputs_are_streams_without_state(join: Join) -> Refused | None:
    """Each input is a changelog, or a stream whose rows are only added."""
    for side, plan in _inputs(join):
        if any(isinstance(node, Aggregate | SignedAggregate | Distinct) for node in walk(plan)):
            return Refused(
                f"the {side} input of the join is an aggregate, and Spark joins no stream of updates",
                "write the aggregate into a managed table and join the changes of that table",
            )
        if reads_changes(plan):
            continue
        leaf = chain_of(plan).leaf
        if not (isinstance(leaf, Relation) and leaf.is_streaming):
            what = leaf.name if isinstance(leaf, Opaque | Relation) else str(leaf)
            return Refused(
                f"the {side} input of the join is neither a changelog nor a stream of rows: {what}",
                "keep its rows in a managed table and join the changes of that, catalog.read_changes",
            )
    return None


def inputs_are_changes_from_the_first_on(join: Join) -> Refused | None:
    """A change may take away a row that was there before: it must have come through the join itself."""
    for node in (part for _, plan in _inputs(join) for part in walk(plan)):
        match node:
            case Changelog(name, origin=ManagedTable(scan_mode=mode)) if mode != "full":
                how = f"scan.mode {mode!r}"
            case Changelog(
                name, origin=KafkaTopic(mode=Mode.CDC | Mode.CDC_NORMALIZED, starts_late=str(mode))
            ):
                how = f"scan.startup.mode {mode!r}"
            case _:
                continue
        return Refused(
            f"{name!r} is read with {how}, and a join needs all of its changes",
            "leave out that option",
        )
    return None


def inputs_know_what_they_take_away(join: Join) -> Refused | None:
    """An upsert does not say which row it replaces."""
    for node in (part for _, plan in _inputs(join) for part in walk(plan)):
        match node:
            case EnrichedUpserts(rows=rows):
                return Refused(
                    f"what is looked up in {rows.table.name!r} gives upserts, which do not say which rows "
                    "the join has to delete",
                    "join the other tables first; or write the upserts into a managed table and join the "
                    "changes of that table",
                )
            case Changelog(name, origin=Upserts()):
                return Refused(
                    f"{name!r} gives upserts, which do not say which rows the join has to delete",
                    "write them into a managed table and join the changes of that table",
                )
            case Changelog(name, origin=KafkaTopic(mode=Mode.UPSERT)):
                return Refused(
                    f"{name!r} is read with changelog = 'upsert', which does not say which rows the join has "
                    "to delete",
                    "read it with changelog = 'all', or make its changes whole with upsert.normalize",
                )
    return None


def inputs_have_no_watermark(join: Join) -> Refused | None:
    """Spark drops rows that are older than a watermark, so a row could no longer be taken away."""
    for side, plan in _inputs(join):
        if any(isinstance(node, Watermark) for node in walk(plan)):
            return Refused(
                f"the {side} input of the join has a watermark, behind which Spark drops changes",
                "call withWatermark on the joined DataFrame",
            )
    return None


REGULAR_CONDITIONS: Final = (
    join_is_bilinear,
    join_has_an_equality,
    inputs_are_streams_without_state,
    inputs_are_changes_from_the_first_on,
    inputs_know_what_they_take_away,
    inputs_have_no_watermark,
)


def regular_join(join: Join, why: Refused) -> RegularJoin | Refused:
    """The join as Spark's own over signed rows, or what is in the way; `why` it is no delta join."""
    if refused := first_refusal(REGULAR_CONDITIONS, join):
        return refused
    if join.condition is None:
        raise AssertionError("the conditions of a regular join promise an equality")
    # the kind of one changelog below, whose id the kind of the join gets; its inputs may have lost it
    kinds = (row_kind_of(node) for _, plan in _inputs(join) for node in walk(plan))
    row_kind = next(replace(kind, ref=None) for kind in kinds if kind is not None)
    return RegularJoin(join.left, join.right, join.condition, row_kind, why.reason, why.remedy)


def _inputs(join: Join) -> tuple[tuple[str, Plan], tuple[str, Plan]]:
    return ("left", join.left), ("right", join.right)


_NOT_ALLOWED: Final = Refused("strategy is 'none'", "allow a delta join with strategy='auto'")

_NO_CHANGES: Final = Refused(
    "strategy is 'force', and this join reads no changes of managed tables",
    "join catalog.read_changes of two tables, or leave the strategy at 'auto'",
)


def replace_join(node: Plan, settings: Settings) -> Plan | tuple[Refused, ...] | None:
    """Replace a join, and all joins that lie right below it, by lookups in the tables of all of them.

    Only when all `JOIN_CONDITIONS` hold for each join, and `JoinTree` finds no faults. The delta join emits
    raw columns of its tables; the projections and filters of its inputs are stacked on it, then what the
    joins' conditions ask beyond the tree, then the columns of the topmost join in their order. A join that
    reads no changelog is Spark's business, unless the strategy is "force".
    """
    if not isinstance(node, Join):
        return None
    if not reads_changes(node):
        return (_NO_CHANGES,) if settings.strategy == "force" else None
    if not joins_changes(node):
        return None
    if settings.strategy == "none":
        found = regular_join(node, _NOT_ALLOWED)
        own = "Spark's own join would take each change for a row"
        reason = found.reason if isinstance(found, Refused) else own
        return (Refused(f"{_NOT_ALLOWED.reason}, and {reason}", _NOT_ALLOWED.remedy),)
    return faults_of(node) or _delta_join(node, JoinTree(node))


def faults_of(join: Join) -> tuple[Refused, ...]:
    """Why a join, with all joins that lie right below it, can be no delta join; empty if it can."""
    failed = [refused for part in joins_of(join) if (refused := first_refusal(JOIN_CONDITIONS, part))]
    return tuple(dict.fromkeys(failed or JoinTree(join).faults))


def _delta_join(join: Join, tree: JoinTree) -> Plan:
    if tree.row_kind is None:
        raise AssertionError("the conditions of a delta join promise kinds")
    row_kind = replace(tree.row_kind, ref=None)
    hidden = with_hidden_ids(tree.staged)
    tables = []
    for table, raw in zip(tree.tables, tree.raw, strict=True):
        columns = raw.hidden if raw.number in hidden else raw.own
        tables.append(JoinTable(table, columns, tuple(tree.where.get(raw.number, ()))))
    base = DeltaJoin(tuple(tables), tree.node, row_kind, tuple(tree.present.items()))
    carried = (*tree.present.values(), row_kind)
    plan = Stacker(hidden, tree.fresh).over(tree.staged, base, carried)
    own = without_kinds(join.columns)
    return Project(plan, (*(Output(column, column) for column in own), Output.of(row_kind)))


def fall_back_to_regular_join(node: Plan, settings: Settings) -> Plan | None:
    """Make a join that can be no delta join Spark's own join over signed rows, if that is right.

    It is right for an INNER join of complete changes: `REGULAR_CONDITIONS`. Its state grows with every
    change, which is why it comes second. Joins below are looked at by themselves. Not with the strategy
    "force"; with "none" it is what every join becomes.
    """
    if not isinstance(node, Join) or not joins_changes(node) or settings.strategy == "force":
        return None
    why = _why_no_delta_join(node, settings)
    made = None if why is None else regular_join(node, why)
    if not isinstance(made, RegularJoin):
        return None
    below = partial(at_join_trees, change=lambda join: fall_back_to_regular_join(join, settings) or join)
    return with_children(made, list(map(below, (made.left, made.right))))


def _why_no_delta_join(join: Join, settings: Settings) -> Refused | None:
    if settings.strategy == "none":
        return _NOT_ALLOWED
    faults = faults_of(join)
    reasons, remedies = ([fault.reason for fault in faults], [fault.remedy for fault in faults])
    return Refused("; ".join(reasons), "; ".join(dict.fromkeys(remedies))) if faults else None


def refuse_metadata_in_join(node: Plan, _settings: Settings) -> Refused | None:
    """Refuse a delta join that would have to put out METADATA of a table, which no lookup gives.

    Those that the query does not use are gone by now: `prune_columns` has to come before this.
    """
    if not isinstance(node, DeltaJoin):
        return None
    for one in node.tables:
        for column in one.columns:
            if column.name not in one.table.schema.names:
                return Refused(
                    f"a delta join outputs {column.name!r}, which the option 'metadata.columns' adds to "
                    f"table {one.table.name!r}, and a row that is looked up has none",
                    f"leave {column.name!r} out of the query, or write it into a managed table as a column",
                )
    return None
