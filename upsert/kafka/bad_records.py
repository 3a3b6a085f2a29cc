"""What becomes of records that cannot be read: the query stops, or they are counted, or copied to a topic."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from upsert.errors import SchemaError
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.producer import produce
from upsert.kafka.decode import BadRecord, DecodedRecords
from upsert.kafka.records import HEADERS, TopicPartition
from upsert.kafka.table import KafkaTable

LOG: Final = logging.getLogger("upsert.kafka")

REASON_HEADER: Final = "upsert.error.reason"
TOPIC_HEADER: Final = "upsert.error.topic"
PARTITION_HEADER: Final = "upsert.error.partition"
OFFSET_HEADER: Final = "upsert.error.offset"
"""Headers that a copy in the dead-letter topic has beside those of the record."""


class BadRecords:
    """Applies ``bad-records`` to one task's records, and counts what gave no rows.

    Args:
        table: the table that is read.
        connection: its brokers.
        partition: the partition that the task reads.
    """

    def __init__(self, table: KafkaTable, connection: Connection, partition: TopicPartition) -> None:
        self._table = table
        self._connection = connection
        self._partition = partition
        self._count = 0
        self._without_key = 0

    @property
    def wanted(self) -> frozenset[str]:
        """Columns of raw records that a copy needs."""
        return frozenset({"headers"}) if self._table.values["bad-records"] == "dead-letter" else frozenset()

    def handle(self, records: pa.Table, decoded: DecodedRecords) -> None:
        """Do what the option says with the bad records of a chunk, before its rows are handed on.

        Copies are at least once: a batch that is read again copies its bad records again.

        Raises:
            SchemaError: ``bad-records = fail``, and there is one.
            DeliveryError: the dead-letter topic did not take a copy.
        """
        self._without_key += decoded.without_key
        if not decoded.bad:
            return
        self._count += len(decoded.bad)
        match self._table.values["bad-records"]:
            case "fail":
                raise self._failure(records, decoded.bad)
            case "dead-letter":
                (topic,) = self._table.values["bad-records.topic"]
                copies = self._copies(records, decoded.bad)
                produce(self._connection, topic, [copies], guarantee="at-least-once")

    def report(self) -> None:
        """Log how many records gave no rows, on the executor that read them; nothing where all did."""
        if self._count:
            is_copied = self._table.values["bad-records"] == "dead-letter"
            LOG.warning(
                "%s: %s: %d records could not be read and were %s",
                self._table.name,
                self._partition,
                self._count,
                f"copied to topic {self._table.values['bad-records.topic'][0]!r}"
                if is_copied
                else "left out",
            )
        if self._without_key:
            LOG.warning(
                "%s: %s: %d records have no key and gave no rows",
                self._table.name,
                self._partition,
                self._without_key,
            )

    def _failure(self, records: pa.Table, bad: Sequence[BadRecord]) -> SchemaError:
        first = bad[0]
        offset = records.column("offset")[first.position].as_py()
        return SchemaError(
            f"{self._table.name}: topic {self._partition.topic!r}, partition {self._partition.partition}, "
            f"offset {offset}: the record cannot be read: {first.reason}; correct the format, or say "
            "'bad-records' = 'skip' or 'dead-letter' to go on without such records"
        )

    def _copies(self, records: pa.Table, bad: Sequence[BadRecord]) -> pa.Table:
        chosen = records.take(pa.array([record.position for record in bad]))
        origin = {TOPIC_HEADER: self._partition.topic, PARTITION_HEADER: str(self._partition.partition)}
        offsets = chosen.column("offset").to_pylist()
        headers = [
            [
                *(own or ()),
                *(
                    {"key": name, "value": text.encode()}
                    for name, text in (
                        {REASON_HEADER: record.reason} | origin | {OFFSET_HEADER: str(offset)}
                    ).items()
                ),
            ]
            for record, own, offset in zip(bad, chosen.column("headers").to_pylist(), offsets, strict=True)
        ]
        columns = {name: chosen.column(name) for name in ("key", "value")}
        return pa.table({**columns, "headers": pa.array(headers, HEADERS)})
