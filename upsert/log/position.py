"""Up to which snapshot a log is complete, as the log itself says.

Every transaction of a log commits, with its records, the snapshot's id as the offset of a consumer group:
that is asked first. Kafka forgets such offsets a week after the last one; then the newest mark in the topic
tells, and where Kafka has deleted that too, what the table's own consumer holds. Each of them can only be too
low, and is so only if nobody can read any more what would be sent twice.
"""

from __future__ import annotations

from typing import Final

from upsert.errors import ConfigurationError
from upsert.kafka.client.consumer import read_range
from upsert.kafka.client.offsets import earliest_offsets
from upsert.kafka.client.transactions import Marker, read_marker, settled_marker
from upsert.log.messages import LogDecoder
from upsert.log.topics import LogTopic
from upsert.store import consumers
from upsert.store.log_beginning import beginning_of
from upsert.store.log_system import CONSUMER, LoggedTable

_FIRST_LOOK: Final = 100
"""Offsets at the end of a partition in which the newest mark is looked for first."""


def transactional_id(uuid: str) -> str:
    """The name under which a table's log is written: one writer at a time has it."""
    return f"deltajoin-log-{uuid}"


def last_published(table: LoggedTable, topic: LogTopic) -> int:
    """Id of the snapshot up to which the log is complete; 0 for a new one.

    Raises:
        ConfigurationError: the log is not that of this history of the table.
        KafkaUnavailableError: the brokers did not answer, or a transaction of the log stayed open.
    """
    marker = read_marker(topic.connection, topic.name, transactional_id(table.uuid))
    return _position(table, topic, marker)


def published_at_least(table: LoggedTable, topic: LogTopic) -> int:
    """The same without waiting for a transaction that is open: the log may be complete up to a later one.

    Raises:
        ConfigurationError, KafkaUnavailableError: the brokers did not answer, or as above.
    """
    marker = read_marker(topic.connection, topic.name, transactional_id(table.uuid), settled=False)
    return _position(table, topic, marker)


def taken_over(table: LoggedTable, topic: LogTopic, wait_s: float) -> int:
    """The same for who is going to publish: a transaction that stays open for so long is taken back.

    Raises:
        ConfigurationError, KafkaUnavailableError: as for ``published_at_least``.
    """
    marker = settled_marker(topic.connection, topic.name, transactional_id(table.uuid), wait_s)
    return _position(table, topic, marker)


def _position(table: LoggedTable, topic: LogTopic, marker: Marker | None) -> int:
    if marker is None:
        begun = beginning_of(table.published.root, table.published.uuid, topic.name).data_version
        return max(_newest_mark(table, topic), _held(table), begun)
    _check_lineage(table, topic, marker.batch, marker.fingerprint)
    return marker.batch


def _check_lineage(table: LoggedTable, topic: LogTopic, published: int, uuid: str) -> None:
    """Refuse a log into which a copy of the table has written, or the table before it was restored."""
    head = table.published.latest()
    is_other = published > head.id
    if head.oldest <= published <= head.id:
        is_other = table.published.info(published, head).uuid != uuid
    if is_other:
        raise ConfigurationError(
            f"{table.owner}: its log {topic.name!r} must hold the table's own snapshots, it holds snapshot "
            f"{published} of another history, as if the table was copied or restored; create a table with a "
            "log of its own, and copy the rows"
        )


def _newest_mark(table: LoggedTable, topic: LogTopic) -> int:
    """The snapshot of the newest mark in partition 0; 0 if there is none."""
    place = topic.partitions[0]
    end = topic.ends()[0]
    begin = earliest_offsets(topic.connection, [place])[place] if end else 0
    decoder = LogDecoder(table.definition.schema, table.log, table.uuid)
    look = _FIRST_LOOK
    while begin < end:
        start = max(begin, end - look)
        newest = 0
        for records in read_range(topic.connection, place, start, end, {"headers"}):
            marks = decoder.marks(records)
            newest = marks[-1].snapshot if marks else newest
        if newest or start == begin:
            return newest
        look *= 10
    return 0


def _held(table: LoggedTable) -> int:
    found = consumers.read(table.published.root, table.published.uuid, CONSUMER)
    return 0 if found is None else found.version.base
