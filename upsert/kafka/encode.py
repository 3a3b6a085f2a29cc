"""The rows of a writing task to records, from its first Arrow batch to its last (pure).

FLIP-149: the primary key becomes the key of a record, a deletion a record without a value. FLIP-107: METADATA
columns become the timestamp, headers, partition and topic of a record, and are NULL where a query leaves them
out; VIRTUAL ones are only read, so a query that has one would lose its values.

Where the rows of a key come in order, each becomes a record, apart from a ``-U`` that its ``+U`` follows:
readers of a topic need none. With ``sink.buffer-flush.*`` only the last row of each key in a window does.
Where they come in no order, the rule is that of every keyed table: equal rows of opposite sign cancel, a
positive row that is left is the new value, only negative ones left delete the key, and two values contradict
each other unless ``sequence.field`` tells which is newer.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert.arrays import Mask, Positions, one_array
from upsert.errors import ChangelogError, ConfigurationError, SchemaError
from upsert.formats.metadata_columns import cast
from upsert.kafka.client.records import header_lists, named_headers, record_column
from upsert.kafka.table import KafkaTable, RecordPart
from upsert.materializer.choice import Sink
from upsert.rowkind import ROW_KIND_COLUMN, RowKind, signs
from upsert.schema import TableSchema
from upsert.store.rows.conform import conform
from upsert.store.rows.fold import fold
from upsert.store.rows.hashing import bucket_of, hash_columns, row_hashes
from upsert.store.rows.keys import KeyOrder, order_by
from upsert.store.rows.layout import Layout
from upsert.store.rows.merge import gather

_MOST_HELD: Final = 100_000
"""So many rows ``-U`` wait for their ``+U`` at most; older ones are taken for deletions."""


class KindedRows(NamedTuple):
    """Conforming rows and the kind of each; None if all are inserts or updates."""

    rows: pa.Table
    kinds: pa.Array | None


class Effects(NamedTuple):
    """Rows to write and which of them are deletions."""

    rows: pa.Table
    is_deleted: Mask

    def at(self, positions: Positions) -> Effects:
        """Those of some rows."""
        return Effects(gather(self.rows, positions), self.is_deleted[positions])


def without_befores(chunks: Iterable[KindedRows], key: tuple[str, ...]) -> Iterator[Effects]:
    """Every row of a task, in order of each key, but no ``-U`` whose key has a row of sign +1 next.

    A ``-U`` at the end of a chunk waits for the next chunk. Without such a row it is a deletion: a filter may
    have taken its ``+U`` away.
    """
    held: pa.Table | None = None
    for chunk in chunks:
        is_deleted = _are(chunk.kinds, chunk.rows.num_rows, RowKind.UPDATE_BEFORE, RowKind.DELETE)
        is_before = _are(chunk.kinds, chunk.rows.num_rows, RowKind.UPDATE_BEFORE)
        if held is None and not is_before.any():
            yield Effects(chunk.rows, is_deleted)
            continue
        rows = chunk.rows
        if held is not None:
            waiting = np.ones(held.num_rows, np.bool_)
            rows = pa.concat_tables([held, rows])
            is_deleted, is_before = np.append(waiting, is_deleted), np.append(waiting, is_before)
        successor = _next_of_key(order_by([rows.column(name) for name in key]))
        is_replaced = is_before & (successor >= 0) & ~is_deleted[successor]
        waits = np.flatnonzero(is_before & (successor < 0))[-_MOST_HELD:]
        held = gather(rows, waits) if len(waits) else None
        is_kept = ~is_replaced
        is_kept[waits] = False
        if is_kept.any():
            yield Effects(rows, is_deleted).at(np.flatnonzero(is_kept))
    if held is not None:
        yield Effects(held, np.ones(held.num_rows, np.bool_))


def _are(kinds: pa.Array | None, count: int, *wanted: RowKind) -> Mask:
    if kinds is None:
        return np.zeros(count, np.bool_)
    found: Mask = pc.is_in(kinds, pa.array([kind.value for kind in wanted])).to_numpy(zero_copy_only=False)
    return found


def _next_of_key(order: KeyOrder) -> Positions:
    """For each row the next row of its key; -1 for the last."""
    found = np.full(len(order.rows), -1, np.int64)
    has_next = np.append(~order.is_first[1:], False)
    found[order.rows[has_next]] = order.rows[np.flatnonzero(has_next) + 1]
    return found


def last_in_windows(
    effects: Iterable[Effects],
    key: tuple[str, ...],
    max_keys: int,
    max_seconds: float,
    now: Callable[[], float],
) -> Iterator[Effects]:
    """Of each key the last row in each window, in the rows' order; the rows of each key come in order.

    A window ends with the row that makes its keys ``max_keys``, with the chunk at whose end it is
    ``max_seconds`` old, and with the task. ``now`` gives the seconds of a clock that never goes back.
    """
    pending: Effects | None = None
    since = now()
    for chunk in effects:
        joined = chunk
        if pending is not None:
            rows = pa.concat_tables([pending.rows, chunk.rows])
            joined = Effects(rows, np.append(pending.is_deleted, chunk.is_deleted))
        order = order_by([joined.rows.column(name) for name in key])
        winners, begin = _windows(order, max_keys)
        if now() - since >= max_seconds:
            winners, begin = np.append(winners, _lasts(order, begin)), joined.rows.num_rows
        if len(winners):
            since = now()
            yield joined.at(winners)
        rest = _lasts(order, begin)
        pending = joined.at(rest) if len(rest) else None
    if pending is not None:
        yield pending


def _windows(order: KeyOrder, max_keys: int) -> tuple[Positions, int]:
    """The last rows of each key of all windows that are full, and where the open one begins."""
    before = np.full(len(order.rows), -1, np.int64)
    has_before = np.flatnonzero(~order.is_first)
    before[order.rows[has_before]] = order.rows[has_before - 1]
    after = _next_of_key(order)
    winners: list[Positions] = [np.empty(0, np.int64)]
    begin = 0
    while (end := _end_of_window(before, begin, max_keys)) is not None:
        is_last = (after[begin:end] < 0) | (after[begin:end] >= end)
        winners.append(begin + np.flatnonzero(is_last))
        begin = end
    return np.concatenate(winners), begin


def _end_of_window(before: Positions, begin: int, max_keys: int) -> int | None:
    """Where the window from ``begin`` has so many keys; None if the rows end earlier."""
    width = 2 * max_keys
    while True:
        keys = np.cumsum(before[begin : begin + width] < begin)
        if len(keys) and keys[-1] >= max_keys:
            return begin + int(np.searchsorted(keys, max_keys)) + 1
        if begin + width >= len(before):
            return None
        width *= 2


def _lasts(order: KeyOrder, begin: int) -> Positions:
    """The last row of each key among those from ``begin`` on, in the rows' order."""
    lasts: Positions = np.sort(order.lasts)
    return lasts[lasts >= begin]


def one_row_per_key(
    chunks: Iterable[KindedRows], layout: Layout, sequence: str | None, of: str
) -> Effects | None:
    """What all rows of a task do to each key, ascending by key; None without rows."""
    found = list(chunks)
    if not found:
        return None
    rows = pa.concat_tables([chunk.rows for chunk in found])
    weights = None
    if any(chunk.kinds is not None for chunk in found):
        ones = [np.ones(c.rows.num_rows, np.int8) if c.kinds is None else signs(c.kinds) for c in found]
        weights = np.concatenate(ones)
    try:
        folded = fold(layout, rows, weights, "none", () if sequence is None else (sequence,))
    except ChangelogError as cause:
        raise ChangelogError(
            f"{of}: {cause}; a stream of changes may keep all rows of each key: 'sink.materialize' = 'force'"
        ) from None
    is_deleted = np.zeros(folded.rows.num_rows, np.bool_) if folded.kinds is None else folded.kinds == 1
    return Effects(folded.rows, is_deleted)


def check_task(rows: pa.Table, key: tuple[str, ...], tasks: int, task: int, of: str) -> None:
    """Refuse rows whose key belongs to another task.

    A key has one task, ``pmod(xxhash64(key), tasks)``; so a replay finds each key where it was before.
    """
    owners = bucket_of(hash_columns([rows.column(name) for name in key]), tasks)
    if (strangers := np.flatnonzero(owners != task)).size:
        row = int(strangers[0])
        found = rows.select(list(key)).slice(row, 1).to_pylist()[0]
        raise ConfigurationError(
            f"{of}: the rows of a key must be in the task of its hash, got key {found!r} in task {task} "
            f"instead of {int(owners[row])} of {tasks}; let write_changes or write_upsert distribute them, "
            "and leave out 'sink.row-order'"
        )


def written_schema(table: KafkaTable, names: Collection[str]) -> TableSchema:
    """What a query with these columns writes: all physical columns, and the METADATA columns that it has.

    The schema has no metadata any more: its columns are checked and cast like others.

    Raises:
        SchemaError: a column is VIRTUAL, holds metadata that cannot be written, or is the missing topic.

    >>> from upsert.schema import Column
    >>> columns = (Column("id", pa.int64()), Column("at", pa.int64(), metadata="timestamp"))
    >>> given = {"topic": "t", "properties.bootstrap.servers": "localhost:9092", "format": "json",
    ...          "key.format": "json"}
    >>> table = KafkaTable.of("upsert-kafka", TableSchema(columns, ("id",)), given)
    >>> written_schema(table, ["id"]).names, written_schema(table, ["at", "id"]).names
    (('id',), ('id', 'at'))
    """
    writable = {found.column.name: found.key.key for found in table.metadata(writing=True)}
    for column in table.schema.metadata:
        if column.virtual and column.name in names:
            raise SchemaError(
                f"{table.name}: column {column.name!r} is VIRTUAL, it can be read but not written; "
                "leave it out of the query"
            )
        if writable.get(column.name) == "topic" and column.name not in names:
            raise SchemaError(
                f"{table.name}: the query lacks column {column.name!r}, which names the topic of each row "
                "where a table has several; add it"
            )
    columns = tuple(
        column.as_data
        for column in table.schema.columns
        if column.metadata is None or (column.name in writable and column.name in names)
    )
    return TableSchema(columns, table.primary_key)


def sink_key(table: KafkaTable) -> tuple[str, ...]:
    """The primary key of an upsert table, and the column that names the topic of a row; () for other tables.

    A row that goes to another topic than before does not replace the older one. Tables of the other connector
    keep every record.
    """
    if not table.is_upsert:
        return ()
    topic = _topic_column(table)
    return table.primary_key if topic is None else (*table.primary_key, topic)


def _topic_column(table: KafkaTable) -> str | None:
    written = table.metadata(writing=True)
    return next((c.column.name for c in written if c.key.key == "topic"), None)


def sink_of(table: KafkaTable) -> Sink:
    """The table as a sink of changes; only an upsert table may keep the rows of its keys."""
    mode, sequence = (table.values.get(key) for key in ("sink.materialize", "sequence.field"))
    return Sink(table.name, sink_key(table), mode or "none", is_ordered=sequence is not None)


class RecordEncoder:
    """Rows to records, for one task.

    >>> given = {"topic": "t", "properties.bootstrap.servers": "localhost:9092", "format": "raw",
    ...          "key.format": "raw", "value.fields-include": "EXCEPT_KEY"}
    >>> schema = TableSchema.of({"k": pa.string(), "v": pa.string()}, primary_key=["k"])
    >>> encoder = RecordEncoder(KafkaTable.of("upsert-kafka", schema, given), schema)
    >>> rows = pa.table({"k": ["a", "b"], "v": ["x", None]})
    >>> encoder.encode(rows, is_deleted=np.array([False, True])).to_pylist()
    [{'key': b'a', 'value': b'x'}, {'key': b'b', 'value': None}]
    """

    def __init__(self, table: KafkaTable, schema: TableSchema) -> None:
        self._table = table
        self._key, self._value = table.key, table.value
        topic = table.only_topic
        self._key_encoder = None if self._key is None else self._key.format.encoder(self._key.context(topic))
        self._value_encoder = self._value.format.encoder(self._value.context(topic))
        self._metadata = [c for c in table.metadata(writing=True) if c.column.name in schema.names]

    def encode(
        self, rows: pa.Table, *, is_deleted: Mask | None = None, kinds: pa.Array | None = None
    ) -> pa.Table:
        """One record for each row, in their order: a tombstone where it is deleted."""
        columns: dict[str, pa.Array] = {}
        if self._key is not None and self._key_encoder is not None:
            columns["key"] = self._key_encoder.encode(_fields(rows, self._key))
        columns["value"] = self._values(rows, is_deleted, kinds)
        for found in self._metadata:
            values = one_array(found.write(rows.column(found.column.name)))
            columns[record_column(found.key.key)] = self._as_record(found.key.key, values)
        return pa.table(columns)

    def _values(self, rows: pa.Table, is_deleted: Mask | None, kinds: pa.Array | None) -> pa.Array:
        if is_deleted is None or not is_deleted.any():
            return self._value_encoder.encode(_fields(rows, self._value), kinds)
        kept = ~is_deleted
        encoded = self._value_encoder.encode(_fields(rows.filter(pa.array(kept)), self._value))
        return encoded.take(pa.array(np.cumsum(kept) - 1, pa.int64(), mask=is_deleted))

    def _as_record(self, key: str, values: pa.Array) -> pa.Array:
        match key:
            case "timestamp":
                return one_array(cast(values, pa.int64(), f"{self._table.name}: metadata 'timestamp'"))
            case "headers":
                return header_lists(values)
            case "header-list":
                return named_headers(values)
            case "partition" if (lowest := pc.min(values).as_py()) is not None and lowest < 0:
                raise SchemaError(
                    f"{self._table.name}: metadata 'partition' must be 0 or more, or NULL, got {lowest}"
                )
        return values


def _fields(rows: pa.Table, part: RecordPart) -> pa.Table:
    return rows.select(part.columns).rename_columns(part.fields.names)


def _check_topics(table: KafkaTable, topics: pa.ChunkedArray) -> None:
    pattern = table.values["topic-pattern"]
    for topic in pc.unique(topics).to_pylist():
        is_known = topic is not None and (
            bool(re.fullmatch(pattern, topic)) if table.topics is None else topic in table.topics
        )
        if not is_known:
            allowed = pattern or ";".join(table.topics or ())
            raise SchemaError(
                f"{table.name}: metadata 'topic' must be one of the table's topics {allowed!r}, got {topic!r}"
            )


_MOST_ROWS: Final = 16_384
_MOST_BYTES: Final = 64 << 20
"""Records are made in pieces of so many rows and bytes: what is made is still in the processor's cache when
it is sent, and in memory twice."""


@dataclass
class Seen:
    """How many rows a task was given, and a checksum that does not depend on their order."""

    rows: int = 0
    checksum: int = field(default=0, repr=False)

    def add(self, chunk: KindedRows) -> None:
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
    """How the rows of one query become records of a table; frozen and picklable."""

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
        """The records of a task, in the order in which they are to be written."""
        chunks = self._chunks(batches, task, seen)
        encoder = RecordEncoder(self.table, self.schema)
        if not self.table.is_upsert:
            for rows, kinds in chunks:
                yield encoder.encode(rows, kinds=kinds)
            return
        for effects in self._effects(chunks):
            rows = effects.rows
            count = max(1, min(_MOST_ROWS, _MOST_BYTES * rows.num_rows // max(1, rows.nbytes)))
            for start in range(0, rows.num_rows, count):
                is_deleted = effects.is_deleted[start : start + count]
                yield encoder.encode(rows.slice(start, count), is_deleted=is_deleted)

    def _chunks(
        self, batches: Iterable[pa.RecordBatch], task: int, seen: Seen | None
    ) -> Iterator[KindedRows]:
        layout, topic = self._layout(), _topic_column(self.table)
        for batch in batches:
            if not batch.num_rows:
                continue
            given = pa.Table.from_batches([batch])
            rows, _ = conform(layout, given, self.table.name)
            if topic is not None:
                _check_topics(self.table, rows.column(topic))
            chunk = KindedRows(rows, self._kinds(given))
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

    def _effects(self, chunks: Iterator[KindedRows]) -> Iterator[Effects]:
        values, key = self.table.values, sink_key(self.table)
        if self.is_unordered:
            folded = one_row_per_key(chunks, self._layout(), values["sequence.field"], self.table.name)
            return iter(() if folded is None else (folded,))
        effects = without_befores(chunks, key)
        max_keys = values["sink.buffer-flush.max-rows"]
        if not max_keys:
            return effects
        seconds = values["sink.buffer-flush.interval"] / 1000
        return last_in_windows(effects, key, max_keys, seconds, time.monotonic)

    def _layout(self) -> Layout:
        key = sink_key(self.table)
        nullable = pa.schema([field.with_nullable(True) for field in self.schema.arrow])
        return Layout(self.schema, 1, key, key, False, nullable, ())
