"""Rules on joins of streams whose rows can be looked up elsewhere: made lookups of what is newest (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Final

from deltajoin.expressions import Condition, Ref
from deltajoin.latest.api import side_of_mark
from deltajoin.latest.conditions import faults_of
from deltajoin.latest.spec import SIDES, LatestJoin
from deltajoin.settings import JoinSettings
from planner.joins.stack import Chained, Joined, Raw, Stacker, Staged
from planner.plan.chains import chain_of, equalities, is_observed, trace
from planner.plan.expressions import Call, Column, Expr, conjunction, conjuncts, without_kinds
from planner.plan.keys import KIND_IF, is_marked
from planner.plan.nodes import (
    LOOKUP_JOIN,
    Changelog,
    Filter,
    Join,
    LookupChanges,
    LookupJoined,
    LookupStream,
    Output,
    Plan,
    Project,
)
from planner.plan.sources import ManagedTable
from planner.plan.translate import NotTranslatableError, translated
from planner.plan.trees import fresh_ids, joins_changes, transform_up, walk
from planner.refusals import Refused, first_refusal
from planner.rules.row_kinds import unmet_lookup_joins
from planner.settings import Settings
from upsert.errors import ConfigurationError
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.stream_keys import UpsertKey

KINDS: Final = {"inner": "inner", "left outer": "left", "right outer": "right", "full outer": "full"}
"""Kinds of join in Spark's words, and in those of FLIP-486's limitations."""


def lookup_leaf(plan: Plan) -> Changelog | None:
    """The stream that can be looked up below a chain of nodes."""
    leaf = chain_of(plan).leaf
    return leaf if isinstance(leaf, Changelog) and isinstance(leaf.origin, LookupStream) else None


def is_lookup_join(join: Join) -> bool:
    """Whether one of the inputs is a stream that can be looked up."""
    return lookup_leaf(join.left) is not None or lookup_leaf(join.right) is not None


def faults_of_join(join: Join, settings: Settings) -> tuple[Refused, ...]:
    """Why the join cannot be one of lookups; empty if it can."""
    if refused := first_refusal(_CONDITIONS, join):
        return (refused,)
    try:
        latest = latest_join(join, settings)
    except NotTranslatableError as cause:
        return (_rest_must_be_evaluated(str(cause)),)
    except ConfigurationError as cause:
        return (Refused(str(cause), "equate a column of one side with one of the other"),)
    return faults_of(latest)


def _both_inputs_can_be_looked_up(join: Join) -> Refused | None:
    for name, plan in zip(SIDES, (join.left, join.right), strict=True):
        leaf = lookup_leaf(plan)
        if leaf is None:
            return Refused(
                f"one input of the join is a stream with lookups, the {name} one is not",
                "give that one a source as well: deltajoin.with_lookup(df, source, keys=…, upsert_key=…), "
                "for a managed table with TableLookup.of(path, keys)",
            )
        if side_of_mark(_origin(leaf).mark) is None:
            return Refused(
                f"the {name} input was given its source by another process",
                "call deltajoin.with_lookup in the one that optimizes",
            )
    return None


def _kind_is_known(join: Join) -> Refused | None:
    if join.kind in KINDS:
        return None
    return Refused(
        f"a {join.kind} join of streams with lookups would have to know when the last match goes",
        "join managed tables with consistency = 'snapshot'",
    )


def _nothing_is_observed(join: Join) -> Refused | None:
    for name, plan in zip(SIDES, (join.left, join.right), strict=True):
        if is_observed(plan):
            return Refused(
                f"the {name} input is observed, and a lookup join puts its rows out joined",
                "call observe on the joined DataFrame",
            )
    return None


def _padded_input_comes_as_it_is(join: Join) -> Refused | None:
    """A filter there decides whether a row has a match; what is computed there must be NULL without one."""
    for number, plan in enumerate((join.left, join.right)):
        if KINDS[join.kind] in ("inner", SIDES[number]):
            continue
        for node in chain_of(plan).nodes:
            if isinstance(node, Filter) or (isinstance(node, Project) and _computes(node)):
                what = "filtered" if isinstance(node, Filter) else "computed upon"
                return Refused(
                    f"the {SIDES[number]} input of the {join.kind} join is {what} above with_lookup, and its "
                    "rows may be missing",
                    "do it below with_lookup, and in what the source gives",
                )
    return None


def _computes(project: Project) -> bool:
    return any(not isinstance(output.value, Column) for output in project.outputs)


_CONDITIONS: Final = (
    _both_inputs_can_be_looked_up,
    _kind_is_known,
    _nothing_is_observed,
    _padded_input_comes_as_it_is,
)


def _rest_must_be_evaluated(what: str) -> Refused:
    return Refused(
        f"{what} in the condition of an outer join decides whether a row has a match, and cannot be "
        "evaluated inside the join",
        "compute it as a column below with_lookup, and in what the source gives",
    )


def latest_join(join: Join, settings: Settings) -> LatestJoin:
    """The join as `deltajoin` runs it.

    Raises:
        NotTranslatableError: an outer join's condition has a part that cannot be evaluated inside it.
        ConfigurationError: nothing is equated.
    """
    left, right = (_leaf(plan) for plan in (join.left, join.right))
    sides = [side_of_mark(_origin(leaf).mark) for leaf in (left, right)]
    if sides[0] is None or sides[1] is None:
        raise AssertionError("a mark of another process was refused before")
    pairs = _pairs(join)
    on = tuple((one.name, other.name) for _, one, other in pairs)
    rest = None if join.kind == "inner" else _condition(join, _rest(join))
    own = {field.name: getattr(settings, field.name) for field in fields(JoinSettings)}
    return LatestJoin(sides[0], sides[1], on, KINDS[join.kind], rest, JoinSettings(**own))


def _pairs(join: Join) -> list[tuple[Expr, Column, Column]]:
    """Conditions that equate raw columns of both sides, with the columns."""
    found = []
    for condition, left, right in equalities(join):
        one, other = trace(left, join.left), trace(right, join.right)
        if one is not None and other is not None:
            found.append((condition, one, other))
    return found


def _rest(join: Join) -> Expr | None:
    """What the condition asks beyond equal keys."""
    keys = {condition for condition, _, _ in _pairs(join)}
    return conjunction([part for part in conjuncts(join.condition) if part not in keys])


def _condition(join: Join, rest: Expr | None) -> Condition | None:
    if rest is None:
        return None
    refs: dict[int, Ref] = {}
    for number, plan in enumerate((join.left, join.right)):
        for column in plan.columns:
            if (raw := trace(column, plan)) is not None:
                refs[column.id] = Ref(number, raw.name)
    return translated(rest, refs)


def made_of(join: Join, settings: Settings) -> Plan:
    """The join by lookups, under what lay between it and its inputs; the join must have no faults."""
    latest = latest_join(join, settings)
    fresh = fresh_ids(join)
    leaves = tuple(_leaf(plan) for plan in (join.left, join.right))
    raws = tuple(_raw(number, leaf, fresh) for number, leaf in enumerate(leaves))
    row_kind = Column(next(fresh), ROW_KIND_COLUMN, "string")
    key = UpsertKey(tuple((name,) for name in latest.output_key), of=LOOKUP_JOIN, is_append=True)
    columns = (*raws[0].hidden, *raws[1].hidden, row_kind)
    base = Changelog(LOOKUP_JOIN, columns, LookupJoined(key, leaves[0], leaves[1], latest))
    own = without_kinds(join.columns)
    rest = _rest(join) if join.kind == "inner" else None
    staged = Joined(_staged(join.left, raws[0]), _staged(join.right, raws[1]), own, rest)
    plan = Stacker(frozenset({0, 1}), fresh).over(staged, base, (row_kind,))
    kind = Output(Column(next(fresh), ROW_KIND_COLUMN, "string"), Call(KIND_IF, (row_kind,)))
    return Project(plan, (*map(Output.of, own), kind))


def _raw(number: int, leaf: Changelog, fresh: Iterator[int]) -> Raw:
    own = tuple(replace(column, ref=None) for column in without_kinds(leaf.columns))
    hidden = tuple(Column(next(fresh), f"{SIDES[number]}_{column.name}", column.type) for column in own)
    return Raw(number, own, hidden)


def _staged(plan: Plan, raw: Raw) -> Staged:
    staged: Staged = raw
    for node in chain_of(plan).nodes:
        staged = Chained(node, staged)
    return staged


def _leaf(plan: Plan) -> Changelog:
    leaf = lookup_leaf(plan)
    if leaf is None:
        raise AssertionError(f"the conditions of a lookup join promise its leaves, got {plan}")
    return leaf


def _origin(leaf: Changelog) -> LookupStream:
    if not isinstance(leaf.origin, LookupStream):
        raise AssertionError(f"a stream with lookups was expected, got {leaf}")
    return leaf.origin


_NOT_DECLARED: Final = (
    "consistency is 'latest', and managed tables may delete rows on both sides and change their join keys"
)

_SIDE: Final = (
    "deltajoin.with_lookup({changes}, TableLookup.of({path!r}, {keys!r}), keys={keys!r}, upsert_key={key!r}, "
    "kinds=['+I', '+U'], immutable={immutable!r})"
)
"""A side whose rows are never deleted and keep their join keys, as is said of it."""

_EXACT: Final = "or leave the consistency at 'snapshot', which is exact"


def replace_lookup_join(node: Plan, settings: Settings) -> Plan | tuple[Refused, ...] | None:
    """Replace a join of two streams that `deltajoin.with_lookup` has marked by lookups of what is newest.

    Only when FLIP-486's conditions hold, `deltajoin.latest.conditions`. The result replaces its own rows by
    key and has no `-U`. Projections and filters of the inputs are stacked on the join; a filter takes away,
    by a delete, what an update makes fail it. The input of an outer join whose rows may be missing has
    neither filters nor computed columns. Joins of managed tables are exact, unless the consistency is
    "latest": that is refused unless `with_lookup` says what their changes may be.

        Join left outer ON (user#2 = user#5)      Project [columns of the join, KindIf(_row_kind#-6) AS …]
          Changelog lookups …               =>      Project [left_id#-1 AS id#1, …]
          Changelog lookups …                         Changelog a lookup join [left_id#-1: bigint, …]
    """
    if not isinstance(node, Join):
        return None
    if not is_lookup_join(node):
        return (_not_declared(node),) if settings.consistency == "latest" and joins_changes(node) else None
    if settings.strategy == "none":
        why = "strategy is 'none', and Spark's own join would take each change for a row"
        return (Refused(why, "allow a delta join with strategy='auto'"),)
    return faults_of_join(node, settings) or made_of(node, settings)


def _not_declared(join: Join) -> Refused:
    """That it is not declared what the sides never do, and how to declare it of two managed tables."""
    pairs = [(trace(one, join.left), trace(other, join.right)) for _, one, other in equalities(join)]
    sides = []
    for number, plan in enumerate((join.left, join.right)):
        leaf = chain_of(plan).leaf
        keys = [pair[number] for pair in pairs if pair[0] is not None and pair[1] is not None]
        names = [column.name for column in keys if column is not None]
        if not isinstance(leaf, Changelog) or not isinstance(leaf.origin, ManagedTable) or not names:
            break
        table = leaf.origin
        key = table.schema.primary_key
        if not key:
            break
        sides.append(
            _SIDE.format(
                changes=f"catalog.read_changes(spark, {table.name!r})",
                path=table.path,
                keys=names,
                key=list(key),
                immutable=[name for name in names if name not in key],
            )
        )
    if len(sides) < 2:
        remedy = "join managed tables with a PRIMARY KEY on equal columns, each in deltajoin.with_lookup(…)"
        return Refused(_NOT_DECLARED, f"{remedy}; {_EXACT}")
    return Refused(_NOT_DECLARED, f"if they do not, join {' and '.join(sides)}; {_EXACT}")


_ONE: Final = Refused(
    "the query has several lookup joins, and Spark runs one stateful operator in Python in a query",
    "write each of them but one into a managed table in a query of its own, with catalog.write_changes, and "
    "go on with that table's changes, catalog.read_changes",
)


def make_lookup_joins_whole(node: Plan, settings: Settings) -> Plan | Refused | None:
    """Let a join of two streams with lookups give every kind of change, instead of upserts.

    With `changelog = all` everywhere; with `auto` below all operators but projections and filters, and where
    the sink has another key; see `unmet_lookup_joins`. Only where `state_path` says in which folder
    the join keeps the rows that it has given: without, `auto` leaves the upserts, which are refused there.
    The kind then needs no mark, and a filter is a filter of changes. Two of them in one query are refused.

        Aggregate by (name#77) […]                        Aggregate by (name#77) […]
          Project […, KindIf(_row_kind#-8) AS …]     =>     Project […, _row_kind#-8 AS …]
            Changelog a lookup join (inner) of …              Changelog a lookup join (inner) … with -U […]
    """
    if settings.state_path is None or settings.changelog == "upsert":
        return None
    joins = [
        leaf for leaf in walk(node) if isinstance(leaf, Changelog) and isinstance(leaf.origin, LookupJoined)
    ]
    if len(joins) > 1:
        return _ONE
    wanted = list(unmet_lookup_joins(node, settings.sink_key))
    if settings.changelog == "all":
        wanted = [(leaf, "changelog is 'all'") for leaf in joins]

    def whole(part: Plan) -> Plan:
        match part:
            case Changelog(origin=LookupJoined() as joined):
                reason = next((reason for leaf, reason in wanted if leaf is part), None)
                return part if reason is None else replace(part, origin=LookupChanges.of(joined, reason))
            case Project(outputs=outputs) if _is_whole(part):
                return replace(part, outputs=tuple(map(_without_mark, outputs)), ref=None)
        return part

    plan = transform_up(node, whole)
    return None if plan is node else plan


def _is_whole(project: Project) -> bool:
    leaf = chain_of(project).leaf
    return (
        isinstance(leaf, Changelog)
        and isinstance(leaf.origin, LookupChanges)
        and any(map(is_marked, project.outputs))
    )


def _without_mark(output: Output) -> Output:
    match output.value:
        case Call(name, (kind,)) if name == KIND_IF:
            return Output(output.column, kind)
        case _:
            return output
