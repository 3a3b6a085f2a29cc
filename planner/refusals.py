"""Refusals: why a plan, or a rewrite of it, cannot be right, and what its author can do (pure).

A rewrite that keeps the user's own relation keeps its options with it. One that reads the table in another
way must do what each option says, or it is refused by the option's name: an option that is not listed in
`HELD` is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Final, TypeVar

from deltajoin.errors import Refused as Refused  # which rules give, and joins by lookups
from planner.plan.nodes import Opaque, Plan
from planner.plan.sources import KafkaTopic, ManagedTable
from upsert.errors import UpsertError
from upsert.types import quoted

Checked = TypeVar("Checked")


def first_refusal(conditions: Iterable[Callable[[Checked], Refused | None]], node: Checked) -> Refused | None:
    """Why the first condition fails that does, in order; None if all hold."""
    return next((refused for condition in conditions if (refused := condition(node))), None)


FOR_A_VIEW: Final = (
    "make the whole query a materialized view, which needs no other table or index: "
    "CREATE MATERIALIZED VIEW … AS SELECT …, or catalog.create_view"
)
"""The remedy for what one streaming query cannot hold."""


def adding_index(table: str, columns: Iterable[str]) -> str:
    """The remedy for an index that lacks: a statement.

    >>> adding_index("visits", ["guest", "at night"])
    'ALTER TABLE visits ADD INDEX (guest, `at night`)'
    """
    names = (name if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) else quoted(name) for name in columns)
    return f"ALTER TABLE {table} ADD INDEX ({', '.join(names)})"


class PlanError(UpsertError):
    """The query reads changelogs in a way that has no right answer here; nothing was run.

    `refusals` holds each reason with its remedy; `is_for_a_view` is whether a view can hold the query.
    """

    def __init__(self, refusals: Sequence[Refused], *, is_for_a_view: bool = False) -> None:
        reasons = "\n".join(dict.fromkeys(map(str, refusals)))
        super().__init__(f"{reasons}; or {FOR_A_VIEW}" if is_for_a_view else reasons)
        self.refusals = tuple(refusals)
        self.is_for_a_view = is_for_a_view


class PlanBuildError(UpsertError):
    """The plan that the rules made cannot be built in Spark; the query was left alone."""


class Rewrite(StrEnum):
    """What reads a managed table instead of the query's own relation."""

    DELTA_JOIN = "a delta join"
    AGGREGATE = "an aggregate by lookups"
    ENRICHMENT = "a lookup of a stream's rows"


_CHANGES: Final = frozenset(
    {
        *("path", "row-kind", "max-rows-per-trigger", "max-memory-per-task", "scan.where"),
        *("consumer-id", "consumer.lease", "scan.used-columns"),
    }
)

HELD: Final = {
    # `metadata.columns` as long as nothing uses them; else refused, for a row that is looked up has no commit
    Rewrite.DELTA_JOIN: _CHANGES | {"metadata.columns"},
    Rewrite.AGGREGATE: _CHANGES | {"metadata.columns"},
    # `scan.pinned` is for batches: a stream looks up what is newest when it processes a row
    Rewrite.ENRICHMENT: frozenset(
        {
            *("path", "row-kind", "scan.mode", "scan.snapshot-id", "scan.where", "scan.pinned"),
            "scan.used-columns",
        }
    ),
}
"""The options that each rewrite follows. They read files, so `scan.source` = 'files' is held."""


def not_held(table: ManagedTable, rewrite: Rewrite) -> Refused | None:
    """The refusal of a rewrite that would drop an option of the read; None if it holds all of them."""
    lost = set(table.asked - HELD[rewrite])
    if rewrite is not Rewrite.ENRICHMENT and table.scan_mode != "full":
        lost.add("scan.mode")  # also where the table itself says where its streams begin
    if not lost:
        return None
    which = f"option{'s' if len(lost) > 1 else ''} {', '.join(map(repr, sorted(lost)))}"
    return Refused(
        f"table {table.name!r} is read with the {which}, which {rewrite} cannot follow",
        f"leave out the {which}",
    )


def read_apart(topic: KafkaTopic) -> tuple[str, str]:
    """What reads a topic with options that its mirror does not have, in words, and the remedy."""
    return (
        f"reads the topic {topic.name!r} with {topic.apart} of its own, without which its mirror is kept",
        f"leave out {topic.apart}, or give it in CREATE TABLE … WITH (…), whose options the mirror has",
    )


_OPERATORS: Final = {
    "Aggregate": "an aggregate",
    "ArrowEvalPython": "a Python function",
    "AsOfJoin": "an event-time temporal join",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "Distinct": "DISTINCT",
    "Except": "EXCEPT",
    "Expand": "ROLLUP, CUBE or GROUPING SETS",
    "FlatMapGroupsInArrow": "applyInArrow",
    "FlatMapGroupsInPandas": "applyInPandas",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
    "Generate": "a generator",
    "GlobalLimit": "a limit",
    "Intersect": "INTERSECT",
    "Join": "a join",
    "LateralJoin": "a lateral join",
    "LocalLimit": "a limit",
    "MapInArrow": "mapInArrow",
    "MapInPandas": "mapInPandas",
    "Offset": "an offset",
    "RegularJoin": "a join",
    "Sample": "a sample",
    "Sort": "a sort",
    "Tail": "a tail",
    "TransformWithStateInPySpark": "transformWithState",
    "Union": "a union",
    "Unpivot": "UNPIVOT",
    "Window": "a window function",
    "WithCTE": "a common table expression",
}
"""What people call a node that Catalyst calls so."""


def operator_in_words(node: Plan) -> str:
    """What people call the operator of a node."""
    name = node.name if isinstance(node, Opaque) else type(node).__name__
    return _OPERATORS.get(name, f"the operator {name!r}")
