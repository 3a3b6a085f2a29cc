"""Options of `optimize` and `explain`: those of delta joins, and where the result goes (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from deltajoin.settings import JoinSettings
from upsert.errors import ConfigurationError


@dataclass(frozen=True)
class Settings(JoinSettings):
    """The options of one call, converted, and what belongs to one query and is no option of the session.

    `sink_key` is the primary key of the table that the result goes to, () for a table without one, None if it
    is not known. `start_from` is the checkpoint whose query the joins go on from, None for none.
    """

    sink_key: tuple[str, ...] | None = None
    start_from: str | None = None

    @classmethod
    def of_query(
        cls,
        arguments: Mapping[str, Any],
        session: Mapping[str, str],
        sink_key: Sequence[str] | None = None,
        start_from: str | None = None,
    ) -> Self:
        """The options given as arguments, those of the session that are not, and the sink's key.

        Raises:
            ConfigurationError: an option is unknown or has a wrong value.

        >>> found = Settings.of_query({"shards": 4}, {"spark.deltajoin.strategy": "force"}, ["id"])
        >>> found.strategy, found.shards, found.sink_key
        ('force', 4, ('id',))
        """
        if isinstance(sink_key, str):
            raise ConfigurationError(f"sink_key must be a sequence of column names, got {sink_key!r}")
        found = cls.of(arguments, session)
        key = None if sink_key is None else tuple(sink_key)
        return replace(found, sink_key=key, start_from=start_from)
