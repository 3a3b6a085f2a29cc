"""Changes of a table to Kafka records and back, many at a time (pure).

A record is one change: the key holds the primary key, the value the row in a format of changes. What readers
of other systems need not know stands in headers:

- ``deltajoin.table``: the uuid of the table, in every record;
- ``deltajoin.snapshot``: id of the snapshot that the change belongs to, in decimal; changes that were sent
  before their commit (``log.consistency = eventual``) have none;
- ``deltajoin.definition``: the version of the table's definition that the names of the columns are of, so
  that a column that was renamed since is found;
- ``deltajoin.kind``: ``+I``, ``-U``, ``+U`` or ``-D``, which formats tell apart by its sign only.

A transaction ends with a *mark* in every partition: a record without key and value, as a topic of Debezium
has after deletions, whose headers are ``deltajoin.snapshot``, ``deltajoin.since``, the id of the snapshot up
to which the log was complete before, and, if the commit does not show in change streams as a whole,
``deltajoin.untracked``: a JSON list of the names of the partitions that do not show, ``[]`` for all. A reader
of a partition has all changes up to a snapshot when it has seen a mark of it, and has missed none if each
mark's ``since`` is not above the one before.

The key's bucket is the partition of the record, in a partitioned table also.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert.arrays import Mask, Positions
from upsert.errors import ConfigurationError, CorruptTableError
from upsert.formats.base import format_named
from upsert.kafka.client.records import HEADERS
from upsert.rowkind import KIND_FIELD, ROW_KIND_COLUMN, RowKind, every_kind, signs
from upsert.schema import TableSchema
from upsert.store.log_options import UPSERT, LogOptions, key_context, value_context

TABLE_HEADER: Final = "deltajoin.table"
SNAPSHOT_HEADER: Final = "deltajoin.snapshot"
DEFINITION_HEADER: Final = "deltajoin.definition"
KIND_HEADER: Final = "deltajoin.kind"
SINCE_HEADER: Final = "deltajoin.since"
UNTRACKED_HEADER: Final = "deltajoin.untracked"


def headers(known: Mapping[str, str], rows: int, kinds: pa.Array | None = None) -> pa.ListArray:
    """The same headers for all rows, and the kind of each."""
    names = [*known, *([] if kinds is None else [KIND_HEADER])]
    texts = pa.array([text.encode() for text in known.values()], pa.binary())
    chosen = np.tile(np.arange(len(names)), (rows, 1))
    keys = pa.array(names, pa.string()).take(pa.array(chosen.ravel()))
    if kinds is not None:
        texts = pa.concat_arrays([texts, every_kind().cast(pa.binary())])
        chosen[:, -1] = len(known) + pc.index_in(kinds, value_set=every_kind()).to_numpy()
    values = texts.take(pa.array(chosen.ravel()))
    entries = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS.value_type))
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * len(names))
    return pa.ListArray.from_arrays(offsets, entries, HEADERS)


class Headers:
    """The headers of records, by name.

    >>> Headers(headers({"a": "1"}, rows=2)).values("a").to_pylist()
    [b'1', b'1']
    """

    def __init__(self, lists: pa.ListArray) -> None:
        self._rows = len(lists)
        entries = lists.flatten()
        self._names = pc.struct_field(entries, "key")
        self._values = pc.struct_field(entries, "value")
        self._parents = pc.list_parent_indices(lists).to_numpy()

    def values(self, name: str) -> pa.BinaryArray:
        """A header of each record, NULL where it is not there; of several the last one."""
        found = np.flatnonzero(pc.equal(self._names, name).to_numpy(zero_copy_only=False))
        positions = np.full(self._rows, -1, np.int64)
        positions[self._parents[found]] = found
        return self._values.take(pa.array(positions, mask=positions < 0))


BATCH_ROWS: Final = 50_000
"""Changes that are turned into records at once."""


@dataclass(frozen=True)
class Mark:
    """The end of what the log has of some snapshots, in one partition.

    Attributes:
        snapshot: the log is complete up to this one.
        since: up to this one it was complete before.
        untracked: None if it has all changes in between; else the partitions of the table whose changes it
            does not have, () for all of them.
        record: position of its record among those that were decoded.
    """

    snapshot: int
    since: int
    untracked: tuple[str, ...] | None
    record: int


@dataclass(frozen=True)
class LogChanges:
    """What some records of one partition say, in their order.

    Attributes:
        snapshots: the snapshot of each row; 0 for a change that was sent before its commit.
        records: for each row the position of its record, ascending.
    """

    rows: pa.Table
    snapshots: Positions
    records: Positions
    marks: tuple[Mark, ...]


class LogEncoder:
    """Changes of one table to records; in mode "upsert" without those of kind ``-U``."""

    def __init__(self, schema: TableSchema, log: LogOptions, uuid: str, definition: int = 0) -> None:
        value = format_named(log.format, "log.format")
        self._value = value_context(schema, log, value)
        self._value_encoder = value.encoder(self._value)
        self._key, self._key_encoder = None, None
        if schema.primary_key:
            key = format_named(log.key_format, "log.key.format")
            self._key = key_context(schema, log, key)
            self._key_encoder = key.encoder(self._key)
        self._is_upsert = log.changelog_mode == UPSERT
        self._known = {TABLE_HEADER: uuid, DEFINITION_HEADER: str(definition)}

    def records(self, changes: pa.Table, partition: int, snapshot: int | None) -> Iterator[pa.Table]:
        """The records of changes of one bucket, in their order; ``snapshot`` is None before their commit."""
        if self._is_upsert:
            kinds = changes.column(ROW_KIND_COLUMN)
            changes = changes.filter(pc.not_equal(kinds, RowKind.UPDATE_BEFORE.value))
        for start in range(0, changes.num_rows, BATCH_ROWS):
            yield self._encoded(changes.slice(start, BATCH_ROWS), partition, snapshot)

    def _encoded(self, changes: pa.Table, partition: int, snapshot: int | None) -> pa.Table:
        kinds = changes.column(ROW_KIND_COLUMN).combine_chunks()
        rows = changes.num_rows
        known = self._known if snapshot is None else {**self._known, SNAPSHOT_HEADER: str(snapshot)}
        key = pa.nulls(rows, pa.binary())
        if self._key is not None and self._key_encoder is not None:
            key = self._key_encoder.encode(changes.select(self._key.fields.names))
        return pa.table(
            {
                "key": key,
                "value": self._value_encoder.encode(changes.select(self._value.fields.names), kinds),
                "partition": pa.repeat(pa.scalar(partition, pa.int32()), rows),
                "headers": headers(known, rows, kinds),
            }
        )


def marks(uuid: str, partitions: int, snapshot: int, since: int, untracked: Sequence[str] | None) -> pa.Table:
    """The records that end a transaction, one for each partition; see ``Mark``."""
    known = {TABLE_HEADER: uuid, SNAPSHOT_HEADER: str(snapshot), SINCE_HEADER: str(since)}
    if untracked is not None:
        known[UNTRACKED_HEADER] = json.dumps(list(untracked))
    return pa.table(
        {
            "key": pa.nulls(partitions, pa.binary()),
            "value": pa.nulls(partitions, pa.binary()),
            "partition": pa.array(range(partitions), pa.int32()),
            "headers": headers(known, partitions),
        }
    )


class LogDecoder:
    """Records of one table's log to changes, for one task."""

    def __init__(self, schema: TableSchema, log: LogOptions, uuid: str) -> None:
        value = format_named(log.format, "log.format")
        self._decoder = value.decoder(value_context(schema, log, value))
        self._of = f"log {log.topic!r}"
        self._uuid = uuid

    def decode(self, records: pa.Table) -> LogChanges:
        """What records of one partition say, in its order; refuses records of others, and damaged ones."""
        known, is_mark, found = self._marks(records)
        decoded = self._decoder.decode(records.column("value").combine_chunks())
        if decoded.bad:
            raise self._damaged(decoded.bad[0].position, decoded.bad[0].reason)
        rows_of = np.arange(len(is_mark)) if decoded.positions is None else decoded.positions
        self._refuse(~is_mark & ~np.isin(np.arange(len(is_mark)), rows_of), "it has no value")
        rows = decoded.rows.append_column(KIND_FIELD, self._kinds(known, decoded.kinds, rows_of))
        snapshots = self._numbers(known, SNAPSHOT_HEADER)[rows_of]
        return LogChanges(rows, np.maximum(snapshots, 0), rows_of, found)

    def marks(self, records: pa.Table) -> tuple[Mark, ...]:
        """The marks among some records, whose values are not looked at; errors as for ``decode``."""
        return self._marks(records)[-1]

    def _marks(self, records: pa.Table) -> tuple[Headers, Mask, tuple[Mark, ...]]:
        known = Headers(records.column("headers").combine_chunks())
        owners = known.values(TABLE_HEADER)
        is_own = pc.equal(owners, self._uuid.encode()).fill_null(False).to_numpy(zero_copy_only=False)
        if not is_own.all():
            other = owners[int(np.argmin(is_own))].as_py()
            raise ConfigurationError(
                f"{self._of}: all records must be written by the table with the uuid {self._uuid!r}, got one "
                f"of {other!r}; let nothing else write to the topic of a table"
            )
        snapshots = self._numbers(known, SNAPSHOT_HEADER)
        since = self._numbers(known, SINCE_HEADER)
        is_mark = since >= 0
        has_value = records.column("value").is_valid().to_numpy()
        self._refuse(is_mark & (has_value | (snapshots < 0)), "a mark has a snapshot, and no value")
        untracked = known.values(UNTRACKED_HEADER)
        found = tuple(
            Mark(int(snapshots[at]), int(since[at]), self._untracked(untracked[at].as_py(), at), at)
            for at in np.flatnonzero(is_mark).tolist()
        )
        return known, is_mark, found

    def _numbers(self, known: Headers, name: str) -> Positions:
        """The values of a header as numbers; -1 where a record does not have it."""
        texts = known.values(name)
        is_number = pc.match_substring_regex(texts, "^[0-9]{1,18}$").fill_null(True)
        self._refuse(~is_number.to_numpy(zero_copy_only=False), f"its header {name!r} is no number")
        numbers: Positions = texts.cast(pa.string()).cast(pa.int64()).fill_null(-1).to_numpy()
        return numbers

    def _kinds(self, known: Headers, decoded: pa.Array, rows_of: Positions) -> pa.Array:
        """The kind of each row: as its header says, which must not contradict the value."""
        given = known.values(KIND_HEADER).take(pa.array(rows_of))
        codes = pc.index_in(given, value_set=every_kind().cast(pa.binary()))
        is_bad = codes.is_null().to_numpy(zero_copy_only=False)
        kinds = every_kind().take(codes.fill_null(0))
        is_bad |= signs(kinds) != signs(decoded)
        if is_bad.any():
            at = int(np.argmax(is_bad))
            raise self._damaged(
                int(rows_of[at]), f"its header {KIND_HEADER!r} is {given[at].as_py()!r}, unlike its value"
            )
        return kinds

    def _untracked(self, text: bytes | None, at: int) -> tuple[str, ...] | None:
        if text is None:
            return None
        try:
            names = json.loads(text)
        except (ValueError, RecursionError):
            names = None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise self._damaged(at, f"its header {UNTRACKED_HEADER!r} is {text[:60]!r}")
        return tuple(names)

    def _refuse(self, is_bad: Mask, reason: str) -> None:
        if is_bad.any():
            raise self._damaged(int(np.argmax(is_bad)), reason)

    def _damaged(self, record: int, reason: str) -> CorruptTableError:
        return CorruptTableError(
            f"{self._of}: every record must be a change or a mark of the table, got one (number {record} of "
            f"those read together) that is not: {reason}; read the table without its log"
        )
