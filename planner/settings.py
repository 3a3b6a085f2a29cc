"""Options of `optimize` and `explain`, and which of them have no effect on a query (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from deltajoin.settings import OPTIONS, JoinSettings, given_in
from planner.plan.nodes import (
    Changelog,
    DeltaJoin,
    Enriched,
    EnrichedUpserts,
    Join,
    LookupAggregate,
    LookupChanges,
    LookupJoined,
    LookupRows,
    Plan,
    RegularJoin,
)
from planner.plan.trees import walk
from upsert.errors import ConfigurationError


@dataclass(frozen=True)
class Settings(JoinSettings):
    """The options of one call, converted, and what belongs to one query and is no option of the session.

    `sink_key` is the primary key of the table that the result goes to, () for a table without one, None if it
    is not known; `sink_rule` the option by which that table makes one row of several of a key, None for none.
    `start_from` is the checkpoint of the query that the joins continue, None for none. `small` are the
    folders of tables that an earlier plan of a view has taken for small, see `planner.views.stages`.
    """

    sink_key: tuple[str, ...] | None = None
    sink_rule: str | None = None
    start_from: str | None = None
    small: frozenset[str] = frozenset()

    @classmethod
    def of_query(
        cls,
        arguments: Mapping[str, Any],
        session: Mapping[str, str],
        sink_key: Sequence[str] | None = None,
        start_from: str | None = None,
        *,
        sink_rule: str | None = None,
    ) -> Self:
        """The options given as arguments, those of the session that are not, and the sink's key.

        >>> found = Settings.of_query({"shards": 4}, {"spark.deltajoin.strategy": "force"}, ["id"])
        >>> found.strategy, found.shards, found.sink_key
        ('force', 4, ('id',))
        """
        if isinstance(sink_key, str):
            raise ConfigurationError(f"sink_key must be a sequence of column names, got {sink_key!r}")
        key = None if sink_key is None else tuple(sink_key)
        found = cls.of(arguments, session)
        return replace(found, sink_key=key, sink_rule=sink_rule, start_from=start_from)


OF_LOOKUP_JOINS: Final = frozenset(
    {
        *("cache.enabled", "left.cache-size", "right.cache-size", "cache.max-bytes", "changelog"),
        *("on-error", "state-path"),
    }
)
"""Options of joins of streams with lookups: an exact join keeps nothing."""

OF_LOOKUPS: Final = frozenset({"async.buffer-capacity", "async.timeout"})
"""Options of all lookups in sources, also of tables of a connector: an exact join calls none."""

OF_EXACT_JOINS: Final = frozenset({"first-load"})
"""Options of joins of managed tables."""


def unused(
    before: Plan, after: Plan, arguments: Mapping[str, Any], session: Mapping[str, str], caller: str
) -> Iterator[str]:
    """Sentences about the options that were given and do nothing in a plan.

    Options of the session are for all of its queries: a sentence names one only where a join does not follow
    it, and not where there is no join.
    """
    nodes = list(walk(after))
    origins = (node.origin for node in nodes if isinstance(node, Changelog))
    has_lookups = any(isinstance(origin, LookupJoined | LookupChanges) for origin in origins)
    enriched = [node for node in nodes if isinstance(node, Enriched | EnrichedUpserts)]
    asks = has_lookups or any(isinstance(node.rows, LookupRows) for node in enriched)
    has_exact = any(isinstance(node, DeltaJoin) for node in nodes)
    has_joins = has_lookups or has_exact or any(isinstance(n, RegularJoin | EnrichedUpserts) for n in nodes)
    has_any = has_joins or any(isinstance(node, Join) for node in walk(before))
    has_steps = has_any or any(isinstance(node, LookupAggregate) for node in nodes)
    kinds = (
        (OF_LOOKUP_JOINS, has_lookups, "joins of streams with lookups, deltajoin.with_lookup,"),
        (OF_LOOKUPS, asks, "joins that look rows up over HTTP, in PostgreSQL or another lookup source"),
        (OF_EXACT_JOINS, has_exact, "delta joins of managed tables"),
        # `strategy` says what must become of each join, which holds for queries without one
        ({"physical", "consistency"}, has_any, "joins"),
        ({"shards"}, has_steps, "joins and aggregates by lookups"),
    )
    in_call, in_session = given_in(arguments, session)
    for options, is_used, what in kinds:
        if is_used:
            continue
        for option in (one.key for one in OPTIONS if one.key in options):
            if option in in_call:
                yield f"{caller}: option {option!r} is of {what} and the query has none; leave it out"
            elif option in in_session and has_joins:
                yield (
                    f"the session's option {in_session[option]!r} is of {what} and this query has none; its "
                    "joins do not follow it"
                )
