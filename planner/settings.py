"""Options of `optimize` and `explain`: as arguments, in the session, and under FLIP-486's names (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from upsert.errors import ConfigurationError
from upsert.options import Option, one_of, parse, positive_int

SESSION_PREFIX: Final = "spark.deltajoin."
FLINK_PREFIXES: Final = ("table.optimizer.delta-join.", "table.exec.delta-join.")

OPTIONS: Final = (
    Option(
        "strategy",
        one_of("auto", "force", "none"),
        "auto: delta joins where the query needs them; force: each join must become one; none: no delta join",
        default="auto",
        aliases=("table.optimizer.delta-join.strategy",),
    ),
    Option("physical", one_of("auto", "shuffled"), "physical form of a delta join", default="auto"),
    Option("consistency", one_of("snapshot"), "snapshot: lookups read pinned versions", default="snapshot"),
    Option(
        "shards",
        positive_int,
        "tasks that share the join of a micro-batch; as many as the session has cores if not given",
        default=None,
    ),
)


@dataclass(frozen=True)
class Settings:
    """The options of one call, converted."""

    strategy: str = "auto"
    physical: str = "auto"
    consistency: str = "snapshot"
    shards: int | None = None
    sink_key: tuple[str, ...] | None = None

    @classmethod
    def of(
        cls,
        arguments: Mapping[str, Any],
        session: Mapping[str, str],
        sink_key: Sequence[str] | None = None,
    ) -> Self:
        """The options given as arguments, and those of the session's configuration that are not.

        Args:
            arguments: options of the call.
            session: the session's configuration.
            sink_key: the primary key of the table that the result goes to, () for one without; None if it is
                not known. It belongs to one query, so it is no option of the session.

        Raises:
            ConfigurationError: an option is unknown or has a wrong value.

        >>> Settings.of({"shards": 4}, {"spark.deltajoin.strategy": "force"}, ["id"])
        Settings(strategy='force', physical='auto', consistency='snapshot', shards=4, sink_key=('id',))
        """
        if isinstance(sink_key, str):
            raise ConfigurationError(f"sink_key must be a sequence of column names, got {sink_key!r}")
        in_session = {
            key.removeprefix(SESSION_PREFIX): value
            for key, value in session.items()
            if key.startswith((SESSION_PREFIX, *FLINK_PREFIXES))
        }
        given = {name.replace("_", "-"): str(value) for name, value in arguments.items()}
        values = parse("the session's delta join options", OPTIONS, in_session)
        overriding = parse("optimize", OPTIONS, given)
        return cls(
            **(values | {key: overriding[key] for key in given}),
            sink_key=None if sink_key is None else tuple(sink_key),
        )
