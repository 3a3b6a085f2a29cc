"""Where the read of a partition begins and ends: the startup and bounded modes, and filters of offsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from upsert.errors import ConfigurationError, RecordsExpiredError
from upsert.kafka.client import offsets
from upsert.kafka.client.connection import Connection
from upsert.kafka.offsets import Place
from upsert.kafka.records import TopicPartition
from upsert.kafka.table import KafkaTable

_Offsets = dict[TopicPartition, int]


class Positions:
    """Looks up begins and ends for one table.

    Args:
        table: the table that is read.
        connection: its brokers.
    """

    def __init__(self, table: KafkaTable, connection: Connection) -> None:
        self._table = table
        self._connection = connection

    @property
    def are_bounded(self) -> bool:
        """Whether the read ends somewhere."""
        return bool(self._table.values["scan.bounded.mode"] != "unbounded")

    def at_start(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Place]:
        """The places of a query that begins now; partitions that it does not read are left out.

        Raises:
            ConfigurationError: a bound or a start that the partition does not have.
            RecordsExpiredError: the committed start is gone.
        """
        read = self._chosen(partitions)
        if self._table.values["scan.bounded.mode"] == "specific-offsets":
            listed = self._table.values["scan.bounded.specific-offsets"]
            read = [partition for partition in read if partition.partition in listed]
        if not read:
            return {}
        return self._narrowed(self._begins(read), self._ends(read))

    def of_discovered(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Place]:
        """The places of partitions that appeared while the query ran: all of their records."""
        read = self._chosen(partitions)
        return self._narrowed(offsets.earliest_offsets(self._connection, read), {}) if read else {}

    def _chosen(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        chosen = self._option("scan.filter.partitions")
        return [p for p in partitions if chosen is None or p.partition in chosen]

    def _narrowed(self, begins: _Offsets, ends: _Offsets) -> dict[TopicPartition, Place]:
        first = self._option("scan.filter.offset-from")
        time_ms = self._option("scan.filter.timestamp-from")
        since = {} if time_ms is None else offsets.offsets_for_time(self._connection, list(begins), time_ms)
        places = {}
        for partition, offset in begins.items():
            begin = max(offset, first or 0, since.get(partition, 0))
            end = ends.get(partition)
            places[partition] = Place(begin, begin, None if end is None else max(begin, end))
        return places

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
