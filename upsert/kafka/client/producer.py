"""Writing records: without waiting, at least once, or exactly once.

Records with a key go to the partition that Java's clients choose for it. Per partition, and so per key, the
order of the rows is the order in Kafka, also when batches have to be sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

import pyarrow as pa

from upsert.errors import ConfigurationError, KafkaUnavailableError
from upsert.kafka.client.client_cache import ClientCache
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.sender import Sender
from upsert.kafka.client.transactions import Marker, TransactionalWriter, fingerprint_text, read_marker
from upsert.store.failpoints import reach

Guarantee = Literal["none", "at-least-once"]

OWN_COMMIT_SECONDS: Final = 2.0
"""How long a commit may take to be seen after it is answered: some milliseconds on a quiet broker."""


@dataclass(frozen=True)
class Outcome:
    """What became of a batch.

    Attributes:
        rows: how many records the batch has in Kafka.
        skipped: an earlier attempt had written it already.
    """

    rows: int
    skipped: bool


def produce(
    connection: Connection,
    topic: str,
    records: Iterable[pa.Table],
    guarantee: Guarantee = "at-least-once",
) -> int:
    """Write records and give their number.

    Args:
        connection: the cluster.
        topic: where rows go that name no topic themselves.
        records: tables with ``key`` and ``value`` and, if need be, ``topic``, ``partition``, ``timestamp``
            (int64, milliseconds) and ``headers``, with NULL for what Kafka shall choose.
        guarantee: ``at-least-once`` returns when Kafka has confirmed all records; a repeated call writes
            them again. ``none`` does not wait, and what fails later is only logged.

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
    if sender is None:
        is_safe = guarantee == "at-least-once"
        sender = Sender(connection, f"writing to {topic}", {"enable.idempotence": True} if is_safe else {})
    sender.subject = f"writing to {topic}"
    try:
        rows = sum(sender.send(topic, table) for table in records)
        if guarantee == "at-least-once":
            sender.flush()
    except BaseException:
        sender.discard()
        raise
    _senders.give_back(key, sender)
    return rows


def produce_once(
    connection: Connection,
    topic: str,
    records: Iterable[pa.Table],
    *,
    transactional_id: str,
    batch: int,
    fingerprint: str | Callable[[], str],
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
    marker: Marker,
    records: Iterable[pa.Table],
    subject: str,
    batch: int,
    fingerprint: str | Callable[[], str],
) -> Outcome:
    """Take the records of a batch that is there already, and compare what is known of them."""
    for _ in records:
        pass
    if marker.batch > batch:
        raise ConfigurationError(
            f"{subject}: batches are written in order, and batch {marker.batch} is in Kafka already; the "
            "checkpoint is older than what was written: start with a new checkpoint, whose ids are new"
        )
    given = fingerprint_text(fingerprint)
    if marker.fingerprint != given:
        raise ConfigurationError(
            f"{subject}: a repeated batch should be the same, and was written as {marker.fingerprint!r} "
            f"before and is {given!r} now; compute the same rows again, and keep which of them each task "
            "gets, as write_changes does for keys"
        )
    return Outcome(marker.rows, skipped=True)


_senders: ClientCache[Sender] = ClientCache(4, close=Sender.close)
_writers: ClientCache[TransactionalWriter] = ClientCache(8, close=TransactionalWriter.discard)
"""Producers that may write their next batch without being opened anew, which takes 60 to 500 ms."""
