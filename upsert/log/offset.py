"""How far a reader of a table's log has come: a small value that Spark keeps in its checkpoint (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from upsert.codec import Jsonable, written_with
from upsert.errors import ConfigurationError
from upsert.kafka.client.records import whole
from upsert.store.version import Version

LOG: Final = "log"
"""Name in an offset of the reader's position in the log; it is missing while a snapshot is being read."""


@dataclass(frozen=True)
class LogOffset:
    """A position in the log of a table, given by its uuid.

    Attributes:
        version: a snapshot whose changes, and all before it, lie below ``at``, or were read from the files:
            messages of it and of earlier ones are skipped.
        at: of each partition, by number, the next offset to read.
        topic: the log; a table has one after the other, and offsets are of one of them.
        is_whole: whether each partition was read to its end, hence to that of a transaction.
        stream: tells two reads of one table in one query apart, where a read remembers rows.
        topic_id: changes when the topic is deleted and made again; None in checkpoints of older releases,
            and where the brokers have no ids.

    >>> offset = LogOffset("u1", Version.complete(4), {0: 12, 1: 7}, "t-log")
    >>> offset.to_json()["log"]
    {'at': {'0': 12, '1': 7}, 'stream': None, 'topic': 't-log', 'whole': False}
    >>> LogOffset.from_json(offset.to_json(), "t") == offset
    True
    """

    table: str
    version: Version
    at: Mapping[int, int]
    topic: str
    is_whole: bool = False
    stream: str | None = None
    topic_id: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The form that Spark keeps; equal offsets give equal text."""
        at = {str(partition): self.at[partition] for partition in sorted(self.at)}
        position = _Position(at, self.stream, self.topic, self.is_whole, self.topic_id)
        return {"table": self.table, "version": self.version.to_json(), LOG: position.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], of: str) -> Self:
        """The offset of its JSON form; refuses what is no offset of a log."""
        try:
            of_log = _Position.from_json(value[LOG])
            at = {int(partition): whole(offset) for partition, offset in of_log.at.items()}
            version = Version.from_json(value["version"])
            table = str(value["table"])
            return cls(table, version, at, of_log.topic, of_log.whole, of_log.stream, of_log.topic_id)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ConfigurationError(
                f"{of}: the checkpoint must hold offsets of the table's log, got {value!r}; choose another"
            ) from None


@dataclass(frozen=True)
class _Position(Jsonable):
    """The position of a ``LogOffset`` in its log, as JSON has it."""

    at: Mapping[str, int]
    stream: str | None
    topic: str
    whole: bool
    topic_id: str | None = field(default=None, metadata=written_with("topic_id"))


@dataclass(frozen=True)
class LogRange:
    """Offsets of one partition of the log, that of a bucket, that one micro-batch reads.

    Attributes:
        skip: messages of this snapshot and of earlier ones are skipped.
        is_whole: whether it ends with the end of a transaction.
        stream: the read that remembers rows.
        begins_whole: whether it begins behind the end of a transaction.
    """

    partition: int
    start: int
    end: int
    skip: int
    is_whole: bool = False
    stream: str | None = None
    begins_whole: bool = False

    @property
    def behind_records(self) -> int:
        """The offset behind its last record.

        The end of a transaction takes an offset and is no record: a consumer that reads up to it waits for
        one until Kafka answers that there is none.
        """
        return self.end - self.is_whole


def ranges(start: LogOffset, end: LogOffset) -> list[LogRange]:
    """What lies between two offsets; a partition with nothing in it has none."""
    skip = start.version.base
    return [
        LogRange(partition, start.at[partition], reached, skip, end.is_whole, end.stream, start.is_whole)
        for partition, reached in sorted(end.at.items())
        if start.at[partition] < reached
    ]


def offsets_of_snapshot(log_offsets: Mapping[str, Any], partitions: int) -> dict[int, int]:
    """Of each partition where a reader of a snapshot continues; 0 where nothing was known at its commit."""
    return {number: whole(log_offsets.get(str(number), 0)) for number in range(partitions)}
