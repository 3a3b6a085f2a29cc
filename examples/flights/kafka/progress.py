"""What the Kafka demo knows about itself at any moment, folded from messages (pure; times are given)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from statistics import median

from examples.flights.kafka.messages import Produced, QueryBatch, QueryStarted
from examples.flights.messages import Loaded, Message
from examples.flights.telling import Rate, Telling


class Phase(StrEnum):
    """Where the demo is, in the words the user reads."""

    STARTING = "starting Spark and four queries"
    FIRST_BATCH = "the first micro-batches"
    PRODUCING = "changes flow"
    RESTARTING = "the driver is dead; records arrive on"
    CATCHING_UP = "all records produced; the queries catch up"
    COMPARING = "a consumer's view, compared with DuckDB's answer"
    DONE = "done"


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
    def last_batch(self) -> QueryBatch | None:
        """The newest micro-batch."""
        return self.batches[max(self.batches)] if self.batches else None

    @property
    def median_seconds(self) -> float:
        """Median duration of a micro-batch, 0 before the first."""
        return median(batch.seconds for batch in self.batches.values()) if self.batches else 0.0


@dataclass
class Progress(Telling):
    """Counters, phase and story of one run, by query; `killed` says when and where the driver was."""

    phase: str = Phase.STARTING
    queries: dict[str, QueryProgress] = field(default_factory=dict)
    loaded: Loaded | None = None
    produced: Produced | None = None
    killed: str = ""
    rate: Rate = field(default_factory=Rate)

    @classmethod
    def of(cls, queries: Iterable[QueryProgress]) -> Progress:
        """Before anything has happened."""
        return cls(queries={query.name: query for query in queries})

    def receive(self, message: Message) -> None:
        """Take in what a process said."""
        match message:
            case Loaded():
                self.loaded = message
            case Produced():
                self.produced = message
                self.rate.add(self.elapsed, message.records)
            case QueryStarted():
                query = self.queries[message.query]
                query.starts += 1
                query.plan = message.plan
            case QueryBatch():
                # a batch that the crash interrupted is reported by the second driver only
                self.queries[message.query].batches[message.number] = message

    @property
    def records(self) -> int:
        """Records produced so far."""
        return self.produced.records if self.produced else 0

    @property
    def share(self) -> float:
        """Share of the year that is produced, 0 to 1."""
        return (self.produced.step + 1) / self.loaded.steps if self.produced and self.loaded else 0.0

    @property
    def date(self) -> datetime | None:
        """The moment of 2013 that the producer has reached."""
        return datetime.fromisoformat(self.produced.until) if self.produced else None
