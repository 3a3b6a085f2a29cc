"""What the producer and the driver of the Kafka demo tell the supervisor."""

from __future__ import annotations

from dataclasses import dataclass

from examples.flights.messages import Message


@dataclass(frozen=True)
class Produced(Message):
    """The producer has written a step; `flights` and `weather` are changes so far, `records` all of them."""

    step: int
    until: str
    flights: int
    weather: int
    records: int


@dataclass(frozen=True)
class QueryStarted(Message):
    """A query of the driver runs; `plan` is what the planner made of it, in one line."""

    query: str
    plan: str


@dataclass(frozen=True)
class QueryBatch(Message):
    """A query of the driver has committed a micro-batch of so many changes out."""

    query: str
    number: int
    seconds: float
    rows: int
    state_rows: int
    state_bytes: int
