"""The rows of a writing task to records, from its first Arrow batch to its last (pure)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from upsert.errors import ChangelogError
from upsert.kafka.encode import RecordEncoder, check_topics
from upsert.kafka.sink_fold import check_task, one_row_per_key
from upsert.kafka.sink_order import Effects, Rows, last_in_windows, without_befores
from upsert.kafka.table import KafkaTable
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.schema import TableSchema
from upsert.store.hashing import one_array
from upsert.store.layout import Layout
from upsert.store.row_hash import row_hashes
from upsert.store.rows import conform

_MOST_ROWS: Final = 16_384
_MOST_BYTES: Final = 64 << 20
"""Records are made in pieces of so many rows and bytes: what is made is still in the processor's cache when
it is sent, and in memory twice."""


@dataclass
class Seen:
    """How many rows a task was given, and a checksum that does not depend on their order."""

    rows: int = 0
    checksum: int = field(default=0, repr=False)

    def add(self, chunk: Rows) -> None:
        """Count some rows."""
        columns = chunk.rows.columns if chunk.kinds is None else [*chunk.rows.columns, chunk.kinds]
        hashes = row_hashes(columns, chunk.rows.num_rows)
        words = np.frombuffer(hashes.buffers()[1], np.uint64)
        self.rows += chunk.rows.num_rows
        self.checksum = (self.checksum + int(words.sum(dtype=np.uint64))) % 2**64

    def __str__(self) -> str:
        return f"{self.rows} rows, checksum {self.checksum:016x}"


@dataclass(frozen=True)
class RecordMaker:
    """How the rows of one query become records of a table; frozen and picklable.

    Attributes:
        table: the table.
        schema: the columns that the query writes, see ``written_schema``.
    """

    table: KafkaTable
    schema: TableSchema

    @property
    def tasks(self) -> int | None:
        """How many tasks share the keys by their hash; None where any task may write any key."""
        found: int | None = self.table.values["sink.parallelism"] if self.is_unordered else None
        return found

    @property
    def is_unordered(self) -> bool:
        """Whether the rows of a key come in no order."""
        return self.table.is_upsert and self.table.values["sink.row-order"] == "none"

    def records(
        self, batches: Iterable[pa.RecordBatch], task: int, seen: Seen | None = None
    ) -> Iterator[pa.Table]:
        """The records of a task, in the order in which they are to be written.

        Args:
            batches: all rows of the task.
            task: its number.
            seen: is told of all rows, if given.

        Raises:
            SchemaError: a value is NULL where it must not be, or cannot be written.
            ChangelogError: a row kind is unknown or not for this table, or two values of a key contradict
                each other.
            ConfigurationError: a key belongs to another task.
        """
        chunks = self._chunks(batches, task, seen)
        encoder = RecordEncoder(self.table, self.schema)
        if not self.table.is_upsert:
            for rows, kinds in chunks:
                yield encoder.encode(rows, kinds=kinds)
            return
        for effects in self._effects(chunks):
            for piece in _pieces(effects):
                yield encoder.encode(piece.rows, is_deleted=piece.is_deleted)

    def _chunks(self, batches: Iterable[pa.RecordBatch], task: int, seen: Seen | None) -> Iterator[Rows]:
        layout = self._layout()
        for batch in batches:
            if not batch.num_rows:
                continue
            given = pa.Table.from_batches([batch])
            rows, _ = conform(layout, given, self.table.name)
            if self._topic is not None:
                check_topics(self.table, rows, self._topic)
            chunk = Rows(rows, self._kinds(given))
            if seen is not None:
                seen.add(chunk)
            if self.tasks is not None:
                check_task(rows, self.table.primary_key, self.tasks, task, self.table.name)
            yield chunk

    def _kinds(self, given: pa.Table) -> pa.Array | None:
        if ROW_KIND_COLUMN not in given.column_names:
            return None
        kinds = one_array(given.column(ROW_KIND_COLUMN))
        if self.table.is_changelog:
            return kinds
        is_change = pa.compute.not_equal(kinds, RowKind.INSERT.value)
        if is_change.true_count:
            raise ChangelogError(
                f"{self.table.name}: the format {self.table.value.format_name!r} of a 'kafka' table has no "
                f"place for changes, it takes only inserts, got {kinds.filter(is_change)[0].as_py()!r}; "
                "write to an 'upsert-kafka' table or in a format of changes"
            )
        return None

    def _effects(self, chunks: Iterator[Rows]) -> Iterator[Effects]:
        values, key = self.table.values, self._key
        if self.is_unordered:
            folded = one_row_per_key(chunks, self._layout(), values["sequence.field"], self.table.name)
            return iter(() if folded is None else (folded,))
        effects = without_befores(chunks, key)
        max_keys = values["sink.buffer-flush.max-rows"]
        if not max_keys:
            return effects
        seconds = values["sink.buffer-flush.interval"] / 1000
        return last_in_windows(effects, key, max_keys, seconds, time.monotonic)

    @property
    def _topic(self) -> str | None:
        """The column that names the topic of each row, if one does."""
        written = self.table.metadata(writing=True)
        return next((c.column.name for c in written if c.key.key == "topic"), None)

    @property
    def _key(self) -> tuple[str, ...]:
        """The columns by which a record replaces another: the primary key, and the topic of the record."""
        return self.table.primary_key if self._topic is None else (*self.table.primary_key, self._topic)

    def _layout(self) -> Layout:
        key = self._key if self.table.is_upsert else ()
        nullable = pa.schema([field.with_nullable(True) for field in self.schema.arrow])
        return Layout(self.schema, 1, key, key, False, nullable, ())


def _pieces(effects: Effects) -> Iterator[Effects]:
    rows = effects.rows
    count = max(1, min(_MOST_ROWS, _MOST_BYTES * rows.num_rows // max(1, rows.nbytes)))
    for start in range(0, rows.num_rows, count):
        flags = None if effects.is_deleted is None else effects.is_deleted[start : start + count]
        yield Effects(rows.slice(start, count), flags)
