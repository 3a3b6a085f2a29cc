"""Rules on joins of streams whose rows can be looked up elsewhere: made lookups of what is newest (pure)."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Final

from deltajoin.expressions import Ref
from deltajoin.latest.api import MAX_SIDES, side_of_mark
from deltajoin.latest.spec import SIDES, LatestJoin, faults_of
from deltajoin.settings import JoinSettings
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
from planner.plan.trees import (
    chain_of,
    equalities,
    fresh_ids,
    is_observed,
    joins_changes,
    trace,
    transform_up,
    walk,
)
from planner.refusals import Refused, first_refusal
from planner.rules.row_kinds import unmet_lookup_joins
from planner.settings import Settings
from planner.stacking import Chained, Joined, Raw, Stacker, Staged
from upsert.errors import ConfigurationError
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.stream_keys import UpsertKey

KINDS: Final = {"inner": "inner", "left outer": "left", "right outer": "right", "full outer": "full"}
"""Kinds of join in Spark's words, and in those of FLIP-486's limitations."""


def _stream_of(plan: Plan) -> LookupStream | None:
    """The stream that can be looked up below a chain of nodes."""
    leaf = chain_of(plan).leaf
    return leaf.origin if isinstance(leaf, Changelog) and isinstance(leaf.origin, LookupStream) else None


def _inputs(join: Join) -> tuple[tuple[str, Plan], tuple[str, Plan]]:
    return (SIDES[0], join.left), (SIDES[1], join.right)


def _both_inputs_can_be_looked_up(join: Join) -> Refused | None:
    for name, plan in _inputs(join):
        stream = _stream_of(plan)
        if stream is None:
            return Refused(
                f"one input of the join is a stream with lookups, the {name} one is not",
                "give that one a source as well: deltajoin.with_lookup(df, source, keys=…, upsert_key=…), "
                "for a managed table with TableLookup.of(path, keys)",
            )
        if side_of_mark(stream.mark) is None:
            return Refused(
                f"the {name} input was given its source by another process, or before {MAX_SIDES:,} others",
                "call deltajoin.with_lookup in the process that optimizes, shortly before",
            )
    return None


def _kind_is_known(join: Join) -> Refused | None:
    if join.kind in KINDS:
        return None
    return Refused(
        f"a {join.kind} join of streams with lookups would have to know when the last match is deleted",
        "join managed tables with consistency = 'snapshot'",
    )


def _nothing_is_observed(join: Join) -> Refused | None:
    for name, plan in _inputs(join):
        if is_observed(plan):
            return Refused(
                f"the {name} input is observed, and a lookup join emits only joined rows",
                "call observe on the joined DataFrame",
            )
    return None


def _padded_input_comes_as_it_is(join: Join) -> Refused | None:
    """A filter there decides whether a row has a match; what is computed there must be NULL without one."""
    for name, plan in _inputs(join):
        if KINDS[join.kind] in ("inner", name):
            continue
        for node in chain_of(plan).nodes:
            match node:
                case Filter():
                    what = "filtered"
                case Project(is_columns_alone=False):
                    what = "computed upon"
                case _:
                    continue
            return Refused(
                f"the {name} input of the {join.kind} join is {what} above with_lookup, and its rows may be "
                "missing",
                "do it below with_lookup, and in what the source gives",
            )
    return None


_CONDITIONS: Final = (
    _both_inputs_can_be_looked_up,
    _kind_is_known,
    _nothing_is_observed,
    _padded_input_comes_as_it_is,
)


def _pairs(join: Join) -> list[tuple[Expr, tuple[str, str]]]:
    """Conditions that equate raw columns of both sides, with the names of these."""
    traced = (
        (part, trace(one, join.left), trace(other, join.right)) for part, one, other in equalities(join)
    )
    return [(part, (one.name, other.name)) for part, one, other in traced if one and other]


def _lookup_join(join: Join, settings: Settings) -> Plan | tuple[Refused, ...]:
    """The join by lookups, under what lay between it and its inputs; or why it cannot be one."""
    if refused := first_refusal(_CONDITIONS, join):
        return (refused,)
    pairs = _pairs(join)
    keys = {part for part, _ in pairs}
    rest = conjunction([part for part in conjuncts(join.condition) if part not in keys])
    try:
        latest = _latest_join(join, tuple(names for _, names in pairs), rest, settings)
    except NotTranslatableError as cause:
        reason = (
            f"{cause} in the condition of an outer join decides whether a row has a match, and cannot be "
            "evaluated inside the join"
        )
        return (Refused(reason, "compute it as a column below with_lookup, and in what the source gives"),)
    except ConfigurationError as cause:  # nothing is equated
        return (Refused(str(cause), "equate a column of one side with one of the other"),)
    return faults_of(latest) or _made_of(join, latest, rest)


def _latest_join(
    join: Join, on: tuple[tuple[str, str], ...], rest: Expr | None, settings: Settings
) -> LatestJoin:
    streams = [_stream_of(plan) for _, plan in _inputs(join)]
    left, right = (None if stream is None else side_of_mark(stream.mark) for stream in streams)
    if left is None or right is None:
        raise AssertionError("streams without a side of this process were refused before")
    refs: dict[int, Ref] = {}
    for number, (_, plan) in enumerate(_inputs(join)):
        for column in plan.columns:
            if (raw := trace(column, plan)) is not None:
                refs[column.id] = Ref(number, raw.name)
    where = None if join.kind == "inner" or rest is None else translated(rest, refs)
    own = {field.name: getattr(settings, field.name) for field in fields(JoinSettings)}
    return LatestJoin(left, right, on, KINDS[join.kind], where, JoinSettings(**own))


def _made_of(join: Join, latest: LatestJoin, rest: Expr | None) -> Plan:
    fresh = fresh_ids(join)
    leaves, staged = list[Changelog](), list[Staged]()
    hidden: tuple[Column, ...] = ()
    for number, (name, plan) in enumerate(_inputs(join)):
        chain = chain_of(plan)
        if not isinstance(chain.leaf, Changelog):
            raise AssertionError(f"the conditions of a lookup join promise its leaves, got {plan}")
        own = tuple(replace(column, ref=None) for column in without_kinds(chain.leaf.columns))
        apart = tuple(Column(next(fresh), f"{name}_{column.name}", column.type) for column in own)
        stage: Staged = Raw(number, own, apart)
        for node in chain.nodes:
            stage = Chained(node, stage)
        leaves.append(chain.leaf)
        staged.append(stage)
        hidden += apart
    row_kind = Column(next(fresh), ROW_KIND_COLUMN, "string")
    key = UpsertKey(tuple((name,) for name in latest.output_key), of=LOOKUP_JOIN, is_append=True)
    base = Changelog(LOOKUP_JOIN, (*hidden, row_kind), LookupJoined(key, leaves[0], leaves[1], latest))
    columns = without_kinds(join.columns)
    joined = Joined(staged[0], staged[1], columns, rest if join.kind == "inner" else None)
    plan = Stacker(frozenset({0, 1}), fresh).over(joined, base, (row_kind,))
    kind = Output(Column(next(fresh), ROW_KIND_COLUMN, "string"), Call(KIND_IF, (row_kind,)))
    return Project(plan, (*map(Output.of, columns), kind))


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

    Only when FLIP-486's conditions hold, `deltajoin.latest.spec`. The result replaces its own rows by
    key and has no `-U`. Projections and filters of the inputs are stacked on the join; a filter takes away,
    by a delete, what an update makes fail it. The input of an outer join whose rows may be missing has
    neither filters nor computed columns. Joins of managed tables are exact, unless the consistency is
    "latest": that is refused unless `with_lookup` says what their changes may be.
    """
    if not isinstance(node, Join):
        return None
    if _stream_of(node.left) is None and _stream_of(node.right) is None:
        return (_not_declared(node),) if settings.consistency == "latest" and joins_changes(node) else None
    if settings.strategy == "none":
        why = "strategy is 'none', and Spark's own join would take each change for a row"
        return (Refused(why, "allow a delta join with strategy='auto'"),)
    return _lookup_join(node, settings)


def _not_declared(join: Join) -> Refused:
    """That it is not declared what the sides never do, and how to declare it of two managed tables."""
    sides = []
    on = [names for _, names in _pairs(join)]
    for number, (_, plan) in enumerate(_inputs(join)):
        leaf, names = chain_of(plan).leaf, [pair[number] for pair in on]
        if not isinstance(leaf, Changelog) or not isinstance(leaf.origin, ManagedTable) or not names:
            break
        table, key = leaf.origin, leaf.origin.schema.primary_key
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
    "continue with that table's changes, catalog.read_changes",
)


def make_lookup_joins_whole(node: Plan, settings: Settings) -> Plan | Refused | None:
    """Let a join of two streams with lookups give every kind of change, instead of upserts.

    With `changelog = all` everywhere; with `auto` below all operators but projections and filters, and where
    the sink has another key; see `unmet_lookup_joins`. Only where `state_path` says in which folder
    the join keeps the rows that it has given: without, `auto` leaves the upserts, which are refused there.
    The kind then needs no mark, and a filter is a filter of changes. Two of them in one query are refused.
    """
    if settings.state_path is None or settings.changelog == "upsert":
        return None
    leaves = (leaf for leaf in walk(node) if isinstance(leaf, Changelog))
    joins = [leaf for leaf in leaves if isinstance(leaf.origin, LookupJoined)]
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
            case Project(outputs=outputs) if any(map(is_marked, outputs)):
                match chain_of(part).leaf:
                    case Changelog(origin=LookupChanges()):
                        return replace(part, outputs=tuple(map(_without_mark, outputs)), ref=None)
        return part

    plan = transform_up(node, whole)
    return None if plan is node else plan


def _without_mark(output: Output) -> Output:
    match output.value:
        case Call(name, (kind,)) if name == KIND_IF:
            return Output(output.column, kind)
        case _:
            return output
