"""The log system ``kafka``, as the store asks for it: one topic a table, created with it, dropped with it.

The topic has a partition for each bucket, also where the table has partitions of its own: a bucket's number
means the same in all of them. Records are removed by age, never by key, for a reader of changes needs all of
them.

With ``log.consistency = eventual`` changes are sent before they are committed (`announce`). They are in the
log at least once, and before it is known whether they will be committed. A reader of such a log keeps the
newest row of each key, which in the end is the table's: a writer that fails tries again, and where two have
written at once, the publisher sends the changes again in the order of the commits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final
from uuid import uuid4

import numpy as np
import pyarrow as pa

from upsert.errors import ConfigurationError, TableExistsError, TableNotFoundError
from upsert.kafka.client import admin
from upsert.kafka.client.connection import PATIENCE_SECONDS
from upsert.kafka.client.producer import produce
from upsert.log import publisher
from upsert.log.messages import LogEncoder
from upsert.log.publisher import LogTopic
from upsert.rowkind import DELETE, UPDATE_AFTER, with_row_kind
from upsert.store.files.data_file import DataFile
from upsert.store.log.base import LoggedTable, LogSystem
from upsert.store.log_options import TOPIC, LogOptions
from upsert.store.metadata.file_entry import FileEntry

PATIENCE_S: Final = PATIENCE_SECONDS

ENDS_PATIENCE_S: Final = 5.0
"""How long a commit waits for the end of the log, which it can do without."""

DROP_PATIENCE_S: Final = 10.0

_LONGEST_NAME: Final = 200
_RANDOM_SIGNS: Final = 12


class KafkaLog:
    """One topic a table; see ``LogSystem``."""

    def named(self, given: Mapping[str, str], table: str) -> dict[str, str]:
        """The options of a new table, with the name of its topic."""
        has_name = any(key.lower() == TOPIC for key in given)
        return dict(given) if has_name else {**given, TOPIC: new_name(table)}

    def create(self, log: LogOptions, buckets: int, owner: str, *, may_be_there: bool = False) -> None:
        """Create the topic. A crash leaves it or not; nothing else knows of it yet."""
        topic = LogTopic.of(log, buckets, owner)
        config = {"cleanup.policy": "delete"}
        if log.retention_ms is not None:
            config["retention.ms"] = str(log.retention_ms)
        try:
            admin.create_topic(topic.connection, topic.name, buckets, config)
        except TableExistsError as cause:
            if not may_be_there or not _is_empty(topic):
                raise _taken(topic, owner) from cause
            _change_retention(topic, log.retention_ms)

    def check_is_free(self, log: LogOptions, buckets: int, owner: str) -> None:
        """Make sure that there is no such topic."""
        topic = LogTopic.of(log, buckets, owner)
        if admin.topics(topic.connection, [topic.name]):
            raise _taken(topic, owner)

    def change(self, old: LogOptions, new: LogOptions, buckets: int, owner: str) -> None:
        """Give the topic another retention; properties of its client that are refused are so before that."""
        topic = LogTopic.of(new, buckets, owner)
        if old.retention_ms != new.retention_ms:
            _change_retention(topic, new.retention_ms)

    def drop(self, log: LogOptions, buckets: int, owner: str, *, only_empty: bool = False) -> None:
        """Delete the topic."""
        topic = LogTopic.of(log, buckets, owner, DROP_PATIENCE_S)
        if not only_empty or _is_empty(topic):
            with suppress(TableNotFoundError):
                admin.delete_topic(topic.connection, topic.name)

    def publish(self, table: LoggedTable, *, accept_gap: bool) -> int:
        """Send the changes of snapshots that the log lacks."""
        return publisher.publish(table, _topic(table, PATIENCE_S), accept_gap=accept_gap)

    def announce(self, table: LoggedTable, files: Sequence[FileEntry]) -> None:
        """Send the rows of files that are about to be committed, as upserts and deletions.

        The log gets what it lacks first, so that nothing older comes after them.
        """
        topic = _topic(table, PATIENCE_S)
        publisher.publish(table, topic)
        produce(topic.connection, topic.name, _records(table, files))

    def ends(self, table: LoggedTable) -> Mapping[str, int]:
        """Where the log ends."""
        return _topic(table, ENDS_PATIENCE_S).named_ends()


def new_name(table: str) -> str:
    """The name of a new table's topic, which no other topic has."""
    readable = re.sub(r"[^A-Za-z0-9._-]", "-", table)[:_LONGEST_NAME]
    return f"{readable}-{uuid4().hex[:_RANDOM_SIGNS]}"


def _topic(table: LoggedTable, patience_s: float) -> LogTopic:
    return LogTopic.of(table.log, table.definition.options.bucket, table.owner, patience_s)


def _is_empty(topic: LogTopic) -> bool:
    """Whether there is a topic of this form in which nothing has been written that can be read."""
    found = admin.topics(topic.connection, [topic.name]).get(topic.name)
    return found is not None and found.partitions == topic.buckets and not any(topic.ends().values())


def _taken(topic: LogTopic, owner: str) -> ConfigurationError:
    return ConfigurationError(
        f"{owner}: its log needs a topic of its own, {topic.name!r} is there already; delete it, or "
        f"leave {TOPIC!r} out, which gives a new name"
    )


def _change_retention(topic: LogTopic, retention_ms: int | None) -> None:
    value = None if retention_ms is None else str(retention_ms)
    admin.change_settings(topic.connection, topic.name, {"retention.ms": value})


def _records(table: LoggedTable, files: Sequence[FileEntry]) -> Iterator[pa.Table]:
    definition = table.definition
    encoder = LogEncoder(definition.schema, table.log, table.uuid, definition.version)
    for entry in files:
        for changes in _changes(table, entry):
            yield from encoder.records(changes, entry.bucket, None)


def _changes(table: LoggedTable, entry: FileEntry) -> Iterator[pa.Table]:
    """The rows of a file: those that will be there, then those that will not."""
    layout = table.rows.layout
    names = [column.name for column in layout.schema.physical]
    file = DataFile.open(table.rows.path, layout, entry)
    rows = pa.Table.from_batches([file.select(names)])
    if file.kinds is None:
        yield with_row_kind(rows, UPDATE_AFTER)
        return
    yield with_row_kind(rows.filter(pa.array(file.kinds == 0)), UPDATE_AFTER)
    yield with_row_kind(_whole(table, rows.filter(pa.array(file.kinds != 0)), names), DELETE)


def _whole(table: LoggedTable, gone: pa.Table, names: list[str]) -> pa.Table:
    """Rows to delete as they are in the table; a deletion may be written with no more than the key."""
    key = list(table.rows.layout.key)
    found, images = table.rows.snapshot().match(key, gone.select(key), select=names)
    is_unknown = np.ones(gone.num_rows, np.bool_)
    is_unknown[found] = False
    return pa.concat_tables([images.select(names), gone.filter(pa.array(is_unknown)).cast(images.schema)])


LOG_SYSTEM: Final[LogSystem] = KafkaLog()
