"""Reading a fixed range of offsets of one partition, as Arrow tables.

Offsets of a partition have gaps: compaction removes records, aborted transactions are not shown, and each
transaction takes one offset for its end. So a range is not counted: it ends with the first record at or
behind its end, or when Kafka says that the partition ends there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Hashable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from upsert.arrays import integers
from upsert.errors import KafkaUnavailableError, RecordsExpiredError, UpsertError
from upsert.kafka.client.admin import latest_offsets
from upsert.kafka.client.connection import ClientCache, Connection, client_properties, library
from upsert.kafka.client.failures import Reports, is_lasting, is_passing, made, tell, translated, unavailable
from upsert.kafka.client.message_consumer import Consumer
from upsert.kafka.client.records import TopicPartition, record_schema

MAX_ROWS: Final = 100_000
MAX_BYTES: Final = 64 << 20
"""Bytes of keys and values after which a table is handed out, however few rows it has."""

_AT_ONCE: Final = 10_000
_NEAR: Final = 100
"""So many offsets between two ranges are read and left out: another request would take longer."""
_WAIT_SECONDS: Final = 0.1
_IDLE_SECONDS: Final = 0.25
"""A reader that is not used for so long asks for no more: its query does not go on at once."""

ASKED_SECONDS: Final = 10.0
"""How long a broker may take to say where a partition ends of which no record comes."""

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
    topic_id: str | None = None,
) -> Iterator[pa.Table]:
    """The records of a partition with ``start <= offset < end`` that a reader can see, in offset order.

    Each table has at most ``max_rows`` rows and about 64 MB, and the columns key, value, offset and those
    wanted, as in `RECORD_SCHEMA`; there is no empty table. Offsets that compaction or transactions took are
    skipped. ``end`` should not lie behind `latest_offsets`.

    The reader is kept, so that the next range of this partition continues without another request. One that
    is idle, and has fetched little ahead, makes none until then. With ``topic_id`` it is kept for that topic
    alone, and not for another one of its name. A broker that goes away is waited for, as long as the
    connection has patience and from the last sign of life on.

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
    key = (connection, partition, topic_id)
    reader = _readers.take(key) or PartitionReader(connection, partition)
    is_sound = False
    try:
        yield from reader.read(start, end, record_schema(wanted), max_rows)
        is_sound = True
    except GeneratorExit:
        is_sound = True  # the caller wants no more; what it has not taken is still in the reader
        raise
    finally:
        if is_sound:
            reader.idle_since = time.monotonic()
            _readers.give_back(key, reader)
            _watch(key, reader, _IDLE_SECONDS)
        else:
            reader.close()


class PartitionReader:
    """One partition's records from an offset on, by a client that fetches ahead."""

    def __init__(self, connection: Connection, partition: TopicPartition) -> None:
        self._connection = connection
        self._partition = partition
        self._subject = f"reading {partition}"
        self._reports = Reports()
        properties = client_properties(connection, _DEFAULTS, _FIXED)
        self._client = made(connection, self._subject, lambda: Consumer(properties, self._reports.on_error))
        self._end_of_partition = library().KafkaError._PARTITION_EOF
        # Records below `_given` have been handed out, those below `_fetched` have come; between: `_pending`.
        self._given = self._fetched = -1
        self.idle_since = 0.0
        self.is_watched = False
        self._pending = record_schema().empty_table()

    def close(self) -> None:
        """End the client."""
        self._client.close()

    def rest(self) -> None:
        """Ask for nothing until the next range, unless many records of that have come already.

        At the end of a partition a client asks the broker twenty times a second whether there is more.
        """
        if self._pending.num_rows + self._client.waiting <= _NEAR:
            self._client.rest()
            self._pending = record_schema().empty_table()
            self._given = self._fetched = -1

    def read(self, start: int, end: int, schema: pa.Schema, max_rows: int) -> Iterator[pa.Table]:
        """Records with ``start <= offset < end`` in tables of bounded size, none of them empty."""
        self._go_to(start, schema)
        last_progress = time.monotonic()
        chunk: list[pa.Table] = []
        rows = size = 0
        while self._given < end:
            records = self._take(end, max_rows - rows)
            if records.num_rows:
                chunk.append(records)
                rows, size = rows + records.num_rows, size + records.nbytes
                last_progress = time.monotonic()
            elif self._given < end:
                self._check_patience(last_progress, end)
            if chunk and (rows >= max_rows or size >= MAX_BYTES or self._given >= end):
                yield pa.concat_tables(chunk).combine_chunks()
                chunk, rows, size = [], 0, 0

    def _go_to(self, start: int, schema: pa.Schema) -> None:
        """Make ``start`` the next offset to hand out; near the end of the last range without a request."""
        has_columns = self._pending.schema == schema or not self._pending.num_rows
        if has_columns and 0 <= self._given <= start <= self._fetched + _NEAR:
            self._pending = _from(self._pending, start) if self._pending.num_rows else schema.empty_table()
            self._fetched = max(self._fetched, start)
        else:
            self._client.assign(self._partition, start)
            self._pending = schema.empty_table()
            self._fetched = start
        self._given = start

    def _take(self, end: int, limit: int) -> pa.Table:
        """The next records before ``end`` that have come, or come at once; moves `_given` on."""
        if not self._pending.num_rows and self._fetched < end:
            self._fetch(min(limit, end - self._fetched, _AT_ONCE))
        taken = self._pending.slice(0, min(limit, _rows_before(self._pending, end)))
        self._pending = self._pending.slice(taken.num_rows)
        following = self._pending.column("offset")[0].as_py() if self._pending.num_rows else self._fetched
        self._given = min(end, following)
        return taken

    def _fetch(self, limit: int) -> None:
        """Move what the client has to `_pending`; waits a little when it has nothing."""
        schema = self._pending.schema
        taken = self._client.take(limit, 0, schema)
        if not taken.records.num_rows and not taken.errors:
            taken = self._client.take(1, _WAIT_SECONDS, schema)
        for error, offset in taken.errors:
            self._note(error, offset)
        if taken.records.num_rows:
            self._fetched = max(self._fetched, taken.records.column("offset")[-1].as_py() + 1)
            # where a range began a little behind the one before, what lies in between comes too
            self._pending = _from(taken.records, self._given)

    def _note(self, error: Any, offset: int) -> None:
        """Take note of the end of the partition; raise what is an error that does not pass."""
        if error.code() == self._end_of_partition:
            self._fetched = max(self._fetched, offset)
            self._reports.broker_failure = None
        elif is_passing(error):
            self._reports.on_error(error)
        else:
            raise self._failed(error)

    def _failed(self, error: Any) -> UpsertError:
        return translated(self._connection, f"{self._subject} from offset {self._fetched}", error)

    def _check_patience(self, last_progress: float, end: int) -> None:
        failure = self._reports.broker_failure
        if failure is not None and is_lasting(failure):
            raise self._failed(failure)
        tell(self._connection, self._subject, failure, last_progress)
        if time.monotonic() - last_progress < self._connection.patience_s:
            return
        if failure is None:
            with suppress(KafkaUnavailableError):
                self._check_reaches(end)
        raise unavailable(self._connection, self._subject, None if failure is None else failure.str())

    def _check_reaches(self, end: int) -> None:
        """Raise that the partition ends before ``end`` where a broker says so; it may just be silent."""
        asked = replace(self._connection, patience_s=min(ASKED_SECONDS, self._connection.patience_s))
        last = latest_offsets(asked, [self._partition])[self._partition]
        if last < end:
            raise RecordsExpiredError(
                f"{self._subject} from offset {self._given}: the partition should reach {end}, and ends at "
                f"{last}; it may have been deleted and created again: start over, or accept the gap"
            )


def _rows_before(records: pa.Table, offset: int) -> int:
    return int(np.searchsorted(integers(records.column("offset")), offset))


def _from(records: pa.Table, offset: int) -> pa.Table:
    """The records from an offset on."""
    return records.slice(_rows_before(records, offset))


_readers: ClientCache[PartitionReader] = ClientCache(8, close=PartitionReader.close)
"""Up to 8 partitions a process, each with up to 32 MB fetched ahead."""


def _watch(key: Hashable, reader: PartitionReader, seconds: float) -> None:
    """Let a reader rest if it is idle after some time; of one that is watched already the timer goes on."""
    if not reader.is_watched:
        reader.is_watched = True
        timer = threading.Timer(seconds, _rest_if_idle, (key, reader))
        timer.daemon = True
        timer.start()


def _rest_if_idle(key: Hashable, reader: PartitionReader) -> None:
    reader.is_watched = False
    found = _readers.take(key)
    if found is not reader:  # it is used, and watched again when it is given back, or has gone
        if found is not None:
            _readers.give_back(key, found)
        return
    left = reader.idle_since + _IDLE_SECONDS - time.monotonic()
    if left <= 0:
        try:
            reader.rest()
        except library().KafkaException:
            reader.close()  # the next read makes another, which tells what is wrong
            return
    _readers.give_back(key, reader)
    if left > 0:
        _watch(key, reader, left)
