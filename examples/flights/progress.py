"""What the demo knows about itself at any moment, folded from messages (pure; times are given)."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from statistics import median

from examples.flights.messages import Batch, Loaded, Message, Started, Wrote
from examples.flights.telling import Rate, Telling


class Phase(StrEnum):
    """Where the demo is, in the words the user reads."""

    STARTING = "starting Spark"
    FIRST_BATCH = "Spark's first micro-batch"
    REPLAYING = "joining while the tables change"
    RESTARTING = "the driver is dead; the tables change on"
    CATCHING_UP = "all changes written; the join catches up"
    COMPARING = "comparing with DuckDB's batch join"
    DONE = "done"


@dataclass
class Progress(Telling):
    """Counters, phase and story of one run."""

    phase: str = Phase.STARTING
    loaded: Loaded | None = None
    wrote: Wrote | None = None
    starts: int = 0
    query: str = ""
    batches: dict[int, Batch] = field(default_factory=dict)
    checkpoint_bytes: int = 0
    joined: int = 0
    rate_in: Rate = field(default_factory=Rate)
    rate_out: Rate = field(default_factory=Rate)
    _history: list[Wrote] = field(default_factory=list)

    def receive(self, message: Message) -> None:
        """Take in what a process said."""
        match message:
            case Loaded():
                self.loaded = message
            case Started():
                self.starts += 1
                self.query = message.query
            case Wrote():
                self.wrote = message
                self._history.append(message)
                self.rate_in.add(self.elapsed, self.written)
            case Batch():
                # a batch that the crash interrupted is reported by the second driver only
                self.batches[message.number] = message
                self.rate_out.add(self.elapsed, self.rows_out)

    def joined_up_to(self, flights_snapshot: int, weather_snapshot: int) -> None:
        """Note the snapshots of flights and weather up to which the query has committed its result."""
        flights = bisect_right(self._history, flights_snapshot, key=lambda step: step.flights_snapshot)
        weather = bisect_right(self._history, weather_snapshot, key=lambda step: step.weather_snapshot)
        self.joined = (self._history[flights - 1].flights if flights else 0) + (
            self._history[weather - 1].weather if weather else 0
        )

    @property
    def written(self) -> int:
        """Changes of flights and weather that are committed."""
        return self.wrote.flights + self.wrote.weather if self.wrote else 0

    @property
    def share(self) -> float:
        """Share of the replay's steps that is written, 0 to 1."""
        return (self.wrote.step + 1) / self.loaded.steps if self.wrote and self.loaded else 0.0

    @property
    def date(self) -> datetime | None:
        """The moment of 2013 that the replay has reached."""
        return datetime.fromisoformat(self.wrote.until) if self.wrote else None

    @property
    def rows_out(self) -> int:
        """Changed rows that the query has written to the joined table."""
        return sum(batch.rows for batch in self.batches.values())

    @property
    def retracted(self) -> int:
        """Those of the changed rows that take a row back."""
        return sum(batch.deletes for batch in self.batches.values())

    @property
    def last_batch(self) -> Batch | None:
        """The newest micro-batch."""
        return self.batches[max(self.batches)] if self.batches else None

    @property
    def median_seconds(self) -> float:
        """Median duration of a micro-batch, 0 before the first."""
        return median(batch.seconds for batch in self.batches.values()) if self.batches else 0.0
