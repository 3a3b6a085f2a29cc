"""Sending changes before they are committed: ``log.consistency = eventual``.

They are in the log at least once, and before it is known whether they will be committed. Whoever reads them
keeps the newest row of each key, which in the end is the table's: a writer that fails tries again, and where
two have written at once, the publisher sends the changes again in the order of the commits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from upsert.kafka.client.producer import produce
from upsert.log.messages import LogEncoder
from upsert.log.publisher import publish
from upsert.log.topics import LogTopic
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.store.data_file import DataFile
from upsert.store.file_entry import FileEntry
from upsert.store.log_system import LoggedTable


def announce(table: LoggedTable, topic: LogTopic, files: Sequence[FileEntry]) -> None:
    """Send the rows of files that are about to be committed, as upserts and deletions.

    The log gets what it lacks first, so that nothing older comes after them.

    Raises:
        KafkaUnavailableError, DeliveryError: some may have been sent; calling again is right.
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
