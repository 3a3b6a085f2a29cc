"""How far a stream over Kafka has read, and what its next step reads of the topics as they are now.

For each partition it is kept where the read began, where it is, and where it ends when it is bounded. Spark's
checkpoint has it as JSON with sorted names, for Spark compares offsets as text. It says all that a replay
needs, so a micro-batch reads the same records however often it runs.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, Self

from upsert.codec import Jsonable, written_with
from upsert.errors import ConfigurationError, RecordsExpiredError, TableNotFoundError
from upsert.kafka.client import admin
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.failures import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS
from upsert.kafka.client.records import TopicPartition, share, whole
from upsert.kafka.table import KafkaTable
from upsert.kafka.topics import cleanup_warning, compaction_warning
from upsert.retry import retried


@dataclass(frozen=True)
class PartitionProgress:
    """Where the read of one partition stands.

    Attributes:
        begin: first offset that the query has read, or will.
        at: next offset to read.
        until: where the read ends, exclusive; None where it never does.
        epoch: the leader epoch in which the partition reached to ``at``, by which a partition is told that
            was cut and has grown again; None where it is not known. It is no part of the place.
    """

    begin: int
    at: int
    until: int | None = None
    epoch: int | None = field(default=None, compare=False)

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
        ids: the uuid of each topic, by which one that was deleted and created again is told; None from
            brokers that have none.
        stream: a name of its own for every stream, given with its first step: what it remembers is kept under
            it, for one query may read a topic twice. None before that.
        awaited: where the partitions of a topic must be read to before new ones of it are read; none where
            no new partition waits.

    >>> one = Offset({TopicPartition("words", 0): PartitionProgress(0, 42)}, {"words": "x7"}, "s1")
    >>> one.to_json()["topics"]
    {'words': {'begin': {'0': 0}, 'id': 'x7', 'partitions': {'0': 42}, 'until': {}}}
    >>> Offset.from_json(one.to_json(), "upsert-kafka") == one
    True
    """

    partitions: Mapping[TopicPartition, PartitionProgress] = field(default_factory=dict)
    ids: Mapping[str, str | None] = field(default_factory=dict)
    stream: str | None = None
    awaited: Mapping[TopicPartition, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The form that Spark keeps; equal offsets give equal text."""
        awaited: dict[str, dict[str, int]] = {}
        for (topic, partition), end in sorted(self.awaited.items()):
            awaited.setdefault(topic, {})[str(partition)] = end
        epochs: dict[str, dict[str, int]] = {}
        for (topic, partition), progress in sorted(self.partitions.items()):
            if progress.epoch is not None:
                epochs.setdefault(topic, {})[str(partition)] = progress.epoch
        topics = {
            name: _Topic({}, self.ids[name], {}, {}, awaited.get(name), epochs.get(name))
            for name in sorted(self.ids)
        }
        for (topic, partition), progress in sorted(self.partitions.items()):
            number, entry = str(partition), topics[topic]
            entry.begin[number] = progress.begin
            entry.partitions[number] = progress.at
            if progress.until is not None:
                entry.until[number] = progress.until
        return _Topics(self.stream, topics).to_json()

    @classmethod
    def from_json(cls, value: Mapping[str, Any], of: str) -> Self:
        """The offset of its JSON form; refuses what is no offset of this source."""
        try:
            kept = _Topics.from_json(value)
            partitions = {
                TopicPartition(name, int(number)): PartitionProgress(
                    whole(entry.begin[number]),
                    whole(at),
                    whole(entry.until[number]) if number in entry.until else None,
                    whole(epochs[number]) if number in (epochs := entry.epochs or {}) else None,
                )
                for name, entry in kept.topics.items()
                for number, at in entry.partitions.items()
            }
            awaited = {
                TopicPartition(name, int(number)): whole(end)
                for name, entry in kept.topics.items()
                for number, end in (entry.awaited or {}).items()
            }
            ids = {name: entry.id for name, entry in kept.topics.items()}
            return cls(partitions, ids, kept.stream, awaited)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ConfigurationError(
                f"{of}: the checkpoint must hold offsets of Kafka topics, got {value!r}; choose another one"
            ) from None

    def moved(
        self, at: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int | None] = {}
    ) -> Self:
        """This offset with some partitions read further, in leader epochs; those that stay keep theirs."""
        moved = {
            p: replace(self.partitions[p], at=offset, epoch=epochs.get(p))
            for p, offset in at.items()
            if offset != self.partitions[p].at
        }
        return replace(self, partitions={**self.partitions, **moved})

    def without(self, topics: Iterable[str]) -> Self:
        """This offset without some topics."""
        gone = set(topics)
        return replace(
            self,
            partitions={p: progress for p, progress in self.partitions.items() if p.topic not in gone},
            ids={name: id_ for name, id_ in self.ids.items() if name not in gone},
            awaited={p: end for p, end in self.awaited.items() if p.topic not in gone},
        )


@dataclass(frozen=True)
class _Topic(Jsonable):
    """A topic of an ``Offset``, as JSON has it: its partitions by number."""

    begin: dict[str, int]
    id: str | None
    partitions: dict[str, int]
    until: dict[str, int]
    awaited: dict[str, int] | None = field(default=None, metadata=written_with("awaited"))
    epochs: dict[str, int] | None = field(default=None, metadata=written_with("epochs"))


@dataclass(frozen=True)
class _Topics(Jsonable):
    """An ``Offset``, as JSON has it."""

    stream: str | None
    topics: Mapping[str, _Topic]


@dataclass(frozen=True)
class Range:
    """Offsets of one partition that one step reads; ``begin`` is where the query began in it."""

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
            id_ = end.ids[partition.topic]
            found.append(Range(partition, id_, end.stream, progress.begin, first, progress.at))
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


_Offsets = dict[TopicPartition, int]


@dataclass(frozen=True)
class PartitionBounds:
    """Where the read of each partition begins and ends, by the startup and bounded modes and the filters."""

    _table: KafkaTable
    _connection: Connection

    def at_start(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, PartitionProgress]:
        """The progress of a query that begins now; partitions that it does not read are left out."""
        read = self.chosen(partitions)
        if self._table.values["scan.bounded.mode"] == "specific-offsets":
            listed = self._table.values["scan.bounded.specific-offsets"]
            read = [partition for partition in read if partition.partition in listed]
        if not read:
            return {}
        return self._narrowed(self._begins(read), self._ends(read))

    def of_discovered(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, PartitionProgress]:
        """The progress in partitions that appeared while the query ran: all of their records are read."""
        read = self.chosen(partitions)
        return self._narrowed(admin.earliest_offsets(self._connection, read), {}) if read else {}

    def chosen(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Those that the query may read, by their number."""
        chosen = self._option("scan.filter.partitions")
        return [p for p in partitions if chosen is None or p.partition in chosen]

    def _narrowed(self, begins: _Offsets, ends: _Offsets) -> dict[TopicPartition, PartitionProgress]:
        first = self._option("scan.filter.offset-from")
        time_ms = self._option("scan.filter.timestamp-from")
        since = {} if time_ms is None else admin.offsets_for_time(self._connection, list(begins), time_ms)
        progress = {}
        for partition, offset in begins.items():
            begin = max(offset, first or 0, since.get(partition, 0))
            end = ends.get(partition)
            progress[partition] = PartitionProgress(begin, begin, None if end is None else max(begin, end))
        return progress

    def _begins(self, partitions: list[TopicPartition]) -> _Offsets:
        earliest = admin.earliest_offsets(self._connection, partitions)
        match self._option("scan.startup.mode"):
            case "latest-offset":
                return admin.latest_offsets(self._connection, partitions)
            case "timestamp":
                time_ms = self._option("scan.startup.timestamp-millis")
                return admin.offsets_for_time(self._connection, partitions, time_ms)
            case "specific-offsets":
                listed = self._option("scan.startup.specific-offsets")
                given = {p: listed[p.partition] for p in partitions if p.partition in listed}
                self._check_within(given, earliest, "option 'scan.startup.specific-offsets'")
                return earliest | given
            case "group-offsets":
                committed = self._committed(partitions, earliest)
                self._check_within(committed, earliest, "the committed offset")
                return committed
        return earliest

    def _ends(self, partitions: list[TopicPartition]) -> _Offsets:
        values = self._table.values
        match values["scan.bounded.mode"]:
            case "latest-offset":
                return admin.latest_offsets(self._connection, partitions)
            case "timestamp":
                time_ms = values["scan.bounded.timestamp-millis"]
                return admin.offsets_for_time(self._connection, partitions, time_ms)
            case "specific-offsets":
                return {p: values["scan.bounded.specific-offsets"][p.partition] for p in partitions}
            case "group-offsets":
                return self._committed(partitions, None)
        return {}

    def _committed(self, partitions: list[TopicPartition], earliest: _Offsets | None) -> _Offsets:
        """The committed offsets of the group; for a start without one ``auto.offset.reset`` counts."""
        group = self._table.properties["group.id"]
        found = admin.group_offsets(self._connection, group, partitions)
        missing = [partition for partition in partitions if partition not in found]
        reset = None if earliest is None else self._table.properties.get("auto.offset.reset")
        if missing and reset == "earliest" and earliest is not None:
            return found | {partition: earliest[partition] for partition in missing}
        if missing and reset == "latest":
            return found | admin.latest_offsets(self._connection, missing)
        if missing:
            raise ConfigurationError(
                f"{self._table.name}: group {group!r} must have committed an offset of topic "
                f"{missing[0].topic!r}, partition {missing[0].partition}, and has none; choose another group "
                "or mode, or say 'earliest' or 'latest' in 'properties.auto.offset.reset' for a start"
            )
        return found

    def _check_within(self, given: _Offsets, earliest: _Offsets, what: str) -> None:
        """Refuse starts that a partition no longer has, or not yet; clamp them where loss is accepted."""
        latest = admin.latest_offsets(self._connection, list(given)) if given else {}
        for partition, offset in given.items():
            if earliest[partition] <= offset <= latest[partition]:
                continue
            if self._table.values["fail-on-data-loss"]:
                raise RecordsExpiredError(
                    f"{self._table.name}: {what} of topic {partition.topic!r}, partition "
                    f"{partition.partition} must lie within {earliest[partition]} to {latest[partition]}, "
                    f"got {offset}; correct it, or set 'fail-on-data-loss' = 'false' for the nearest"
                )
            given[partition] = min(max(offset, earliest[partition]), latest[partition])

    def _option(self, key: str) -> Any:
        return self._table.values.get(key)


LOG: Final = logging.getLogger("upsert.kafka")


class Planner:
    """Plans the steps of one query, or one batch read; lives in one process, keeps nothing that matters."""

    def __init__(self, table: KafkaTable, now: Callable[[], float] = time.monotonic) -> None:
        self._table = table
        self._connection = table.connection
        self._now = now
        self._looked_s: float | None = None
        self._compared: dict[TopicPartition, tuple[int, int | None]] = {}
        """Where partitions stood, and in which leader epoch, when it was last asked whether they were cut."""
        self._written: _Offsets = {}
        """What partitions held when `ends` was asked, with transactions that were open."""
        self.latest = Offset()
        """Where the stream will be when it has read all that was there when the last step was planned."""

    def next(
        self, start: Offset, max_rows: int | None, until: Mapping[TopicPartition, int] | None = None
    ) -> Offset:
        """Where a step ends that begins at ``start``; ``start`` itself where nothing is new.

        It reads about ``max_rows`` records, and nothing beyond ``until``, nor partitions that this lacks.
        """
        return retried(
            lambda: self._next(start, max_rows, until),
            # brokers learn of topics and partitions one after the other
            is_passing=lambda failure: isinstance(failure, TableNotFoundError),
            patience_s=self._connection.patience_s,
            first_pause_s=FIRST_PAUSE_SECONDS,
            longest_pause_s=LONGEST_PAUSE_SECONDS,
        )

    def _next(
        self, start: Offset, max_rows: int | None, until: Mapping[TopicPartition, int] | None
    ) -> Offset:
        known = self._with_discovered(start, until)
        latest = self._latest_of(known)
        if known is start and self._is_replaced(known, latest):
            self._looked_s = None  # look at all topics again, which says what is lost
            return self._next(start, max_rows, until)
        self._check_not_shorter(known, latest)
        epochs = {partition: end.epoch for partition, end in latest.items()}
        ends = {p: self._end(known.partitions[p], end.offset) for p, end in latest.items()}
        self.latest = known.moved(ends)
        if until is not None:
            ends = {p: min(end, until.get(p, 0)) for p, end in ends.items()}
        ahead = {p: end for p, end in ends.items() if end > known.partitions[p].at}
        if not ahead:
            return known
        earliest = admin.earliest_offsets(self._connection, list(ahead))
        self._check_not_expired(known, earliest)
        available = {p: (min(end, max(known.partitions[p].at, earliest[p])), end) for p, end in ahead.items()}
        return known.moved(share(available, max_rows), epochs)

    def replayed(self, end: Offset) -> Offset:
        """The end of a step that was planned before, without topics that are gone or others of their name.

        Their records are lost, and those of another topic were not meant.
        """
        known = [name for name, id_ in end.ids.items() if id_ is not None]
        return self._check_same_topics(end, admin.topics(self._connection, known)) if known else end

    def ends(self) -> dict[TopicPartition, int]:
        """The ends of all partitions that there are now."""
        partitions = [p for info in self._topics().values() for p in _partitions(info)]
        if not partitions:
            return {}
        ends = admin.latest_offsets(self._connection, partitions)
        self._written = admin.written_offsets(self._connection, partitions)
        return ends

    def _end(self, progress: PartitionProgress, latest: int) -> int:
        """How far a partition may be read now; a filter bounds the step alone: the query may drop it."""
        last = self._table.values.get("scan.filter.offset-until")
        return progress.capped(latest if last is None else min(latest, last))

    def _topics(self) -> Mapping[str, admin.TopicInfo]:
        values = self._table.values
        return admin.topics(self._connection, names=self._table.topics, pattern=values["topic-pattern"])

    def _with_discovered(self, start: Offset, until: Mapping[TopicPartition, int] | None) -> Offset:
        """The offset with the partitions that were found since; looks at the interval only."""
        interval_s = self._table.values["scan.topic-partition-discovery.interval"] / 1000
        now = self._now()
        is_due = self._looked_s is None or (0 < interval_s <= now - self._looked_s)
        if not is_due and not start.awaited:
            return start
        infos = self._topics()
        if self._looked_s is None:
            self._look_first()
        self._looked_s = now
        if missing := [name for name in self._table.topics or () if name not in infos]:
            raise ConfigurationError(
                f"{self._table.name}: topic {missing[0]!r} must exist, and the brokers do not know it; "
                "create it, or correct the option 'topic'"
            )
        kept = self._check_same_topics(start, infos)
        bounds = PartitionBounds(self._table, self._connection)
        if start.stream is not None and self._table.values["scan.bounded.mode"] != "unbounded":
            return kept  # the bounds were fixed when the query began, and nothing else belongs to it
        found = [p for info in infos.values() for p in _partitions(info) if p not in kept.partitions]
        self._check_no_new_partitions(kept, bounds.chosen(found))
        if start.stream is not None and self._table.is_changelog:
            found, awaited = self._in_order(kept, bounds.chosen(found), until)
            kept = replace(kept, awaited=awaited)
        progress = bounds.at_start(found) if start.stream is None else bounds.of_discovered(found)
        return replace(
            kept,
            partitions={**kept.partitions, **progress},
            ids={**kept.ids, **{name: info.id for name, info in infos.items()}},
            stream=start.stream or uuid.uuid4().hex,
        )

    def _latest_of(self, known: Offset) -> dict[TopicPartition, admin.End]:
        """The ends of all partitions of which more may be read."""
        unfinished = [partition for partition, progress in known.partitions.items() if not progress.is_at_end]
        try:
            return admin.ends_with_epochs(self._connection, unfinished) if unfinished else {}
        except TableNotFoundError:
            self._looked_s = None  # look at all topics again, which says what is lost
            raise

    def _is_replaced(self, known: Offset, latest: Mapping[TopicPartition, admin.End]) -> bool:
        """Whether a topic in which something has changed is another one than when all were looked at."""
        if all(known.partitions[partition].at == end.offset for partition, end in latest.items()):
            return False
        infos = admin.topics(self._connection, names=list(known.ids))
        pairs = [(id_, infos[name].id if name in infos else "") for name, id_ in known.ids.items()]
        return any(None not in pair and pair[0] != pair[1] for pair in pairs)

    def _look_first(self) -> None:
        """Once, before anything is read: what can be seen of the topics and would be noticed late."""
        if warning := cleanup_warning(self._table) or compaction_warning(self._table):
            LOG.warning(warning)
        copies = self._table.values["bad-records.topic"]
        if copies is not None and not admin.topics(self._connection, names=copies):
            raise ConfigurationError(
                f"{self._table.name}: option 'bad-records.topic' must name an existing topic, and the "
                f"brokers do not know {copies[0]!r}; create it"
            )

    def _check_same_topics(self, start: Offset, infos: Mapping[str, admin.TopicInfo]) -> Offset:
        """The offset without topics that are gone, or that have been replaced by others of their name."""
        lost = []
        for name, id_ in start.ids.items():
            info = infos.get(name)
            numbers = [p.partition for p in start.partitions if p.topic == name]
            if info is None:
                self._lost(f"topic {name!r} is no longer there, or no longer among the topics of the query")
                lost.append(name)
            elif None not in (id_, info.id) and id_ != info.id:
                self._lost(
                    f"topic {name!r} was deleted and created again: the checkpoint belongs to the topic with "
                    f"uuid {id_!r}, the brokers have {info.id!r}"
                )
                lost.append(name)
            elif numbers and max(numbers) >= info.partitions and None in (id_, info.id):
                # with the same id it has them: a broker that answers has not learnt of the last ones yet
                self._lost(f"topic {name!r} has lost partitions: it has {info.partitions}")
                lost.append(name)
        return start.without(lost) if lost else start

    def _check_no_new_partitions(self, known: Offset, found: Iterable[TopicPartition]) -> None:
        """Refuse new partitions of a topic of keys, which move; where they are normalized at any rate.

        The newest row of a key is remembered by partition, so a key that moves would be inserted again.
        """
        values, is_upsert = self._table.values, self._table.is_upsert
        is_normalized = values["changelog"] == "all" if is_upsert else values["cdc-events-duplicate"]
        if not is_normalized and (not is_upsert or values["allow-new-partitions"]):
            return
        added = next((partition for partition in found if partition.topic in known.ids), None)
        if added is None:
            return
        remedy = "copy the topic to a new one"
        if is_upsert and is_normalized:
            remedy += (
                ", or follow a table with its key and no other NOT NULL column, as a mirror is, which takes "
                "them with 'allow-new-partitions' = 'true'"
            )
        elif is_upsert:
            remedy += ", or set 'allow-new-partitions' = 'true'"
        raise ConfigurationError(
            f"{self._table.name}: topic {added.topic!r} must keep its partitions, and partition "
            f"{added.partition} was added: keys move to other partitions then, and a key's older records "
            f"are no longer in order with its newer ones; {remedy}"
        )

    def _in_order(
        self, known: Offset, found: Sequence[TopicPartition], until: Mapping[TopicPartition, int] | None
    ) -> tuple[list[TopicPartition], _Offsets]:
        """Those of some new partitions that may be read now, and what the others wait for.

        A key that moves has its older changes in another partition, and a sink knows no order within a
        micro-batch. So a new partition waits until it has a record, and then until micro-batches have read
        what the others had at that time, in transactions that were open too: all changes of the keys that
        have moved to it. A query that reads ``until`` where topics ended when it began knows no other time;
        what was in open transactions then is for the next one, which finds in its offset what to wait for.
        """
        added = [partition for partition in found if partition.topic in known.ids]
        visible = until if until is not None else admin.latest_offsets(self._connection, added)
        moved = {partition.topic for partition in added if visible.get(partition, 0) > 0}
        older = [partition for partition in known.partitions if partition.topic in moved]
        unknown = [p for p in older if p not in known.awaited and (until is None or p not in self._written)]
        ends = {**self._written, **admin.written_offsets(self._connection, unknown), **known.awaited}
        waiting = {
            partition.topic
            for partition in older
            if (progress := known.partitions[partition]).at < self._end(progress, ends[partition])
        }
        awaited = {partition: ends[partition] for partition in older if partition.topic in waiting}
        return [p for p in found if p not in added or p.topic in moved - waiting], awaited

    def _check_not_expired(self, known: Offset, earliest: Mapping[TopicPartition, int]) -> None:
        for partition, offset in earliest.items():
            progress = known.partitions[partition]
            if progress.at < offset:
                self._lost(
                    f"topic {partition.topic!r}, partition {partition.partition}: offsets {progress.at} to "
                    f"{offset - 1} were deleted before they were read"
                )

    def _check_not_shorter(self, known: Offset, latest: Mapping[TopicPartition, admin.End]) -> None:
        """Notice a log that was cut, also where it has grown since, with other records."""
        read = {
            partition: (end, known.partitions[partition])
            for partition, end in latest.items()
            if known.partitions[partition].begin < known.partitions[partition].at
        }
        led_anew = {
            partition: admin.End(progress.at, progress.epoch)
            for partition, (end, progress) in read.items()
            if None not in (end.epoch, progress.epoch)
            and end.epoch != progress.epoch
            and end.offset >= progress.at
            and self._compared.get(partition) != (progress.at, end.epoch)
        }
        cut = admin.shortened(self._connection, led_anew) if led_anew else frozenset()
        for partition, (end, progress) in read.items():
            if end.offset < progress.at or partition in cut:
                self._lost(
                    f"topic {partition.topic!r}, partition {partition.partition}: it ends at offset "
                    f"{end.offset}, and has been read up to {progress.at}; it was shortened (an unclean "
                    f"leader election), and what is written below {progress.at} will not be read"
                )
        self._compared |= {p: (end.offset, latest[p].epoch) for p, end in led_anew.items()}

    def _lost(self, what: str) -> None:
        if self._table.values["fail-on-data-loss"]:
            raise RecordsExpiredError(
                f"{self._table.name}: {what}; set 'fail-on-data-loss' = 'false' to go on with what is left, "
                "or choose another checkpoint"
            )
        LOG.warning("%s: %s; going on, as 'fail-on-data-loss' = 'false' says", self._table.name, what)


def _partitions(info: admin.TopicInfo) -> list[TopicPartition]:
    return [TopicPartition(info.name, number) for number in range(info.partitions)]
