"""The log system ``kafka``, as the store asks for it.

With ``log.consistency = eventual`` changes are sent before they are committed (`announce`). They are in the
log at least once, and before it is known whether they will be committed. A reader of such a log keeps the
newest row of each key, which in the end is the table's: a writer that fails tries again, and where two have
written at once, the publisher sends the changes again in the order of the commits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from upsert.kafka.client.connection import PATIENCE_SECONDS
from upsert.kafka.client.producer import produce
from upsert.log import publisher, topics
from upsert.log.messages import LogEncoder
from upsert.log.publisher import publish
from upsert.log.topics import LogTopic
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.store.files.data_file import DataFile
from upsert.store.log.protocol import LoggedTable, LogSystem
from upsert.store.log_options import LogOptions
from upsert.store.metadata.file_entry import FileEntry


def announce(table: LoggedTable, topic: LogTopic, files: Sequence[FileEntry]) -> None:
    """Send the rows of files that are about to be committed, as upserts and deletions.

    The log gets what it lacks first, so that nothing older comes after them.
    """
    publish(table, topic)
    produce(topic.connection, topic.name, _records(table, files))


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
        yield _of_kind(rows, RowKind.UPDATE_AFTER)
        return
    yield _of_kind(rows.filter(pa.array(file.kinds == 0)), RowKind.UPDATE_AFTER)
    yield _of_kind(_whole(table, rows.filter(pa.array(file.kinds != 0)), names), RowKind.DELETE)


def _whole(table: LoggedTable, gone: pa.Table, names: list[str]) -> pa.Table:
    """Rows to delete as they are in the table; a deletion may be written with no more than the key."""
    key = list(table.rows.layout.key)
    found, images = table.rows.snapshot().match(key, gone.select(key), select=names)
    is_unknown = np.ones(gone.num_rows, np.bool_)
    is_unknown[found] = False
    return pa.concat_tables([images.select(names), gone.filter(pa.array(is_unknown)).cast(images.schema)])


def _of_kind(rows: pa.Table, kind: RowKind) -> pa.Table:
    return rows.append_column(ROW_KIND_COLUMN, pa.repeat(kind.value, rows.num_rows))


PATIENCE_S: Final = PATIENCE_SECONDS

ENDS_PATIENCE_S: Final = 5.0
"""How long a commit waits for the end of the log, which it can do without."""

DROP_PATIENCE_S: Final = 10.0


class KafkaLog:
    """One topic a table; see ``LogSystem``."""

    def named(self, given: Mapping[str, str], table: str) -> dict[str, str]:
        """The options of a new table, with the name of its topic."""
        return topics.with_topic(given, table)

    def create(self, log: LogOptions, buckets: int, owner: str, *, may_be_there: bool = False) -> None:
        """Create the topic."""
        topic = LogTopic.of(log, buckets, owner)
        topics.create(topic, log.retention_ms, owner, may_be_there=may_be_there)

    def check_is_free(self, log: LogOptions, buckets: int, owner: str) -> None:
        """Make sure that there is no such topic."""
        topics.check_is_free(LogTopic.of(log, buckets, owner), owner)

    def change(self, old: LogOptions, new: LogOptions, buckets: int, owner: str) -> None:
        """Give the topic another retention; properties of its client that are refused are so before that."""
        topic = LogTopic.of(new, buckets, owner)
        if old.retention_ms != new.retention_ms:
            topics.change_retention(topic, new.retention_ms)

    def drop(self, log: LogOptions, buckets: int, owner: str, *, only_empty: bool = False) -> None:
        """Delete the topic."""
        topic = LogTopic.of(log, buckets, owner, DROP_PATIENCE_S)
        if not only_empty or topics.is_empty(topic):
            topics.drop(topic)

    def publish(self, table: LoggedTable, *, accept_gap: bool) -> int:
        """Send the changes of snapshots that the log lacks."""
        return publisher.publish(table, _topic(table), accept_gap=accept_gap)

    def announce(self, table: LoggedTable, files: Sequence[FileEntry]) -> None:
        """Send rows before they are committed."""
        announce(table, _topic(table), files)

    def ends(self, table: LoggedTable) -> Mapping[str, int]:
        """Where the log ends."""
        log, buckets = table.log, table.definition.options.bucket
        ends = LogTopic.of(log, buckets, table.owner, ENDS_PATIENCE_S).ends()
        return {str(partition): offset for partition, offset in ends.items()}


def _topic(table: LoggedTable) -> LogTopic:
    return LogTopic.of(table.log, table.definition.options.bucket, table.owner, PATIENCE_S)


LOG_SYSTEM: Final[LogSystem] = KafkaLog()
