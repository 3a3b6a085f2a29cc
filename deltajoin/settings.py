"""Options of delta joins: as arguments, in the session, and under the names of FLIP-486 and of Flink (pure).

They are declared here alone. Those that only the planner heeds (`strategy`) are among them, since the session
holds all of them together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self

from upsert.errors import ConfigurationError
from upsert.options import (
    Option,
    boolean,
    held,
    one_of,
    parse,
    positive_duration_ms,
    positive_int,
    text,
    values_held,
)

SESSION_PREFIX: Final = "spark.deltajoin."
FLINK_PREFIXES: Final = ("table.optimizer.delta-join.", "table.exec.delta-join.")
"""What begins with one of these in a session must be an option that is known."""

PHYSICAL: Final = ("auto", "fused", "shuffled", "stateful")
"""Physical forms of a join; of managed tables ``auto`` is ``fused``."""
FIRST_LOADS: Final = ("auto", "batch", "micro-batches")

OPTIONS: Final = (
    Option(
        "strategy",
        one_of("auto", "force", "none"),
        "auto: delta joins, and regular joins where a delta join is not possible; force: each join of the "
        "query must become a delta join; none: no delta join",
        "auto",
        aliases=("table.optimizer.delta-join.strategy",),
    ),
    Option(
        "physical",
        one_of(*PHYSICAL),
        "fused: the join runs inside the source; shuffled: in stateless tasks after a shuffle; stateful: in "
        "a stateful operator with caches; auto: fused, and for a large micro-batch that is written into a "
        "managed table the cheaper one of fused and shuffled",
        "auto",
    ),
    Option(
        "consistency",
        one_of("snapshot", "latest"),
        "snapshot: lookups read pinned versions, and the result is exact; latest: they read the newest rows",
        "snapshot",
    ),
    Option(
        "first-load",
        one_of(*FIRST_LOADS),
        "batch: the first micro-batch joins all existing rows; micro-batches: it obeys the read limit; auto: "
        "batch if one table is in every row of the result",
        "auto",
    ),
    Option(
        "shards",
        positive_int,
        "tasks that share the join of a micro-batch; as many as the session has cores if not given",
        None,
    ),
    Option(
        "cache.enabled",
        boolean,
        "whether looked up rows are kept for later micro-batches",
        True,
        aliases=("table.exec.delta-join.cache-enabled", "table.exec.delta-join.cache-enable"),
    ),
    Option(
        "left.cache-size",
        positive_int,
        "join keys of the left side whose rows are kept, in each shard",
        10_000,
        aliases=("table.exec.delta-join.left.cache-size", "table.exec.delta-join.left-cache-size"),
    ),
    Option(
        "right.cache-size",
        positive_int,
        "join keys of the right side whose rows are kept, in each shard",
        10_000,
        aliases=("table.exec.delta-join.right.cache-size", "table.exec.delta-join.right-cache-size"),
    ),
    Option("cache.max-bytes", positive_int, "bytes of one side's kept rows, in each shard", 64 * 1024 * 1024),
    Option(
        "async.buffer-capacity",
        positive_int,
        "lookups of a shard that are in flight together",
        1_000,
        aliases=("table.exec.async-lookup.buffer-capacity",),
    ),
    Option(
        "async.timeout",
        positive_duration_ms,
        "longest time that a lookup with all its retries may take",
        180_000,
        aliases=("table.exec.async-lookup.timeout",),
    ),
    Option(
        "on-error",
        one_of("fail", "queue"),
        "fail: a lookup that fails for good stops the query; queue: its row waits, and later ones of its key",
        "fail",
    ),
    Option(
        "changelog",
        one_of("auto", "all", "upsert"),
        "what a join of streams with lookups gives: upsert: +U and -D by its key; all: every kind of change, "
        "-U with the row before; auto: all where something above it needs -U and state-path is given",
        "auto",
    ),
    Option(
        "state-path",
        text,
        "folder on a disk that driver and executors share, where such a join with changelog = all keeps the "
        "rows that it has given, in managed tables",
        None,
    ),
)
_ALIASES: Final = {alias for option in OPTIONS for alias in option.aliases}
_own: Final = partial(held, OPTIONS)


@dataclass(frozen=True)
class JoinSettings:
    """The options of one call, converted; times are in milliseconds.

    Attributes are named as the options, with `_` for `.` and `-`; see `OPTIONS` for what they mean.
    """

    strategy: str = _own("strategy")
    physical: str = _own("physical")
    consistency: str = _own("consistency")
    first_load: str = _own("first-load")
    shards: int | None = _own("shards")
    cache_enabled: bool = _own("cache.enabled")
    left_cache_size: int = _own("left.cache-size")
    right_cache_size: int = _own("right.cache-size")
    cache_max_bytes: int = _own("cache.max-bytes")
    async_buffer_capacity: int = _own("async.buffer-capacity")
    async_timeout: int = _own("async.timeout")
    on_error: str = _own("on-error")
    changelog: str = _own("changelog")
    state_path: str | None = _own("state-path")

    @classmethod
    def of(cls, arguments: Mapping[str, Any], session: Mapping[str, str], caller: str = "optimize") -> Self:
        """The options given as arguments, and those of the session's configuration that are not.

        Arguments have the names of attributes or of options; ``caller`` is who was called, for messages.

        >>> found = JoinSettings.of({"cache_enabled": False}, {"table.exec.delta-join.left-cache-size": "7"})
        >>> found.cache_enabled, found.left_cache_size, found.right_cache_size
        (False, 7, 10000)
        """
        in_session = {key.removeprefix(SESSION_PREFIX): value for key, value in _of_joins(session).items()}
        given = {_KEYS.get(name, name): str(value) for name, value in arguments.items()}
        values = parse("the session's delta join options", OPTIONS, in_session)
        overriding = parse(caller, OPTIONS, given)
        chosen = values | {key: overriding[key] for key in given}
        if chosen["on-error"] == "queue" and chosen["physical"] in ("fused", "shuffled"):
            raise ConfigurationError(
                f"{caller}: option 'on-error' = 'queue' needs physical = 'stateful', which has a queue, got "
                f"{chosen['physical']!r}"
            )
        if chosen["consistency"] == "latest" and chosen["physical"] in ("fused", "shuffled"):
            raise ConfigurationError(
                f"{caller}: option 'consistency' = 'latest' needs physical = 'stateful', got "
                f"{chosen['physical']!r}; the other forms read snapshots"
            )
        return cls(**values_held(cls, chosen))


def given_in(
    arguments: Mapping[str, Any], session: Mapping[str, str]
) -> tuple[frozenset[str], Mapping[str, str]]:
    """The keys of the options that a call gives, and those of the session with the names they have there.

    >>> given_in({"on_error": "fail"}, {"spark.deltajoin.shards": "3", "spark.app.name": "x"})
    (frozenset({'on-error'}), {'shards': 'spark.deltajoin.shards'})
    """
    keys = {name: option.key for option in OPTIONS for name in (option.key, *option.aliases)}
    of_session = {keys.get(name.removeprefix(SESSION_PREFIX), name): name for name in _of_joins(session)}
    return frozenset(keys.get(_KEYS.get(name, name), name) for name in arguments), of_session


def _of_joins(session: Mapping[str, str]) -> Mapping[str, str]:
    """What of a session's configuration is about joins."""
    return {
        key: value
        for key, value in session.items()
        if key.startswith((SESSION_PREFIX, *FLINK_PREFIXES)) or key in _ALIASES
    }


_KEYS: Final = {option.key.replace(".", "_").replace("-", "_"): option.key for option in OPTIONS}
