"""Under which conditions an aggregate over changes has a right answer, and by signed sums (pure)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final

from planner.aggregate_nodes import Aggregate, WindowKind
from planner.changelogs import Changelog
from planner.conditions import Refused, sources
from planner.expressions import Aggregation, walk_expression
from planner.signed_sums import SIGNED, is_summable
from planner.sources import KafkaTopic, ManagedTable, Mode
from planner.trees import expressions, walk
from planner.unstable_columns import deciding, first_unstable, unstable_columns
from planner.words import without_ids

AggregateCondition = Callable[[Aggregate], Refused | None]

_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_EXACT_DIGITS: Final = 28
"""Digits of a DECIMAL of which ten billion values can be added up: a sum has ten digits more, at most 38."""


_BY_COLUMN: Final = "use min_by(value, column) or max_by(value, column), which say what they go by"
_BY_ORDER: Final = {
    "AnyValue": "use min(value), which is one of them",
    "First": _BY_COLUMN,
    "Last": _BY_COLUMN,
    "ListAgg": "use array_join(array_sort(collect_list(value)), ', '), which has an order",
}
"""Functions of which the order of rows decides, and what to use instead."""


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
                return Refused(
                    f"an aggregate over {name!r}, read with scan.mode = {mode!r}, would take away rows that "
                    "it never counted",
                    "leave out 'scan.mode'",
                )
            case Changelog(name, origin=KafkaTopic(options=options)) if _begins_late(options):
                return Refused(
                    f"an aggregate over {name!r}, read with scan.startup.mode = "
                    f"{options['scan.startup.mode']!r}, would take away rows that it never counted",
                    "leave out 'scan.startup.mode'",
                )
    return None


def groups_are_no_sessions(node: Aggregate) -> Refused | None:
    """Where a session begins and ends depends on all of its rows, so one that goes may split it."""
    if any(group.window is WindowKind.SESSION for group in node.groups):
        return Refused(
            f"session_window over the changes of {sources(node)}: a row that is taken away may split a "
            "session, which sums of signs cannot tell",
            "group by window(…), or by a session's id that is written with its rows",
        )
    return None


def functions_need_no_order(node: Aggregate) -> Refused | None:
    """Which row is the first is not defined for the rows of a table, and less so for its changes."""
    for function in aggregations(node):
        if (remedy := _BY_ORDER.get(function.name)) is not None:
            return Refused(
                f"{without_ids(function)} over the changes of {sources(node)} depends on the order in which "
                "rows come, which changes do not have",
                remedy,
            )
    return None


def groups_are_of_lasting_values(node: Aggregate) -> Refused | None:
    """A row must leave the group that it came into, so nothing may go by metadata of the change."""
    unstable = unstable_columns(node.child)
    found = first_unstable(chain(expressions(node), deciding(node.child)), unstable)
    if found is None:
        return None
    return Refused(
        f"an aggregate over the changes of {sources(node)} goes by {found!r}, metadata of a change: the one "
        "that takes a row away has another value",
        "leave the column out of groups, functions and the conditions below, or write the changes into a "
        "table with catalog.write_changes and group its rows",
    )


AGGREGATE_CONDITIONS: Final[tuple[AggregateCondition, ...]] = (
    changes_are_whole,
    changes_are_read_from_the_beginning,
    groups_are_no_sessions,
    groups_are_of_lasting_values,
    functions_need_no_order,
)
"""What every aggregate over changes must fulfil."""


def functions_are_sums(node: Aggregate) -> str | None:
    """What a signed sum cannot answer must be computed anew from the rows of the group."""
    for function in aggregations(node):
        if function.name not in SIGNED:
            return f"{without_ids(function)} is no sum"
        if function.is_distinct:
            return f"{without_ids(function)} counts values, not rows"
    return None


def sums_can_be_undone(node: Aggregate) -> Refused | None:
    """A sum that has left its type's range never comes back."""
    for function in aggregations(node):
        if function.name not in ("Sum", "Average"):
            continue
        (type_,) = function.types
        if not is_summable(type_):
            return Refused(
                f"{without_ids(function)} over the changes of {sources(node)} is of type {type_}, whose sums "
                "cannot be taken apart here",
                "sum a number, such as the microseconds of an interval",
            )
        is_loud = any("ANSI" in told for _, told in function.detail)
        if not is_loud and (found := _DECIMAL.fullmatch(type_)) and int(found[1]) > _EXACT_DIGITS:
            return Refused(
                f"{without_ids(function)} over the changes of {sources(node)} is of type {type_}: a sum that "
                "overflows becomes NULL, and would stay NULL when rows are taken away",
                f"write CAST(… AS DECIMAL({_EXACT_DIGITS}, {min(int(found[2]), _EXACT_DIGITS)})), or set "
                "spark.sql.ansi.enabled, which makes an overflow an error",
            )
    return None


def aggregations(node: Aggregate) -> Iterator[Aggregation]:
    """The aggregate functions of the node, each once, in the order of its columns."""
    found = (part for output in node.outputs for part in walk_expression(output.value))
    yield from dict.fromkeys(part for part in found if isinstance(part, Aggregation))


def _begins_late(options: object) -> bool:
    given = options.get("scan.startup.mode", "earliest-offset") if isinstance(options, dict) else None
    return given not in (None, "earliest-offset")
