"""Reading a fixed range of offsets of one partition, as Arrow tables.

Offsets of a partition have gaps: compaction removes records, aborted transactions are not shown, and each
transaction takes one offset for its end. So a range is not counted: it ends with the first record at or
behind its end, or when Kafka says that the partition ends there.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from operator import methodcaller
from typing import Any, Final

import numpy as np
import pyarrow as pa

from upsert.errors import RecordsExpiredError, UpsertError
from upsert.kafka.client.connection import LOGGER, ClientCache, Connection, client_properties, library
from upsert.kafka.client.failures import Reports, is_lasting, is_passing, made, tell, translated, unavailable
from upsert.kafka.client.records import HEADERS, TIMESTAMP_TYPES, TopicPartition, record_schema

MAX_ROWS: Final = 100_000
MAX_BYTES: Final = 64 << 20
"""Bytes of keys and values after which a table is handed out, however few rows it has."""

_AT_ONCE: Final = 10_000
_NEAR: Final = 100
"""So many offsets between two ranges are read and left out: another request would take longer."""
_WAIT_SECONDS: Final = 0.1

_DEFAULTS: Final = {
    "group.id": "deltajoin",  # the library wants one; nothing is ever committed under it
    "isolation.level": "read_committed",
    # With the library's own settings a fast reader waits a second whenever its queue had been full.
    "fetch.queue.backoff.ms": 5,
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 32_768,
    "fetch.wait.max.ms": 50,
    "max.partition.fetch.bytes": 8 << 20,
    "check.crcs": True,
}
_FIXED: Final = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "allow.auto.create.topics": False,
    "max.poll.interval.ms": 86_400_000,  # an idle reader is kept for the next range
}


def read_range(
    connection: Connection,
    partition: TopicPartition,
    start: int,
    end: int,
    wanted: Collection[str] = (),
    max_rows: int = MAX_ROWS,
) -> Iterator[pa.Table]:
    """The records of a partition with ``start <= offset < end`` that a reader can see, in offset order.

    Each table has at most ``max_rows`` rows and about 64 MB, and the columns key, value, offset and those
    wanted, as in `RECORD_SCHEMA`; there is no empty table. Offsets that compaction or transactions took are
    skipped. ``end`` should not lie behind `latest_offsets`.

    The reader is kept, so that the next range of this partition continues without another request. A broker
    that goes away is waited for, as long as the connection has patience and from the last sign of life on.

    Raises:
        RecordsExpiredError: Kafka no longer has the offset ``start``, or the partition ends before ``end``.
        TableNotFoundError: the topic or partition does not exist.
        KafkaUnavailableError: Kafka did not answer.

    Example:
        >>> from upsert.kafka.client.admin import create_topic
        >>> from upsert.kafka.client.producer import produce
        >>> connection = Connection({"bootstrap.servers": kafka.bootstrap_servers})
        >>> create_topic(connection, "range-example", partitions=1)
        >>> produce(connection, "range-example", [pa.table({"key": [b"k"], "value": [b"v"]})])
        1
        >>> [chunk] = read_range(connection, TopicPartition("range-example", 0), 0, 1)
        >>> chunk.to_pylist()
        [{'key': b'k', 'value': b'v', 'offset': 0}]
    """
    if start >= end:
        return
    key = (connection, partition)
    reader = _readers.take(key) or PartitionReader(connection, partition)
    is_sound = False
    try:
        for messages in reader.read(start, end, max_rows):
            yield as_table(messages, record_schema(wanted))
        is_sound = True
    except GeneratorExit:
        is_sound = True  # the caller wants no more; what it has not taken is still in the reader
        raise
    finally:
        if is_sound:
            _readers.give_back(key, reader)
        else:
            reader.close()


class PartitionReader:
    """One partition's records from an offset on, by a client that fetches ahead."""

    def __init__(self, connection: Connection, partition: TopicPartition) -> None:
        self._connection = connection
        self._partition = partition
        self._subject = f"reading {partition}"
        self._reports = Reports()
        properties = client_properties(connection, _DEFAULTS, {**_FIXED, "error_cb": self._reports.on_error})
        self._client = made(connection, self._subject, lambda: library().Consumer(properties, logger=LOGGER))
        self._kafka = library()
        self._end_of_partition = self._kafka.KafkaError._PARTITION_EOF
        # Records below `_given` have been handed out, those below `_fetched` have come; between: `_pending`.
        self._given = self._fetched = -1
        self._pending: list[Any] = []

    def close(self) -> None:
        """End the client."""
        self._client.close()

    def read(self, start: int, end: int, max_rows: int) -> Iterator[list[Any]]:
        """Messages with ``start <= offset < end`` in lists of bounded size, none of them empty."""
        self._go_to(start)
        last_progress = time.monotonic()
        chunk: list[Any] = []
        size = 0
        while self._given < end:
            messages = self._take(end, max_rows - len(chunk))
            if messages:
                chunk += messages
                size += sum(len(message) + len(message.key() or b"") for message in messages)
                last_progress = time.monotonic()
            elif self._given < end:
                self._check_patience(last_progress, end)
            if chunk and (len(chunk) >= max_rows or size >= MAX_BYTES or self._given >= end):
                yield chunk
                chunk, size = [], 0

    def _go_to(self, start: int) -> None:
        """Make ``start`` the next offset to hand out; near the end of the last range without a request."""
        if 0 <= self._given <= start <= self._fetched + _NEAR:
            self._pending = [message for message in self._pending if message.offset() >= start]
            self._fetched = max(self._fetched, start)
        else:
            self._client.assign([self._kafka.TopicPartition(*self._partition, start)])
            self._pending = []
            self._fetched = start
        self._given = start

    def _take(self, end: int, limit: int) -> list[Any]:
        """The next messages before ``end`` that have come, or come at once; moves `_given` on."""
        if not self._pending and self._fetched < end:
            self._fetch(min(limit, end - self._fetched, _AT_ONCE))
        taken = [message for message in self._pending[:limit] if message.offset() < end]
        self._pending = self._pending[len(taken) :]
        self._given = min(end, self._pending[0].offset() if self._pending else self._fetched)
        return taken

    def _fetch(self, limit: int) -> None:
        """Move what the client has to `_pending`; waits a little when it has nothing."""
        messages = self._client.consume(limit, 0) or self._client.consume(1, _WAIT_SECONDS)
        if not messages:
            return
        if any(message.error() is not None for message in messages):
            messages = [message for message in messages if self._is_record(message)]
        if messages:
            self._fetched = max(self._fetched, messages[-1].offset() + 1)
            # where a range began a little behind the one before, what lies in between comes too
            self._pending += [message for message in messages if message.offset() >= self._given]

    def _is_record(self, message: Any) -> bool:
        """Whether this is a record; takes note of the end of the partition, raises what is an error."""
        error = message.error()
        if error is None:
            return True
        if error.code() == self._end_of_partition:
            self._fetched = max(self._fetched, message.offset())
            self._reports.broker_failure = None
        elif is_passing(error):
            self._reports.on_error(error)
        else:
            raise self._failed(error)
        return False

    def _failed(self, error: Any) -> UpsertError:
        return translated(self._connection, f"{self._subject} from offset {self._fetched}", error)

    def _check_patience(self, last_progress: float, end: int) -> None:
        failure = self._reports.broker_failure
        if failure is not None:
            if is_lasting(failure):
                raise self._failed(failure)
            tell(self._connection, self._subject, failure, last_progress)
        if time.monotonic() - last_progress < self._connection.patience_s:
            return
        if failure is not None:
            raise unavailable(self._connection, self._subject, failure.str())
        raise RecordsExpiredError(
            f"{self._subject} from offset {self._given}: the partition should reach {end}, and no record "
            f"came for {self._connection.patience_s:g} s; it may have been deleted and created again: start "
            "over, or accept the gap"
        )


_readers: ClientCache[PartitionReader] = ClientCache(8, close=PartitionReader.close)
"""Up to 8 partitions a process, each with up to 32 MB fetched ahead."""


def as_table(messages: Sequence[Any], schema: pa.Schema) -> pa.Table:
    """Messages of the client library as rows of a schema made of columns of `RECORD_SCHEMA`."""
    return pa.table([_column(field, messages) for field in schema], schema=schema)


def _column(field: pa.Field, messages: Sequence[Any]) -> pa.Array:
    match field.name:
        case "key" | "value" | "topic" | "partition" | "offset" as name:
            return pa.array(list(map(methodcaller(name), messages)), field.type)
        case "timestamp":
            pairs = [message.timestamp() for message in messages]
            return pa.array([ms if kind else None for kind, ms in pairs], pa.int64())
        case "timestamp-type":
            kinds = pa.array([message.timestamp()[0] for message in messages], pa.int8())
            return pa.array(TIMESTAMP_TYPES).take(kinds)
        case "leader-epoch":
            epochs = [message.leader_epoch() for message in messages]
            known = [None if epoch is None or epoch < 0 else epoch for epoch in epochs]
            return pa.array(known, pa.int32())
        case "headers":
            return _headers(messages)
    raise AssertionError(field)


def _headers(messages: Sequence[Any]) -> pa.Array:
    headers = [message.headers() or () for message in messages]
    if not any(headers):
        return pa.repeat(pa.scalar([], HEADERS), len(headers))
    offsets = pa.array(np.cumsum([0, *map(len, headers)], dtype=np.int32))
    names = pa.array([name for found in headers for name, _ in found], pa.string())
    columns = [names, pa.array([value for found in headers for _, value in found], pa.binary())]
    entries = pa.StructArray.from_arrays(columns, fields=list(HEADERS.value_type))
    return pa.ListArray.from_arrays(offsets, entries, HEADERS)
