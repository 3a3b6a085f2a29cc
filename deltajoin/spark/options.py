"""Options of the Spark format ``delta-join`` (pure)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from deltajoin.settings import FIRST_LOADS
from deltajoin.spec import DeltaJoinSpec
from upsert.errors import ConfigurationError
from upsert.managed.options import DEFAULT_LEASE_MS
from upsert.options import Option, duration_ms, one_of, parse, text

FORMAT: Final = "delta-join"

OPTIONS: Final = (
    Option("spec", text, "the join: JSON text of a DeltaJoinSpec"),
    Option(
        "rows",
        one_of("joined", "changes"),
        "joined: the source joins and gives rows; changes: it gives the changes of each shard as blobs, "
        "for a join above it",
        default="joined",
    ),
    Option(
        "first-load",
        one_of(*FIRST_LOADS),
        "batch: the first micro-batch joins all existing rows, at pinned versions; micro-batches: it obeys "
        "max_rows_per_trigger as any other; auto: batch where one table drives the join alone",
        default="auto",
    ),
    Option("start", text, "where to begin: the offset that another checkpoint has reached", default=None),
    Option(
        "consumer-id",
        text,
        "name under which the query holds what a restart would read again; default: a random one, which its "
        "checkpoint keeps",
        default=None,
    ),
    Option(
        "consumer.lease",
        duration_ms,
        "how long that is held after the query was last heard of; 0 s: nothing is held",
        default=DEFAULT_LEASE_MS,
    ),
)


@dataclass(frozen=True)
class SourceOptions:
    """The options of one read, converted.

    Attributes:
        spec: what to join.
        gives_joined: whether the source joins itself.
        first_load: one of ``FIRST_LOADS``.
        start: JSON values of the offset to begin with; None for the empty tables.
        consumer_id: name of the query as a consumer of its tables; None for one of its own.
        lease_ms: how long its versions are held after it was last heard of.
    """

    spec: DeltaJoinSpec
    gives_joined: bool = True
    first_load: str = "auto"
    start: Mapping[str, Any] | None = None
    consumer_id: str | None = None
    lease_ms: int = DEFAULT_LEASE_MS

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """The options that a read was given."""
        values = parse(FORMAT, OPTIONS, options)
        spec = DeltaJoinSpec.from_json(values["spec"])
        return cls(
            spec,
            values["rows"] == "joined",
            values["first-load"],
            _offset(values["start"]),
            values["consumer-id"],
            values["consumer.lease"],
        )

    def to_options(self) -> dict[str, str]:
        """The texts that ``parse`` reads as these options."""
        options = {
            "spec": self.spec.to_json(),
            "rows": "joined" if self.gives_joined else "changes",
            "first-load": self.first_load,
            "consumer.lease": str(self.lease_ms),
        }
        if self.consumer_id is not None:
            options["consumer-id"] = self.consumer_id
        return options if self.start is None else {**options, "start": json.dumps(self.start)}


def _offset(start: str | None) -> Mapping[str, Any] | None:
    if start is None:
        return None
    try:
        value = json.loads(start)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ConfigurationError(f"{FORMAT}: option 'start' must be an offset in JSON, got {start[:80]!r}")
    return value
