"""Joins of streams that can be looked up elsewhere: what the planner knows of them (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Final

from deltajoin.expressions import Condition, Ref
from deltajoin.latest.conditions import faults_of
from deltajoin.latest.marks import side_of_mark
from deltajoin.latest.spec import SIDES, LatestJoin
from deltajoin.settings import JoinSettings
from planner.chain import chain_of, trace
from planner.changelogs import Changelog, LookupJoined, LookupStream
from planner.conditions import OBSERVATION, Refused
from planner.expressions import Call, Column, Expr, conjunction, conjuncts
from planner.group_keys import KIND_IF
from planner.keys import equalities
from planner.nodes import Filter, Join, Output, Plan, Project, Wrapper
from planner.settings import Settings
from planner.stack import Chained, Joined, Raw, Staged, stacked
from planner.translate import NotTranslatableError, translated
from planner.trees import fresh_ids
from planner.upserts_above import LOOKUP_JOIN
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
    for condition in (_both_inputs_can_be_looked_up, _kind_is_known, _nothing_is_observed):
        if refused := condition(join):
            return (refused,)
    if refused := _padded_input_comes_as_it_is(join):
        return (refused,)
    try:
        latest = latest_join(join, settings)
    except NotTranslatableError as cause:
        return (_rest_must_be_evaluated(str(cause)),)
    except ConfigurationError as cause:
        return (Refused(str(cause), "equate a column of one side with one of the other"),)
    return tuple(Refused(fault.reason, fault.remedy) for fault in faults_of(latest))


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
        if any(isinstance(node, Wrapper) and node.name == OBSERVATION for node in chain_of(plan).nodes):
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
    own = tuple(column for column in join.columns if not column.is_row_kind)
    rest = _rest(join) if join.kind == "inner" else None
    staged = Joined(_staged(join.left, raws[0]), _staged(join.right, raws[1]), own, rest)
    plan = stacked(staged, base, (row_kind,), frozenset({0, 1}), fresh)
    kind = Output(Column(next(fresh), ROW_KIND_COLUMN, "string"), Call(KIND_IF, (row_kind,)))
    return Project(plan, (*map(Output.of, own), kind))


def _raw(number: int, leaf: Changelog, fresh: Iterator[int]) -> Raw:
    own = tuple(replace(column, ref=None) for column in leaf.columns if not column.is_row_kind)
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
