"""What the processes of the demo tell the supervisor: one JSON object a line in a file of their own.

A file and not a pipe: what a process said before it was killed can be read at leisure, and later too.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TextIO

_TYPES: Final[dict[str, type[Message]]] = {}


@dataclass(frozen=True)
class Message:
    """What one process tells another: a dataclass of numbers and texts, which travels under its own name."""

    def __init_subclass__(cls) -> None:
        _TYPES[cls.__name__] = cls


@dataclass(frozen=True)
class Loaded(Message):
    """The replayer has read the source files."""

    steps: int
    changes: int


@dataclass(frozen=True)
class Written(Message):
    """The writer has done a step; `flights` and `weather` are changes so far."""

    step: int
    until: str
    flights: int
    weather: int

    @property
    def total(self) -> int:
        """What the writer has written so far."""
        return self.flights + self.weather


@dataclass(frozen=True)
class Wrote(Written):
    """The replayer has committed a step to the tables; snapshots are those after the step."""

    flights_snapshot: int
    weather_snapshot: int


@dataclass(frozen=True)
class Produced(Written):
    """The producer has written a step to Kafka, which makes so many records so far."""

    records: int

    @property
    def total(self) -> int:
        """Records, of which a change may take several."""
        return self.records


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
    deletes: int = 0


def encode(message: Message) -> str:
    """The message as one line.

    >>> encode(Loaded(steps=2, changes=10))
    '{"type": "Loaded", "steps": 2, "changes": 10}'
    """
    return json.dumps({"type": type(message).__name__} | asdict(message))


def decode(line: str) -> Message:
    """The message of one line that `encode` made."""
    fields: dict[str, Any] = json.loads(line)
    return _TYPES[fields.pop("type")](**fields)


class Sender:
    """Appends messages to a file, each visible to readers as soon as it is sent."""

    def __init__(self, path: Path) -> None:
        self._file: TextIO = path.open("a", encoding="utf-8")

    def send(self, message: Message) -> None:
        """Append one message."""
        self._file.write(encode(message) + "\n")
        self._file.flush()


class Receiver:
    """Reads the messages that a file has gained since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def receive(self) -> list[Message]:
        """New messages, in order; none if the file is not there yet. A half-written line stays for later."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._position += len(whole)
        return [decode(line) for line in whole.decode("utf-8").splitlines()]
