"""Spark's own join of two changelogs, made right: signs multiplied, what cancels left out (pure).

An inner join is bilinear: what a micro-batch adds to a join over signed rows is the change of the join. Spark
keeps every row of both inputs in its state for ever, those that took others away among them, and so must it:
a row and its opposite meet each later row of the other side, and the two results cancel. So it is the
second choice, for inputs of which one cannot be looked up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from planner.aggregate_nodes import Aggregate, SignedAggregate
from planner.chain import chain_of
from planner.changelogs import Changelog, Relation, Upserts
from planner.conditions import Refused, sources
from planner.expressions import Call, Column, columns_of, conjuncts
from planner.nodes import Distinct, Join, Opaque, Plan, RegularJoin, Watermark
from planner.sources import KafkaTopic, ManagedTable, Mode
from planner.trees import reads_changes, row_kind_of, walk

STATE_GROWS: Final = (
    "Spark keeps every change of both inputs in its state for ever, those that took rows away among them"
)
"""What `explain` says of each such join."""

RegularCondition = Callable[[Join], Refused | None]


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
    left, right = ({column.id for column in plan.columns} for plan in (join.left, join.right))
    for part in conjuncts(join.condition):
        match part:
            case Call("EqualTo" | "EqualNullSafe", (one, other)):
                a, b = columns_of(one), columns_of(other)
                if a and b and ((a <= left and b <= right) or (a <= right and b <= left)):
                    return None
    return Refused(
        f"the join over the changes of {sources(join)} has no equality between its inputs, and Spark joins "
        "streams by equal values only",
        "join on equal columns; any other condition may come in addition",
    )


def inputs_are_streams_without_state(join: Join) -> Refused | None:
    """Each input is a changelog, or a stream whose rows are only added."""
    for side, plan in _inputs(join):
        counted = next((n for n in walk(plan) if isinstance(n, Aggregate | SignedAggregate | Distinct)), None)
        if counted is not None:
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
            case Changelog(name, origin=KafkaTopic(mode=Mode.CDC | Mode.CDC_NORMALIZED, options=options)) if (
                mode := options.get("scan.startup.mode", _EARLIEST)
            ) != _EARLIEST:
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
    for _, plan in _inputs(join):
        for node in walk(plan):
            match node:
                case Changelog(name, origin=Upserts()):
                    return Refused(
                        f"{name!r} gives upserts, which do not say which rows the join has to take away",
                        "write them into a managed table and join the changes of that table",
                    )
                case Changelog(name, origin=KafkaTopic(mode=Mode.UPSERT)):
                    return Refused(
                        f"{name!r} is read with changelog = 'upsert', which does not say which rows the join "
                        "has to take away",
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


REGULAR_CONDITIONS: Final[tuple[RegularCondition, ...]] = (
    join_is_bilinear,
    join_has_an_equality,
    inputs_are_streams_without_state,
    inputs_are_changes_from_the_first_on,
    inputs_know_what_they_take_away,
    inputs_have_no_watermark,
)
_EARLIEST: Final = "earliest-offset"


def regular_join(join: Join, why: Refused) -> RegularJoin | Refused:
    """The join as Spark's own over signed rows, or what is in the way; `why` it is no delta join."""
    for fulfilled in REGULAR_CONDITIONS:
        if refused := fulfilled(join):
            return refused
    if join.condition is None:
        raise AssertionError("the conditions of a regular join promise an equality")
    return RegularJoin(join.left, join.right, join.condition, _row_kind(join), why.reason, why.remedy)


def _row_kind(join: Join) -> Column:
    """The kind of one changelog below, whose id the kind of the join gets; its inputs may have lost it."""
    kinds = (row_kind_of(node) for _, plan in _inputs(join) for node in walk(plan))
    return next(replace(kind, ref=None) for kind in kinds if kind is not None)


def _inputs(join: Join) -> tuple[tuple[str, Plan], tuple[str, Plan]]:
    return ("left", join.left), ("right", join.right)
