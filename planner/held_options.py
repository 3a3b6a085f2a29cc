"""Which options of a read hold where the planner reads the table in another way than the query did (pure).

A rewrite that keeps the user's own relation keeps its options with it. One that reads the table anew must do
what each of them says, or it is refused by the option's name: an option that is not listed here is refused.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from planner.conditions import Refused
from planner.sources import KafkaTopic, ManagedTable


class Rewrite(StrEnum):
    """What reads a managed table instead of the query's own relation."""

    DELTA_JOIN = "a delta join"
    AGGREGATE = "an aggregate by lookups"
    ENRICHMENT = "a lookup of a stream's rows"


_CHANGES: Final = frozenset(
    {"path", "row-kind", "max-rows-per-trigger", "scan.where", "consumer-id", "consumer.lease"}
)
_METADATA: Final = "metadata.columns"
"""Held as long as nothing uses the columns; else refused, for a lookup has no commit to tell of."""
HELD: Final = {
    Rewrite.DELTA_JOIN: _CHANGES | {_METADATA},
    Rewrite.AGGREGATE: _CHANGES | {_METADATA},
    # `scan.pinned` is for batches: a stream looks up what is newest when it processes a row
    Rewrite.ENRICHMENT: frozenset(
        {"path", "row-kind", "scan.mode", "scan.snapshot-id", "scan.where", "scan.pinned"}
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
