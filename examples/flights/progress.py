"""What a run knows about itself at any moment, folded from messages (pure; times are given)."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from statistics import median
from typing import Final

from examples.flights.messages import Loaded, Message, QueryBatch, QueryStarted, Written, Wrote

_RATE_WINDOW_S: Final = 4.0


class Phase(StrEnum):
    """Where the run is, in the words the user reads."""

    STARTING = "starting Spark"
    FIRST_BATCH = "the first micro-batches"
    RUNNING = "changes flow"
    RESTARTING = "the driver is dead; changes arrive on"
    CATCHING_UP = "all changes written; the queries catch up"
    COMPARING = "comparing with DuckDB's answer"
    DONE = "done"


@dataclass
class Rate:
    """Growth of a counter a second, over the last few seconds."""

    seen: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, now: float, total: int) -> None:
        """Note the counter's value at a time."""
        self.seen.append((now, total))

    def at(self, now: float) -> float:
        """Growth a second, 0 when nothing was noted lately."""
        while len(self.seen) > 1 and self.seen[1][0] <= now - _RATE_WINDOW_S:
            self.seen.popleft()
        if len(self.seen) < 2 or self.seen[-1][0] < now - _RATE_WINDOW_S:
            return 0.0
        (then, before), (_, total) = self.seen[0], self.seen[-1]
        return (total - before) / (now - then) if now > then else 0.0


@dataclass
class QueryProgress:
    """Counters of one query; `records` have been read, `behind` are there and have not, in `unit`."""

    name: str
    route: str
    unit: str = "records"
    starts: int = 0
    plan: str = ""
    records: int = 0
    behind: int = 0
    batches: dict[int, QueryBatch] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Changes that the query has written."""
        return sum(batch.rows for batch in self.batches.values())

    @property
    def deletes(self) -> int:
        """Those of the changes that take a row back."""
        return sum(batch.deletes for batch in self.batches.values())

    @property
    def last_batch(self) -> QueryBatch | None:
        """The newest micro-batch."""
        return self.batches[max(self.batches)] if self.batches else None

    @property
    def median_seconds(self) -> float:
        """Median duration of a micro-batch, 0 before the first."""
        return median(batch.seconds for batch in self.batches.values()) if self.batches else 0.0


@dataclass
class Progress:
    """Counters, phase and story of one run.

    Attributes:
        queries: the queries of the driver, by name.
        elapsed: time of the last update in seconds.
        killed: when and where the driver was killed.
        joined: changes of which the join of the tables has committed the result.
        largest: the micro-batch that has joined most changes, and how many these are.
        checkpoint_bytes: of all queries.
    """

    queries: dict[str, QueryProgress] = field(default_factory=dict)
    elapsed: float = 0.0
    phase: str = Phase.STARTING
    story: list[tuple[float, str]] = field(default_factory=list)
    loaded: Loaded | None = None
    written: Written | None = None
    killed: str = ""
    joined: int = 0
    largest: tuple[QueryBatch, int] | None = None
    checkpoint_bytes: int = 0
    rate_in: Rate = field(default_factory=Rate)
    rate_out: Rate = field(default_factory=Rate)
    _history: list[Wrote] = field(default_factory=list)

    @classmethod
    def of(cls, queries: Iterable[QueryProgress]) -> Progress:
        """Before anything has happened."""
        return cls({query.name: query for query in queries})

    def tell(self, text: str) -> None:
        """Add a line to the story; it may have rich's markup."""
        self.story.append((self.elapsed, text))

    def receive(self, message: Message) -> None:
        """Take in what a process said."""
        match message:
            case Loaded():
                self.loaded = message
            case Written():
                self.written = message
                self.rate_in.add(self.elapsed, message.total)
                if isinstance(message, Wrote):
                    self._history.append(message)
            case QueryStarted():
                query = self.queries[message.query]
                query.starts += 1
                query.plan = message.plan
            case QueryBatch():
                # a batch that the crash interrupted is reported by the second driver only
                self.queries[message.query].batches[message.number] = message
                self.rate_out.add(self.elapsed, sum(query.rows for query in self.queries.values()))

    def changes_until(self, flights_snapshot: int, weather_snapshot: int) -> int:
        """Changes of flights and weather that are written until a snapshot of each."""
        flights = bisect_right(self._history, flights_snapshot, key=lambda step: step.flights_snapshot)
        weather = bisect_right(self._history, weather_snapshot, key=lambda step: step.weather_snapshot)
        return (self._history[flights - 1].flights if flights else 0) + (
            self._history[weather - 1].weather if weather else 0
        )

    @property
    def changes(self) -> int:
        """Changes of flights and weather that are written."""
        return self.written.flights + self.written.weather if self.written else 0

    @property
    def total(self) -> int:
        """Changes in the tables, or records in Kafka."""
        return self.written.total if self.written else 0

    @property
    def share(self) -> float:
        """Share of the year's steps that is written, 0 to 1."""
        return (self.written.step + 1) / self.loaded.steps if self.written and self.loaded else 0.0

    @property
    def date(self) -> datetime | None:
        """The moment of 2013 that the writer has reached."""
        return datetime.fromisoformat(self.written.until) if self.written else None
