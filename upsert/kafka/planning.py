"""What a step of a stream reads: the topics as the brokers have them now, against the offset so far.

`PartitionBounds` finds where the read of a partition begins and ends: the startup and bounded modes, and
filters of offsets.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from upsert.errors import ConfigurationError, RecordsExpiredError, TableNotFoundError
from upsert.kafka.client import admin, offsets
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.offsets import share
from upsert.kafka.client.records import TopicPartition
from upsert.kafka.offsets import Offset, PartitionProgress
from upsert.kafka.table import KafkaTable
from upsert.kafka.topics import cleanup_warning

_Offsets = dict[TopicPartition, int]


@dataclass(frozen=True)
class PartitionBounds:
    """Looks up begins and ends for one table."""

    _table: KafkaTable
    _connection: Connection

    @property
    def are_bounded(self) -> bool:
        """Whether the read ends somewhere."""
        return bool(self._table.values["scan.bounded.mode"] != "unbounded")

    def at_start(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, PartitionProgress]:
        """The progress of a query that begins now; partitions that it does not read are left out."""
        read = self._chosen(partitions)
        if self._table.values["scan.bounded.mode"] == "specific-offsets":
            listed = self._table.values["scan.bounded.specific-offsets"]
            read = [partition for partition in read if partition.partition in listed]
        if not read:
            return {}
        return self._narrowed(self._begins(read), self._ends(read))

    def of_discovered(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, PartitionProgress]:
        """The progress in partitions that appeared while the query ran: all of their records are read."""
        read = self._chosen(partitions)
        return self._narrowed(offsets.earliest_offsets(self._connection, read), {}) if read else {}

    def _chosen(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        chosen = self._option("scan.filter.partitions")
        return [p for p in partitions if chosen is None or p.partition in chosen]

    def _narrowed(self, begins: _Offsets, ends: _Offsets) -> dict[TopicPartition, PartitionProgress]:
        first = self._option("scan.filter.offset-from")
        time_ms = self._option("scan.filter.timestamp-from")
        since = {} if time_ms is None else offsets.offsets_for_time(self._connection, list(begins), time_ms)
        progress = {}
        for partition, offset in begins.items():
            begin = max(offset, first or 0, since.get(partition, 0))
            end = ends.get(partition)
            progress[partition] = PartitionProgress(begin, begin, None if end is None else max(begin, end))
        return progress

    def _begins(self, partitions: list[TopicPartition]) -> _Offsets:
        earliest = offsets.earliest_offsets(self._connection, partitions)
        match self._option("scan.startup.mode"):
            case "latest-offset":
                return offsets.latest_offsets(self._connection, partitions)
            case "timestamp":
                time_ms = self._option("scan.startup.timestamp-millis")
                return offsets.offsets_for_time(self._connection, partitions, time_ms)
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
                return offsets.latest_offsets(self._connection, partitions)
            case "timestamp":
                time_ms = values["scan.bounded.timestamp-millis"]
                return offsets.offsets_for_time(self._connection, partitions, time_ms)
            case "specific-offsets":
                return {p: values["scan.bounded.specific-offsets"][p.partition] for p in partitions}
            case "group-offsets":
                return self._committed(partitions, None)
        return {}

    def _committed(self, partitions: list[TopicPartition], earliest: _Offsets | None) -> _Offsets:
        """The committed offsets of the group; for a start without one ``auto.offset.reset`` counts."""
        group = self._table.properties["group.id"]
        found = offsets.group_offsets(self._connection, group, partitions)
        missing = [partition for partition in partitions if partition not in found]
        reset = self._table.properties.get("auto.offset.reset", "none") if earliest is not None else "none"
        if missing and reset == "earliest" and earliest is not None:
            return found | {partition: earliest[partition] for partition in missing}
        if missing and reset == "latest":
            return found | offsets.latest_offsets(self._connection, missing)
        if missing:
            raise ConfigurationError(
                f"{self._table.name}: group {group!r} must have committed an offset of topic "
                f"{missing[0].topic!r}, partition {missing[0].partition}, and has none; choose another group "
                "or mode, or say 'earliest' or 'latest' in 'properties.auto.offset.reset' for a start"
            )
        return found

    def _check_within(self, given: _Offsets, earliest: _Offsets, what: str) -> None:
        """Refuse starts that a partition no longer has, or not yet; clamp them where loss is accepted."""
        latest = offsets.latest_offsets(self._connection, list(given)) if given else {}
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
        """The value of an option that only one of the connectors has."""
        return self._table.values.get(key)


LOG: Final = logging.getLogger("upsert.kafka")
_GO_ON: Final = "set 'fail-on-data-loss' = 'false' to go on with what is left, or choose another checkpoint"


class Planner:
    """Plans the steps of one query, or one batch read; lives in one process, keeps nothing that matters."""

    def __init__(
        self,
        table: KafkaTable,
        now: Callable[[], float] = time.monotonic,
        new_name: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        self._table = table
        self._connection = table.connection
        self._now = now
        self._new_name = new_name
        self._looked_s: float | None = None
        self._latest: Offset | None = None

    def next(
        self, start: Offset, max_rows: int | None, until: Mapping[TopicPartition, int] | None = None
    ) -> Offset:
        """Where a step ends that begins at ``start``; ``start`` itself where nothing is new.

        Args:
            start: an earlier answer; the empty offset at first.
            max_rows: about how many records the step may read; None: all.
            until: read no further than this, and no partition that it lacks; None: no such limit.
        """
        known = self._with_discovered(start)
        latest = self._latest_of(known)
        if latest is None or (known is start and self._is_replaced(known, latest)):
            self._looked_s = None  # look at all topics again, which says what is lost
            return self.next(start, max_rows, until)
        self._check_not_shorter(known, latest)
        ends = {partition: self._end(known.partitions[partition], end) for partition, end in latest.items()}
        self._latest = known.moved(ends)
        if until is not None:
            ends = {p: min(end, until.get(p, 0)) for p, end in ends.items()}
        ahead = {p: end for p, end in ends.items() if end > known.partitions[p].at}
        if not ahead:
            return known
        earliest = offsets.earliest_offsets(self._connection, list(ahead))
        self._check_not_expired(known, earliest)
        available = {p: (min(end, max(known.partitions[p].at, earliest[p])), end) for p, end in ahead.items()}
        return known.moved(share(available, max_rows))

    def latest(self, start: Offset) -> Offset:
        """Where the stream will be when it has read all that was there when the last step was planned."""
        return start if self._latest is None else self._latest

    def ends(self) -> dict[TopicPartition, int]:
        """The ends of all partitions that there are now."""
        partitions = [p for info in self._topics().values() for p in _partitions(info)]
        return offsets.latest_offsets(self._connection, partitions) if partitions else {}

    def _end(self, progress: PartitionProgress, latest: int) -> int:
        """How far a partition may be read now; a filter bounds the step alone: the query may drop it."""
        last = self._table.values.get("scan.filter.offset-until")
        return progress.capped(latest if last is None else min(latest, last))

    def _topics(self) -> Mapping[str, admin.TopicInfo]:
        values = self._table.values
        return admin.topics(self._connection, names=self._table.topics, pattern=values["topic-pattern"])

    def _with_discovered(self, start: Offset) -> Offset:
        """The offset with the partitions that were found since; looks at the interval only."""
        interval_s = self._table.values["scan.topic-partition-discovery.interval"] / 1000
        now = self._now()
        if self._looked_s is not None and (interval_s == 0 or now < self._looked_s + interval_s):
            return start
        infos = self._topics()
        if self._looked_s is None:
            self._look_first()
        self._looked_s = now
        self._check_all_there(infos)
        kept = self._check_same_topics(start, infos)
        bounds = PartitionBounds(self._table, self._connection)
        if start.stream is not None and bounds.are_bounded:
            return kept  # the bounds were fixed when the query began, and nothing else belongs to it
        found = [p for info in infos.values() for p in _partitions(info) if p not in kept.partitions]
        self._check_no_new_partitions(kept, found)
        progress = bounds.at_start(found) if start.stream is None else bounds.of_discovered(found)
        entered = kept.entering(progress, {name: info.id for name, info in infos.items()})
        return replace(entered, stream=start.stream or self._new_name())

    def _latest_of(self, known: Offset) -> dict[TopicPartition, int] | None:
        """The ends of all partitions of which more may be read; None where a topic is no longer there."""
        unfinished = [partition for partition, progress in known.partitions.items() if not progress.is_at_end]
        try:
            return offsets.latest_offsets(self._connection, unfinished) if unfinished else {}
        except TableNotFoundError:
            return None

    def _is_replaced(self, known: Offset, latest: Mapping[TopicPartition, int]) -> bool:
        """Whether a topic in which something has changed is another one than when all were looked at."""
        if all(known.partitions[partition].at == end for partition, end in latest.items()):
            return False
        infos = admin.topics(self._connection, names=list(known.ids))
        pairs = [(id_, infos[name].id if name in infos else "") for name, id_ in known.ids.items()]
        return any(None not in pair and pair[0] != pair[1] for pair in pairs)

    def _look_first(self) -> None:
        """Once, before anything is read: what can be seen of the topics and would be noticed late."""
        if warning := cleanup_warning(self._table):
            LOG.warning(warning)
        copies = self._table.values["bad-records.topic"]
        if copies is not None and not admin.topics(self._connection, names=copies):
            raise ConfigurationError(
                f"{self._table.name}: option 'bad-records.topic' must name an existing topic, and the "
                f"brokers do not know {copies[0]!r}; create it"
            )

    def _check_all_there(self, infos: Mapping[str, admin.TopicInfo]) -> None:
        for name in self._table.topics or ():
            if name not in infos:
                raise ConfigurationError(
                    f"{self._table.name}: topic {name!r} must exist, and the brokers do not know it; create "
                    "it, or correct the option 'topic'"
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
            elif numbers and max(numbers) >= info.partitions:
                self._lost(f"topic {name!r} has lost partitions: it has {info.partitions}")
                lost.append(name)
        return start.without(lost) if lost else start

    def _check_no_new_partitions(self, known: Offset, found: Iterable[TopicPartition]) -> None:
        if not self._table.is_upsert or self._table.values["allow-new-partitions"]:
            return
        added = next((partition for partition in found if partition.topic in known.ids), None)
        if added is not None:
            raise ConfigurationError(
                f"{self._table.name}: topic {added.topic!r} must keep its partitions, and partition "
                f"{added.partition} was added: keys move to other partitions then, and a key's older records "
                "are no longer in order with its newer ones; copy the topic to a new one, or set "
                "'allow-new-partitions' = 'true'"
            )

    def _check_not_expired(self, known: Offset, earliest: Mapping[TopicPartition, int]) -> None:
        for partition, offset in earliest.items():
            progress = known.partitions[partition]
            if progress.at < offset:
                self._lost(
                    f"topic {partition.topic!r}, partition {partition.partition}: offsets {progress.at} to "
                    f"{offset - 1} were deleted before they were read"
                )

    def _check_not_shorter(self, known: Offset, latest: Mapping[TopicPartition, int]) -> None:
        for partition, offset in latest.items():
            progress = known.partitions[partition]
            if progress.begin < progress.at and offset < progress.at:
                self._lost(
                    f"topic {partition.topic!r}, partition {partition.partition}: it ends at offset "
                    f"{offset}, and has been read up to {progress.at}; it was shortened (an unclean leader "
                    f"election), and what is written below {progress.at} will not be read"
                )

    def _lost(self, what: str) -> None:
        if self._table.values["fail-on-data-loss"]:
            raise RecordsExpiredError(f"{self._table.name}: {what}; {_GO_ON}")
        LOG.warning("%s: %s; going on, as 'fail-on-data-loss' = 'false' says", self._table.name, what)


def _partitions(info: admin.TopicInfo) -> list[TopicPartition]:
    return [TopicPartition(info.name, number) for number in range(info.partitions)]
