"""Writing records, without waiting or at least once.

Records with a key go to the partition that Java's clients choose for it. Per partition, and so per key, the
order of the rows is the order in Kafka, also when batches have to be sent again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from upsert.errors import ConfigurationError, DeliveryError, FencedError, KafkaUnavailableError
from upsert.kafka.client.connection import ClientCache, Connection, client_properties, library
from upsert.kafka.client.failures import (
    DidNotReturnError,
    Reports,
    bounded,
    codes,
    is_lasting,
    made,
    tell,
    translated,
    unavailable,
)
from upsert.kafka.client.message_producer import Producer
from upsert.kafka.client.records import PRODUCED, RECORD_SCHEMA

FLUSH_GRACE_SECONDS: Final = 10.0
"""How much longer than its patience a producer is waited for: it reports every record itself before."""

_POLL_EVERY: Final = 10_000

_CAUSE_SECONDS: Final = 5.0
"""How long a client that has ended may take to say why."""

_FLUSH_SECONDS: Final = 0.05
"""How long all records are waited for until it is asked what has gone wrong."""

_ROOM_SECONDS: Final = 0.005
"""How long a full queue is waited for: it has room again long before it is empty."""

_DEFAULTS: Final = {
    "partitioner": "murmur2_random",
    "linger.ms": 5,
    "batch.size": 1_000_000,
    "batch.num.messages": 10_000,
    "compression.type": "lz4",
    # more of them leave the processor's cache before they are sent, which costs a third of the time
    "queue.buffering.max.messages": 50_000,
    "queue.buffering.max.kbytes": 65_536,
    "acks": "all",
}

_FIXED: Final = {"delivery.report.only.error": True}

_UNCONFIRMED: Final = (
    "no broker confirmed the records, as where fewer replicas are in sync than 'min.insync.replicas' says"
)
"""The client tries again then for as long as it may, and reports nothing else."""


class Sender:
    """A client that writes, and the first thing that went wrong with it."""

    def __init__(self, connection: Connection, subject: str, properties: dict[str, Any]) -> None:
        self._connection = connection
        self.subject = subject
        self._reports = Reports()
        self._is_busy = self._is_left = False
        self._lock = threading.Lock()
        longest_ms = int(connection.patience_s * 1000)
        transaction_ms = str(properties.get("transaction.timeout.ms", ""))
        if transaction_ms.isdecimal():  # else the client says what is wrong with it
            longest_ms = min(longest_ms, int(transaction_ms))  # it refuses records that may wait for longer
        own = {"message.timeout.ms": longest_ms, **_DEFAULTS}
        if "delivery.timeout.ms" in connection.properties:
            del own["message.timeout.ms"]  # the same by its other name
        settings = client_properties(connection, own, {**_FIXED, **properties})
        listeners = self._reports.on_error, self._reports.on_failure
        self.client = made(connection, subject, lambda: Producer(settings, *listeners))

    def go_on(self) -> None:
        """Pass over what brokers have told while nothing was written: that may be over."""
        self._poll(0)
        self._reports.broker_failure = None

    def send(self, topic: str, table: pa.Table) -> int:
        """Hand the rows of a table to the client, in order, and give their number."""
        if unknown := set(table.column_names) - PRODUCED:
            raise ConfigurationError(
                f"{self.subject}: records have the columns {', '.join(sorted(PRODUCED))}; found also "
                f"{', '.join(map(repr, sorted(unknown)))}"
            )
        for batch in table.to_batches(max_chunksize=_POLL_EVERY):
            self._check_times(batch)
            columns = {name: _column(batch, name) for name in batch.schema.names}
            with self.refusals():
                for _ in self.client.send(topic, pa.record_batch(columns)):
                    self.client.flush(_ROOM_SECONDS)
                    self._poll(0)  # records that wait too long are told then
            self._poll(0)
        return int(table.num_rows)

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """What the client refuses, now or for good: too large a record, a producer that is locked out."""
        try:
            yield
            return
        except library().KafkaException as refused:
            error = self._cause_of(refused.args[0])
            failure = translated(self._connection, self.subject, error, DeliveryError)
        if not isinstance(failure, FencedError):
            self.check()  # a record that was not delivered is the cause of what follows
        raise failure

    def _cause_of(self, error: Any) -> Any:
        """What ended the client or its transaction, where it only says that something has: a lock-out, say.

        A client without transactions reports it; one with them tells it to the next call about a transaction.
        """
        if error.code() == library().KafkaError._STATE:
            return self.client.failure_of_transaction() or error
        if error.code() != library().KafkaError._FATAL:
            return error
        with suppress(library().KafkaException):
            self.client.poll(0)
        if self._reports.fatal is None:
            try:
                self.bounded(lambda client: client.abort_transaction(_CAUSE_SECONDS), _CAUSE_SECONDS)
            except library().KafkaException as cause:
                return cause.args[0] if cause.args[0].fatal() else error
            except DidNotReturnError:
                return error
        return self._reports.fatal or error

    def _check_times(self, batch: pa.RecordBatch) -> None:
        if "timestamp" not in batch.schema.names:
            return
        first = pc.min(batch.column("timestamp")).as_py()
        if first is not None and first <= 0:
            raise ConfigurationError(
                f"{self.subject}: a record's timestamp should be after 1970-01-01, which Kafka's client "
                f"library takes for 'now'; found {first} ms; leave it NULL where there is none"
            )

    def flush(self) -> None:
        """Wait until Kafka has confirmed all records, or raise for the first that it has not."""
        last_progress = time.monotonic()
        deadline = last_progress + self._connection.patience_s + FLUSH_GRACE_SECONDS
        while waiting := self.client.waiting:
            self.client.flush(_FLUSH_SECONDS)
            if self.client.waiting < waiting:
                last_progress = time.monotonic()
            self._poll(0)
            failure = self._reports.broker_failure
            if failure is not None and is_lasting(failure):
                raise translated(self._connection, self.subject, failure)
            tell(self._connection, self.subject, failure, last_progress)
            if time.monotonic() > deadline:
                raise self._unavailable(self.subject)
        self.check()

    def _poll(self, seconds: float) -> None:
        with self.refusals():
            self.client.poll(seconds)
        self.check()

    def check(self) -> None:
        """Raise for the first record that Kafka did not take."""
        if self._reports.failure is None:
            return
        error, target = self._reports.failure
        if error.code() == library().KafkaError._MSG_TIMED_OUT:
            raise self._unavailable(f"writing to {target}", _UNCONFIRMED)
        if error.code() in codes("_PURGE_QUEUE", "_PURGE_INFLIGHT"):
            # given up because of another failure, such as a right that is missing
            cause = self.client.failure_of_transaction()
            if cause is not None:
                raise translated(self._connection, self.subject, cause, DeliveryError)
        raise translated(self._connection, f"writing to {target}", error, DeliveryError)

    def _unavailable(self, subject: str, otherwise: str | None = None) -> KafkaUnavailableError:
        """What a broker was last seen to meet is the cause, or what is likely where none met anything."""
        last = self._reports.broker_failure
        return unavailable(self._connection, subject, otherwise if last is None else last.str())

    def bounded(self, call: Callable[[Producer], object], seconds: float) -> None:
        """As `bounded`; the client is busy until the call has returned, whatever ends the wait for it."""

        def made() -> None:
            try:
                call(self.client)
            finally:
                with self._lock:
                    self._is_busy = False
                if self._is_left:
                    self.client.close()

        begun = time.monotonic()

        def meanwhile() -> None:
            tell(self._connection, self.subject, self._reports.broker_failure, begun)

        self._is_busy = True
        try:
            bounded(made, seconds, meanwhile)
        except RuntimeError:  # no thread has begun, or the call has ended with it
            self._is_busy = False
            raise

    def is_left_to_a_call(self) -> bool:
        """Whether a call is at work on the client, which it ends when it returns."""
        with self._lock:
            self._is_left = self._is_busy
            return self._is_left

    def discard(self) -> None:
        """End the client without sending what it still has; one that is at work in a call is ended by it."""
        if not self.is_left_to_a_call():
            self.client.close()

    def close(self) -> None:
        """End the client; records that were not waited for get some seconds to be sent."""
        deadline = time.monotonic() + FLUSH_GRACE_SECONDS
        while self.client.waiting and time.monotonic() < deadline:
            self.client.flush(_FLUSH_SECONDS)
            with suppress(library().KafkaException):
                self.client.poll(0)
        self.client.close()


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """A column in its type of `RECORD_SCHEMA`."""
    type_ = RECORD_SCHEMA.field(name).type
    try:
        return batch.column(name).cast(type_)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as misfit:
        raise ConfigurationError(f"records to write: column {name!r} should be {type_}: {misfit}") from misfit


Guarantee = Literal["none", "at-least-once"]


def produce(
    connection: Connection, topic: str, records: Iterable[pa.Table], guarantee: Guarantee = "at-least-once"
) -> int:
    """Write records and give their number.

    Args:
        connection: the cluster.
        topic: where rows go that name no topic themselves.
        records: tables with ``key`` and ``value`` and, if need be, ``topic``, ``partition``, ``timestamp``
            (int64, milliseconds) and ``headers``, with NULL for what Kafka shall choose.
        guarantee: ``at-least-once`` returns when Kafka has confirmed all records; a repeated call writes
            them again. ``none`` does not wait: of records that fail later the next call that this process
            makes with ``none`` is told, as a `DeliveryError`, or none is, if there is no such call.

    Raises:
        DeliveryError: Kafka refused a record or did not confirm it in time; others may have been written.
        KafkaUnavailableError: Kafka was away for longer than the connection has patience.
        ConfigurationError: a column or a property is not one that fits.

    Example:
        >>> from upsert.kafka.client.admin import create_topic
        >>> connection = Connection({"bootstrap.servers": kafka.bootstrap_servers})
        >>> create_topic(connection, "produce-example", partitions=2)
        >>> produce(connection, "produce-example", [pa.table({"key": [b"k"], "value": [b"v"]})])
        1
    """
    key = (connection, guarantee)
    sender = _senders.take(key)
    is_safe = guarantee == "at-least-once"
    if sender is None:
        sender = Sender(connection, f"writing to {topic}", {"enable.idempotence": True} if is_safe else {})
    sender.subject = f"writing to {topic}"
    try:
        sender.go_on()
        rows = sum(sender.send(topic, table) for table in records)
        if is_safe:
            sender.flush()
    except BaseException:
        sender.discard()
        raise
    _senders.give_back(key, sender)
    return rows


_senders: ClientCache[Sender] = ClientCache(4, close=Sender.close)
