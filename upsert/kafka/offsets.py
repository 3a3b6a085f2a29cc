"""Where a stream over Kafka stands, and how far its next step reads (pure).

A place is kept for each partition: where it began, where it is, and where it ends when the read is bounded.
It is written into Spark's checkpoint as JSON with sorted names, for Spark compares offsets as text. It says
all that a replay needs, so a micro-batch reads the same records however often it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Self

from upsert.errors import ConfigurationError
from upsert.kafka.records import TopicPartition


@dataclass(frozen=True)
class Place:
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
        places: by partition.
        ids: the uuid of each topic, by which one that was deleted and created again is told; None from
            brokers that have none.
        stream: a name of its own for every stream, given with its first step: what it remembers is kept under
            it, for one query may read a topic twice. None before that.

    >>> one = Offset({TopicPartition("words", 0): Place(0, 42)}, {"words": "x7"}, "s1")
    >>> one.to_json()["topics"]
    {'words': {'begin': {'0': 0}, 'id': 'x7', 'partitions': {'0': 42}, 'until': {}}}
    >>> Offset.from_json(one.to_json(), "upsert-kafka") == one
    True
    """

    places: Mapping[TopicPartition, Place] = field(default_factory=dict)
    ids: Mapping[str, str | None] = field(default_factory=dict)
    stream: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The form that Spark keeps; equal offsets give equal text."""
        topics: dict[str, dict[str, Any]] = {
            name: {"begin": {}, "id": self.ids[name], "partitions": {}, "until": {}}
            for name in sorted(self.ids)
        }
        for (topic, partition), place in sorted(self.places.items()):
            entry = topics[topic]
            entry["begin"][str(partition)] = place.begin
            entry["partitions"][str(partition)] = place.at
            if place.until is not None:
                entry["until"][str(partition)] = place.until
        return {"stream": self.stream, "topics": topics}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], of: str) -> Self:
        """The offset of its JSON form.

        Args:
            value: what Spark kept.
            of: the table, for messages.

        Raises:
            ConfigurationError: it is no offset of this source.
        """
        try:
            places = {
                TopicPartition(name, int(number)): Place(
                    whole(entry["begin"][number]),
                    whole(at),
                    whole(entry["until"][number]) if number in entry["until"] else None,
                )
                for name, entry in value["topics"].items()
                for number, at in entry["partitions"].items()
            }
            ids = {name: _name(entry["id"]) for name, entry in value["topics"].items()}
            return cls(places, ids, _name(value["stream"]))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ConfigurationError(
                f"{of}: the checkpoint must hold offsets of Kafka topics, got {value!r}; choose another one"
            ) from None

    def entering(self, places: Mapping[TopicPartition, Place], ids: Mapping[str, str | None]) -> Self:
        """This offset with more partitions, or with places that replace those it has."""
        return replace(self, places={**self.places, **places}, ids={**self.ids, **ids})

    def moved(self, at: Mapping[TopicPartition, int]) -> Self:
        """This offset with some partitions read further."""
        moved = {partition: replace(self.places[partition], at=offset) for partition, offset in at.items()}
        return replace(self, places={**self.places, **moved})

    def without(self, topics: Iterable[str]) -> Self:
        """This offset without some topics."""
        gone = set(topics)
        return replace(
            self,
            places={p: place for p, place in self.places.items() if p.topic not in gone},
            ids={name: id_ for name, id_ in self.ids.items() if name not in gone},
        )


def whole(value: object) -> int:
    """An offset in JSON.

    Raises:
        ValueError: it is none.
    """
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value


def _name(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(value)
    return value


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
    for partition, place in sorted(end.places.items()):
        known = start.places.get(partition)
        is_same = known is not None and start.ids[partition.topic] == end.ids[partition.topic]
        first = known.at if known is not None and is_same else place.begin
        if first < place.at:
            topic_id = end.ids[partition.topic]
            found.append(Range(partition, topic_id, end.stream, place.begin, first, place.at))
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


def share(
    available: Mapping[TopicPartition, tuple[int, int]], max_rows: int | None
) -> dict[TopicPartition, int]:
    """How far each partition is read in a step of at most ``max_rows``: in proportion to what it has.

    Every partition that has something gets at least one record, so none waits for ever behind a longer one;
    a step may therefore exceed the limit by the number of partitions. Offsets are counted, and where
    transactions or compaction left gaps there are fewer records than that.

    Args:
        available: the first offset not yet read, and the end.
        max_rows: the limit; None for none.

    >>> logs = {TopicPartition("words", 0): (0, 900), TopicPartition("words", 1): (0, 100)}
    >>> [share(logs, 100)[partition] for partition in logs]
    [90, 10]
    """
    sizes = {partition: max(0, end - first) for partition, (first, end) in available.items()}
    total = sum(sizes.values())
    if max_rows is None or total <= max_rows:
        return {partition: first + sizes[partition] for partition, (first, _) in available.items()}
    rows = {p: min(size, max(1, size * max_rows // total)) for p, size in sizes.items()}
    # what rounding down left over goes to those that lost most by it
    rounded = [p for p, size in sizes.items() if size * max_rows >= total]
    for partition in sorted(rounded, key=lambda p: (-(sizes[p] * max_rows % total), p)):
        if sum(rows.values()) >= max_rows:
            break
        rows[partition] += rows[partition] < sizes[partition]
    return {partition: first + rows[partition] for partition, (first, _) in available.items()}
