"""Rules on upserts by the key of a group or of a lookup join, which hold no replaced rows (pure).

Upserts without `-U` are right where they replace a row by its key, which only a sink does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from planner.operators import operator_in_words
from planner.plan.chains import chain_of
from planner.plan.nodes import (
    LOOKUP_JOIN,
    Aggregate,
    Changelog,
    Filter,
    LookupJoined,
    Plan,
    Project,
    Watermark,
    Wrapper,
)
from planner.plan.trees import children, sources, walk
from planner.plan.upsert_keys import AGGREGATE, group_keys, sink_is_keyed_by_groups, upsert_key
from planner.refusals import Refused
from planner.settings import Settings

_CONSTANT: Final = "a constant, as in SELECT 'all' AS name, count(*) …"

STATE_PATH: Final = "state_path='…', a folder on a disk that driver and executors share"


def unmet_lookup_joins(plan: Plan, sink_key: tuple[str, ...] | None) -> Iterator[tuple[Changelog, str]]:
    """Lookup joins whose upserts are not enough, each with a reason.

    Below projections and filters alone they are, and in a sink with their key.
    """
    for node in walk(plan):
        if isinstance(node, Project | Filter | Watermark | Wrapper):
            continue
        for child in children(node):
            if (leaf := _lookup_join_of(child)) is not None:
                yield leaf, f"{operator_in_words(node)} must know which rows are replaced"
    leaf = _lookup_join_of(plan)
    if leaf is not None and sink_key is not None and (reason := sink_is_keyed_by_groups(plan, sink_key)):
        yield leaf, reason


def upserts_go_to_a_sink(node: Plan, below: Plan, settings: Settings) -> Refused:
    """Upserts without `-U` are right where they replace a row by its key, and nowhere else.

    Args:
        node: what takes them for changes.
        below: the input of it that gives upserts.
        settings: the call's options.
    """
    if _is_of_an_aggregate(below):
        what = "another aggregate" if isinstance(node, Aggregate) else operator_in_words(node)
        return Refused(
            f"{what} over an aggregate of the changes of {sources(node)}: its rows replace each other by the "
            "group's key, which only a sink can do",
            "write the aggregate into a managed table whose PRIMARY KEY is its GROUP BY columns, with "
            "catalog.write_changes, and go on with that table's changes, catalog.read_changes",
        )
    key = ", ".join(one.name for one in group_keys(below) or ())
    return Refused(
        f"{operator_in_words(node)} over {upserts_in_words(below)}: its rows replace each other by ({key}), "
        "which only a sink can do",
        f"{_or_whole(below, settings)}write it into a managed table with this PRIMARY KEY, with "
        "catalog.write_changes, and go on with that table's changes, catalog.read_changes",
    )


def upserts_replace_nothing(node: Plan, reason: str, settings: Settings) -> Refused:
    """Upserts that go into a sink with another key, for a reason."""
    keys = group_keys(node) or ()
    named = ", ".join(key.name for key in keys)
    if _is_of_an_aggregate(node):
        columns = f"the group columns ({named or _CONSTANT})"
        what, whole = f"the aggregate of the changes of {sources(node)}", ""
    else:
        columns, what, whole = f"({named})", upserts_in_words(node), _or_whole(node, settings)
    return Refused(
        f"{what} would leave replaced rows in the sink: {reason}",
        f"{whole}write it into a table with a PRIMARY KEY of {columns}",
    )


def upserts_in_words(plan: Plan) -> str:
    """What gives upserts that are none of an aggregate."""
    match chain_of(plan).leaf:
        case Changelog(origin=LookupJoined(left=left, right=right)) as leaf:
            return f"{leaf.name} of {left.name} with {right.name}"
        case _:
            return upsert_key(plan).of


def _or_whole(plan: Plan, settings: Settings) -> str:
    """How a lookup join comes to give every kind of change, as the first of two remedies."""
    match chain_of(plan).leaf:
        case Changelog(origin=LookupJoined()) if settings.changelog == "upsert":
            return f"leave changelog at 'auto' and give {STATE_PATH}; or "
        case Changelog(origin=LookupJoined()) if settings.state_path is None:
            return f"give {STATE_PATH}, and the join gives -U too; or "
        case Changelog(name, origin=_) if name == LOOKUP_JOIN:
            return f"call lookup_delta_join with changelog='all' and {STATE_PATH}; or "
        case _:
            return ""


def _is_of_an_aggregate(plan: Plan) -> bool:
    return upsert_key(plan).of == AGGREGATE


def _lookup_join_of(plan: Plan) -> Changelog | None:
    match chain_of(plan).leaf:
        case Changelog(origin=LookupJoined()) as leaf:
            return leaf
        case _:
            return None


def refuse_over_groups(node: Plan, settings: Settings) -> Refused | None:
    """Refuse every operator but projections and filters above the upserts of an aggregate or a lookup join.

    They hold no `-U`, so what counts or joins changes would keep the rows that they replace.
    """
    if isinstance(node, Project | Filter | Watermark | Wrapper):
        return None
    below = next((child for child in children(node) if group_keys(child) is not None), None)
    return None if below is None else upserts_go_to_a_sink(node, below, settings)


def refuse_ungrouped_sink(node: Plan, settings: Settings) -> Refused | None:
    """Refuse to write the upserts of an aggregate, or of a lookup join, into a sink with another key.

    The start or the end of a window stands for the window, and a constant may be part of the key: the one row
    of an aggregate without GROUP BY needs one. A sink that is not known (`sink_key` None) is not refused.
    """
    if settings.sink_key is None or group_keys(node) is None:
        return None
    reason = sink_is_keyed_by_groups(node, settings.sink_key)
    return None if reason is None else upserts_replace_nothing(node, reason, settings)
