"""Writing exactly once: one transaction per batch of a task, and the marker by which a repeat is known.

Inside the transaction that writes the records of batch ``n``, the offset ``n + 1`` is committed for the
consumer group named like the transactional id: the marker. Records and marker become visible together or
not at all. A replayed batch finds its marker and writes nothing. Opening a producer with the same
transactional id ends a transaction that a dead or stalled attempt has left open, and locks that attempt out.

When the answer to a commit is lost, a new producer is opened, which makes Kafka settle the old transaction,
and the marker tells how. A producer that has had any trouble is never used again.

A marker in a transaction that a dead attempt has left open would be waited for until Kafka gives that up,
which takes ten minutes. So what decides whether to write is read after the producer was opened, and what is
read before that waits for nothing: it can only miss what the second look shows.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from upsert.codec import Jsonable
from upsert.errors import ConfigurationError, DeliveryError, KafkaUnavailableError
from upsert.failpoints import reach
from upsert.kafka.client.admin import group_markers
from upsert.kafka.client.connection import ClientCache, Connection, library
from upsert.kafka.client.failures import (
    GRACE_SECONDS,
    DidNotReturnError,
    is_passing,
    translated,
    unavailable,
)
from upsert.kafka.client.message_producer import Producer
from upsert.kafka.client.producer import Sender
from upsert.kafka.client.records import TopicPartition

TRANSACTION_SECONDS: Final = 600
"""How long a transaction may stay open unless ``transaction.timeout.ms`` is set; brokers allow 15 minutes."""

MARKER_SECONDS: Final = 30.0
"""How long a marker is waited for; a client whose broker was restarted in between never gets it through."""

FINGERPRINT_LENGTH: Final = 1000
"""Characters a fingerprint may have: Kafka keeps 4096 bytes beside an offset."""

OWN_COMMIT_SECONDS: Final = 2.0
"""How long a commit may take to be seen after it is answered: some milliseconds on a quiet broker."""
_ABORT_SECONDS: Final = 5.0

_AGAIN: Final = (
    "a call of the client did not come back, as where the broker dies that coordinates the transaction or "
    "keeps its marker; another attempt is right"
)

POINTS: Final = (
    "transaction.after-look",
    "transaction.after-open",
    "transaction.after-begin",
    "transaction.after-send",
    "transaction.after-flush",
    "transaction.after-marker",
    "transaction.after-commit",
)
"""Points of ``upsert.failpoints`` at which a test can kill a writer: between two requests each."""


@dataclass(frozen=True)
class Marker(Jsonable):
    """What a transaction leaves behind beside its records.

    Attributes:
        fingerprint: the caller's word for what makes a replay the same batch.
        writer: the producer that wrote it.
    """

    batch: int
    rows: int
    fingerprint: str
    writer: str


Fingerprint = str | Callable[[], str]


def fingerprint_text(fingerprint: Fingerprint) -> str:
    """The fingerprint, now that all records were taken."""
    text = fingerprint if isinstance(fingerprint, str) else fingerprint()
    if len(text) > FINGERPRINT_LENGTH:
        raise ConfigurationError(
            f"a fingerprint should have at most {FINGERPRINT_LENGTH} characters, and has {len(text)}"
        )
    return text


def read_marker(
    connection: Connection, topic: str, transactional_id: str, *, settled: bool = True
) -> Marker | None:
    """What the last committed transaction of this id has left behind; None before the first.

    Without ``settled`` an open transaction is not waited for, see `group_markers`; with it, one that stays
    open is a ``KafkaUnavailableError``.
    """
    partition = TopicPartition(topic, 0)
    found = group_markers(connection, transactional_id, [partition], settled=settled).get(partition)
    if found is None:
        return None
    offset, text = found
    try:
        marker = Marker.from_json(json.loads(text))
        if marker.batch + 1 != offset:
            raise ValueError(offset)
    except (ValueError, TypeError, KeyError) as foreign:
        raise ConfigurationError(
            f"transactional id {transactional_id!r}: the consumer group of that name should hold the marker "
            f"of the last batch, and holds offset {offset} with {text!r}; choose another "
            "'sink.transactional-id-prefix'"
        ) from foreign
    return marker


def settled_marker(connection: Connection, topic: str, transactional_id: str, wait_s: float) -> Marker | None:
    """As `read_marker`; a transaction that stays open so long is that of a dead attempt, and is aborted."""
    try:
        return read_marker(replace(connection, patience_s=wait_s), topic, transactional_id)
    except KafkaUnavailableError:
        # or Kafka is away, which this tells after the whole patience
        TransactionalWriter(connection, topic, transactional_id).discard()
        return read_marker(connection, topic, transactional_id)


class TransactionalWriter:
    """A producer that owns a transactional id from now on; all others with this id are locked out.

    Attributes:
        name: which producer it is.
        is_sound: whether it may be used for another batch.
    """

    def __init__(self, connection: Connection, topic: str, transactional_id: str) -> None:
        self.name = uuid.uuid4().hex
        self.is_sound = True
        self._connection = connection
        self._topic = topic
        self._id = transactional_id
        self._subject = f"writing to {topic} as {transactional_id!r}"
        timeout_ms = connection.properties.get("transaction.timeout.ms", TRANSACTION_SECONDS * 1000)
        properties = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "enable.idempotence": True,
        }
        self._sender = Sender(connection, self._subject, properties)
        try:
            patience = connection.patience_s
            self._call(lambda client: client.init_transactions(patience), patience)
            reach("transaction.after-open")
        except BaseException:
            self.discard()
            raise

    def write(self, records: Iterable[pa.Table], batch: int, fingerprint: Fingerprint) -> int:
        """Write the records and the marker in one transaction and give the number of records.

        After any error, and when `is_sound` is no longer true, the writer must be discarded.
        """
        self._sender.go_on()
        self._call(lambda client: client.begin_transaction(), 0)
        reach("transaction.after-begin")
        rows = 0
        for table in records:
            rows += self._sender.send(self._topic, table)
            reach("transaction.after-send")
        self._sender.flush()
        reach("transaction.after-flush")
        marker = Marker(batch, rows, fingerprint_text(fingerprint), self.name)
        seconds = min(self._connection.patience_s, MARKER_SECONDS)
        text = json.dumps(marker.to_json(), sort_keys=True)
        offset = TopicPartition(self._topic, 0), batch + 1, text, self._id
        self._call(lambda client: client.send_offset(*offset, seconds), seconds)
        reach("transaction.after-marker")
        self._commit(marker)
        reach("transaction.after-commit")
        return rows

    def _commit(self, marker: Marker) -> None:
        """Commit, and where the answer is lost find out whether it happened."""
        patience = self._connection.patience_s
        try:
            self._sender.bounded(lambda client: client.commit_transaction(patience), patience)
            return
        except library().KafkaException as refused:
            error = refused.args[0]
            failure = translated(self._connection, self._subject, error, DeliveryError)
            is_unknown = error.retriable() or is_passing(error)
        except DidNotReturnError:
            is_unknown = True
            failure = unavailable(self._connection, self._subject, None)
        self.is_sound = False
        if not is_unknown:
            raise failure
        TransactionalWriter(self._connection, self._topic, self._id).discard()
        if read_marker(self._connection, self._topic, self._id) != marker:
            raise failure

    def discard(self) -> None:
        """End the producer and give up its open transaction, if there is one.

        One that is at work in a call is ended by it: opening the next one takes its transaction away.
        """
        if self._sender.is_left_to_a_call():
            return
        try:
            # Without an answer the broker gives it up itself, at the latest when it times out.
            with suppress(library().KafkaException, DidNotReturnError):
                self._sender.client.poll(0)  # raises when there is nothing left that could be given up
                self._sender.bounded(lambda client: client.abort_transaction(_ABORT_SECONDS), _ABORT_SECONDS)
        finally:
            self._sender.discard()

    def _call(self, call: Callable[[Producer], object], seconds: float) -> None:
        try:
            with self._sender.refusals():
                self._sender.bounded(call, seconds)
        except DidNotReturnError:
            waited = replace(self._connection, patience_s=seconds + GRACE_SECONDS)
            raise unavailable(waited, self._subject, _AGAIN) from None


@dataclass(frozen=True)
class Outcome:
    """How many records a batch has in Kafka, and whether an earlier attempt had written it already."""

    rows: int
    skipped: bool


def produce_once(
    connection: Connection,
    topic: str,
    records: Iterable[pa.Table],
    *,
    transactional_id: str,
    batch: int,
    fingerprint: Fingerprint,
) -> Outcome:
    """Write the records of a batch unless an earlier attempt has done so.

    Readers with ``read_committed`` see all of the call's records or none. A process that dies before the
    commit leaves nothing visible, one that dies after it is followed by an attempt that skips. The records
    are always taken to their end, also when they are skipped.

    Args:
        connection: the cluster.
        topic: where rows go that name no topic themselves; the marker is kept for its partition 0.
        records: as for `produce`.
        transactional_id: one name per writing task, used by nothing else in the cluster.
        batch: number of the batch, growing from call to call; a repeated batch must have the same records.
        fingerprint: what must be equal when a batch comes again, for instance how many tasks share it; or a
            function that gives it after the last record was taken.

    Raises:
        FencedError: a later attempt has taken over.
        ConfigurationError: the batch was written before with another fingerprint, or later batches were.
        DeliveryError, KafkaUnavailableError: nothing of this call is visible, or it is not known; calling
            again with the same batch is right in both cases.
        TableNotFoundError: the topic does not exist.

    Example:
        >>> from upsert.kafka.client.admin import create_topic
        >>> connection = Connection({"bootstrap.servers": kafka.bootstrap_servers})
        >>> create_topic(connection, "once-example", partitions=1)
        >>> rows = [pa.table({"key": [b"k"], "value": [b"v"]})]
        >>> write = lambda: produce_once(
        ...     connection, "once-example", rows, transactional_id="example-0", batch=0, fingerprint="1 task"
        ... )
        >>> write()
        Outcome(rows=1, skipped=False)
        >>> write()
        Outcome(rows=1, skipped=True)
    """
    key, subject = (connection, topic, transactional_id), f"batch {batch} of {transactional_id!r}"
    writer = _writers.take(key)
    marker = _first_look(connection, topic, transactional_id, writer)
    reach("transaction.after-look")
    if marker is not None and marker.batch >= batch:
        # without a new producer: it would lock out the one that another process keeps for its next batch
        if writer is not None:
            _writers.give_back(key, writer)
        return _skip(marker, records, subject, batch, fingerprint)
    if writer is not None and (marker is None or marker.writer != writer.name):
        writer.discard()  # another process has written since
        writer = None
    if writer is None:
        # ends what a dead attempt has left open, which a look that waits for it would do for ten minutes
        writer = TransactionalWriter(connection, topic, transactional_id)
        marker = read_marker(connection, topic, transactional_id)
    try:
        if marker is not None and marker.batch >= batch:
            outcome = _skip(marker, records, subject, batch, fingerprint)
        else:
            outcome = Outcome(writer.write(records, batch, fingerprint), skipped=False)
    except BaseException:
        writer.discard()
        raise
    if writer.is_sound:
        _writers.give_back(key, writer)
    else:
        writer.discard()
    return outcome


def _first_look(
    connection: Connection, topic: str, transactional_id: str, writer: TransactionalWriter | None
) -> Marker | None:
    """A marker, perhaps not the newest; that one, or None, where a producer of this process shall go on.

    A commit takes a moment to be seen after it is answered, so a producer has to wait for its own. Another
    process's transaction that stays open has locked it out, and is ended by the next one that is opened.
    """
    if writer is None:
        return read_marker(connection, topic, transactional_id, settled=False)
    patience_s = min(connection.patience_s, OWN_COMMIT_SECONDS)
    try:
        return read_marker(replace(connection, patience_s=patience_s), topic, transactional_id)
    except KafkaUnavailableError:
        return None
    except BaseException:
        writer.discard()
        raise


def _skip(
    marker: Marker, records: Iterable[pa.Table], subject: str, batch: int, fingerprint: Fingerprint
) -> Outcome:
    """Take the records of a batch that has been written, and compare what is known of them."""
    for _ in records:
        pass
    if marker.batch > batch:
        raise ConfigurationError(
            f"{subject}: batches are written in order, and batch {marker.batch} is in Kafka already; if "
            "another query runs with the same checkpoint, stop one of them, and start the other again; if "
            "the checkpoint is an older copy, begin with a new one, whose ids are new"
        )
    given = fingerprint_text(fingerprint)
    if marker.fingerprint != given:
        raise ConfigurationError(
            f"{subject}: a repeated batch should be the same, and was written as {marker.fingerprint!r} "
            f"before and is {given!r} now; compute the same rows again, in the same tasks: with the options "
            "and the cores of before; of an 'upsert-kafka' table write_changes keeps the task of each key"
        )
    return Outcome(marker.rows, skipped=True)


_writers: ClientCache[TransactionalWriter] = ClientCache(8, close=TransactionalWriter.discard)
"""Producers that may write their next batch without being opened again, which takes 60 to 500 ms."""
