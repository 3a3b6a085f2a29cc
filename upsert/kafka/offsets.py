"""How far a stream over Kafka has read, and what its next step reads (pure).

For each partition it is kept where the read began, where it is, and where it ends when it is bounded. Spark's
checkpoint has it as JSON with sorted names, for Spark compares offsets as text. It says all that a replay
needs, so a micro-batch reads the same records however often it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Self

from upsert.codec import Jsonable
from upsert.errors import ConfigurationError
from upsert.kafka.client.offsets import whole
from upsert.kafka.client.records import TopicPartition


@dataclass(frozen=True)
class PartitionProgress:
    """Where the read of one partition stands.

    Attributes:
        begin: first offset that the query has read, or will.
        at: next offset to read.
        until: where the read ends, exclusive; None where it never does.
    """

    begin: int
    at: int
    until: int | None = None

    @property
    def is_at_end(self) -> bool:
        """Whether nothing is left to read, now or later."""
        return self.until is not None and self.at >= self.until

    def capped(self, end: int) -> int:
        """The end of the log, or where the read ends if that comes first; never before ``at``."""
        return max(self.at, end if self.until is None else min(end, self.until))


@dataclass(frozen=True)
class Offset:
    """Where a stream stands in all its partitions.

    Attributes:
        partitions: how far each is read.
        ids: the uuid of each topic, by which one that was deleted and created again is told; None from
            brokers that have none.
        stream: a name of its own for every stream, given with its first step: what it remembers is kept under
            it, for one query may read a topic twice. None before that.

    >>> one = Offset({TopicPartition("words", 0): PartitionProgress(0, 42)}, {"words": "x7"}, "s1")
    >>> one.to_json()["topics"]
    {'words': {'begin': {'0': 0}, 'id': 'x7', 'partitions': {'0': 42}, 'until': {}}}
    >>> Offset.from_json(one.to_json(), "upsert-kafka") == one
    True
    """

    partitions: Mapping[TopicPartition, PartitionProgress] = field(default_factory=dict)
    ids: Mapping[str, str | None] = field(default_factory=dict)
    stream: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The form that Spark keeps; equal offsets give equal text."""
        topics = {name: _Topic({}, self.ids[name], {}, {}) for name in sorted(self.ids)}
        for (topic, partition), progress in sorted(self.partitions.items()):
            number, entry = str(partition), topics[topic]
            entry.begin[number] = progress.begin
            entry.partitions[number] = progress.at
            if progress.until is not None:
                entry.until[number] = progress.until
        return _Topics(self.stream, topics).to_json()

    @classmethod
    def from_json(cls, value: Mapping[str, Any], of: str) -> Self:
        """The offset of its JSON form.

        Raises:
            ConfigurationError: it is no offset of this source.
        """
        try:
            kept = _Topics.from_json(value)
            partitions = {
                TopicPartition(name, int(number)): PartitionProgress(
                    whole(entry.begin[number]),
                    whole(at),
                    whole(entry.until[number]) if number in entry.until else None,
                )
                for name, entry in kept.topics.items()
                for number, at in entry.partitions.items()
            }
            return cls(partitions, {name: entry.id for name, entry in kept.topics.items()}, kept.stream)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ConfigurationError(
                f"{of}: the checkpoint must hold offsets of Kafka topics, got {value!r}; choose another one"
            ) from None

    def entering(
        self, partitions: Mapping[TopicPartition, PartitionProgress], ids: Mapping[str, str | None]
    ) -> Self:
        """This offset with more partitions, or with progress that replaces what it has."""
        return replace(self, partitions={**self.partitions, **partitions}, ids={**self.ids, **ids})

    def moved(self, at: Mapping[TopicPartition, int]) -> Self:
        """This offset with some partitions read further."""
        moved = {
            partition: replace(self.partitions[partition], at=offset) for partition, offset in at.items()
        }
        return replace(self, partitions={**self.partitions, **moved})

    def without(self, topics: Iterable[str]) -> Self:
        """This offset without some topics."""
        gone = set(topics)
        return replace(
            self,
            partitions={p: progress for p, progress in self.partitions.items() if p.topic not in gone},
            ids={name: id_ for name, id_ in self.ids.items() if name not in gone},
        )


@dataclass(frozen=True)
class _Topic(Jsonable):
    """A topic of an ``Offset``, as JSON has it: its partitions by number."""

    begin: dict[str, int]
    id: str | None
    partitions: dict[str, int]
    until: dict[str, int]


@dataclass(frozen=True)
class _Topics(Jsonable):
    """An ``Offset``, as JSON has it."""

    stream: str | None
    topics: Mapping[str, _Topic]


@dataclass(frozen=True)
class Range:
    """Offsets of one partition that one step reads.

    Attributes:
        partition: topic and number.
        topic_id: the topic's uuid.
        stream: the stream that reads it.
        begin: where the query began in this partition.
        start: first offset.
        end: offset after the last one.
    """

    partition: TopicPartition
    topic_id: str | None
    stream: str | None
    begin: int
    start: int
    end: int


def ranges(start: Offset, end: Offset) -> list[Range]:
    """What lies between two offsets; a partition that ``start`` lacks is read from its beginning."""
    found = []
    for partition, progress in sorted(end.partitions.items()):
        known = start.partitions.get(partition)
        is_same = known is not None and start.ids[partition.topic] == end.ids[partition.topic]
        first = known.at if known is not None and is_same else progress.begin
        if first < progress.at:
            topic_id = end.ids[partition.topic]
            found.append(Range(partition, topic_id, end.stream, progress.begin, first, progress.at))
    return found


def split(found: Iterable[Range], tasks: int) -> list[Range]:
    """The same offsets in at least ``tasks`` ranges of about equal size, where there are enough of them.

    >>> whole = Range(TopicPartition("words", 0), None, None, 0, 10, 20)
    >>> [(part.start, part.end) for part in split([whole], 2)]
    [(10, 15), (15, 20)]
    """
    found = list(found)
    total = sum(part.end - part.start for part in found)
    pieces = []
    for part in found:
        size = part.end - part.start
        count = max(1, min(size, -(-size * tasks // total))) if len(found) < tasks else 1
        edges = [part.start + size * i // count for i in range(count + 1)]
        pieces += [replace(part, start=low, end=high) for low, high in pairwise(edges)]
    return pieces
