"""Raw records to the rows of a table, a chunk at a time (pure).

A record gives as many rows as its key and its value hold, each with each. The value's columns win over the
key's where both hold one. On an upsert topic a record without a value is a tombstone, and so is JSON's
``null``, which Kafka Connect writes where Debezium has unwrapped a deletion: a row of kind ``-D`` that has
the key's columns and metadata only. A record without a key gives no row where the table has key columns. A
record that cannot be read gives no rows but a `BadMessage`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert.arrays import Mask, Positions, is_null, one_array
from upsert.errors import SchemaError
from upsert.formats.base import BadMessage, Decoded, Side
from upsert.formats.metadata_columns import MetadataColumn
from upsert.kafka.client.records import ALWAYS, record_column, record_values
from upsert.kafka.table import KafkaTable, RecordPart
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.schema import Column
from upsert.store.rows.keys import same_keys

Reasons = dict[int, str]
"""Of each record that cannot be read, by number, the first reason."""


@dataclass(frozen=True)
class RowSources:
    """What each row of a chunk is made of: a record, the row of its key, and the row of its value.

    Attributes:
        keys: rows of the keys; None where the table has no key columns.
        record: of each row the number of its record.
        value_row: of each row the row of the value; -1 for a tombstone.
    """

    records: pa.Table
    keys: Decoded | None
    values: Decoded
    record: Positions
    key_row: Positions | None
    value_row: Positions

    @property
    def is_tombstone(self) -> Mask:
        """Whether a row comes from a record without a value."""
        return self.value_row < 0

    def of_record(self, values: pa.Array) -> pa.Array:
        """Of each row the value of its record."""
        return _take(values, self.record)

    def of_key(self, index: int) -> pa.Array:
        """A column of the key's rows."""
        assert self.keys is not None
        assert self.key_row is not None
        return _take(one_array(self.keys.rows.column(index)), self.key_row)

    def of_value(self, column: int | pa.Array | None) -> pa.Array:
        """A column of the value's rows; NULL for tombstones."""
        found = one_array(self.values.rows.column(column)) if isinstance(column, int) else column
        if found is None:
            return pa.repeat(RowKind.INSERT.value, len(self.record))
        return _take(found, self.value_row)


def _positions_of(decoded: Decoded) -> Positions:
    return np.arange(decoded.rows.num_rows) if decoded.positions is None else decoded.positions


def _take(values: pa.Array, rows: Positions) -> pa.Array:
    """The values of these rows, NULL for a negative one."""
    if len(rows) == len(values) and (rows == np.arange(len(rows))).all():
        return values
    is_missing = rows < 0
    return values.take(pa.array(rows, mask=is_missing if is_missing.any() else None))


@dataclass(frozen=True)
class DecodedRecords:
    """The rows of one chunk of records.

    Attributes:
        rows: the table's columns, hidden ones, and ``_row_kind`` where the rows are changes; in log order.
        bad: records that could not be read, by ascending position.
        without_key: how many records gave no row because they have no key.
    """

    rows: pa.Table
    bad: tuple[BadMessage, ...]
    without_key: int


class RecordDecoder:
    """Decodes the records of one topic for one task.

    Of the columns only those that are ``wanted``, all where it is None; what is not read is not looked at,
    so a record of which another column's value is none of its type is not bad then. Keys are read whole.

    >>> from upsert.schema import TableSchema
    >>> schema = TableSchema.of({"k": pa.string(), "v": pa.string()}, primary_key=["k"])
    >>> given = {"topic": "t", "properties.bootstrap.servers": "localhost:9092", "key.format": "raw"}
    >>> given |= {"format": "raw", "value.fields-include": "EXCEPT_KEY"}
    >>> decoder = RecordDecoder(KafkaTable.of("upsert-kafka", schema, given), "t")
    >>> records = pa.table({"key": [b"a", b"b"], "value": [b"x", None], "offset": [0, 1]})
    >>> decoder.decode(records).rows.to_pylist()
    [{'k': 'a', 'v': 'x', '_row_kind': '+U'}, {'k': 'b', 'v': None, '_row_kind': '-D'}]
    """

    def __init__(
        self,
        table: KafkaTable,
        topic: str,
        hidden: Sequence[MetadataColumn] = (),
        wanted: Collection[str] | None = None,
    ) -> None:
        self._table = table
        if wanted is None or table.values["fields.verify-integrity"]:
            wanted = table.schema.names
        found = {one.column.name: one for one in table.metadata(writing=False) if one.column.name in wanted}
        self._metadata = found | {column.column.name: column for column in hidden}
        own = (column for column in table.schema.columns if column.name in wanted)
        self._columns = (*own, *(column.column for column in hidden))
        before = table.needs_before
        self._key = None if table.key is None else _Side(table.key, topic, self._metadata, before)
        self._value = _Side(table.value.reading(wanted), topic, self._metadata, before)

    @property
    def wanted(self) -> frozenset[str]:
        """The columns of raw records that it needs."""
        own = {column.key.key for column in self._metadata.values()} - {
            key for side in (self._key, self._value) if side is not None for key in side.metadata
        }
        return ALWAYS | {record_column(key) for key in own}

    def decode(self, records: pa.Table) -> DecodedRecords:
        """The rows of some records of the topic."""
        records = self._with_tombstones(records)
        values = self._value.decode(one_array(records.column("value")))
        keys = None if self._key is None else self._key.decode(one_array(records.column("key")))
        bad: Reasons = {}
        for side, decoded in ((Side.KEY, keys), (Side.VALUE, values)):
            for message in () if decoded is None else decoded.bad:
                bad.setdefault(message.position, f"{side}: {message.reason}")
        parts = self._parts(records, keys, values, bad)
        columns = [self._column(column, parts, bad) for column in self._columns]
        self._check(parts, columns, bad)
        names = [column.name for column in self._columns]
        if self._table.is_changelog:
            columns.append(self._kinds(parts))
            names.append(ROW_KIND_COLUMN)
        rows = pa.Table.from_arrays(columns, names=names)
        if bad and (is_bad := np.isin(parts.record, list(bad))).any():
            rows = rows.filter(pa.array(~is_bad))
        found = tuple(BadMessage(position, reason) for position, reason in sorted(bad.items()))
        return DecodedRecords(rows, found, self._without_key(records, bad))

    def _with_tombstones(self, records: pa.Table) -> pa.Table:
        nothing = self._table.value.format.nothing
        if not self._table.is_upsert or nothing is None:
            return records
        values = one_array(records.column("value"))
        values = pc.if_else(pc.equal(values, nothing), pa.scalar(None, pa.binary()), values)
        return records.set_column(records.column_names.index("value"), "value", values)

    def _parts(self, records: pa.Table, keys: Decoded | None, values: Decoded, bad: Reasons) -> RowSources:
        """Which record, which row of its key and which of its value make each row."""
        record = _positions_of(values)
        value_row = np.arange(len(record))
        if self._table.is_upsert and records.column("value").null_count:
            # a row for each record without a value, too, in log order
            tombstones = np.flatnonzero(is_null(one_array(records.column("value"))))
            record = np.concatenate([record, tombstones])
            order = np.argsort(record, kind="stable")
            record = record[order]
            value_row = np.concatenate([value_row, np.full(len(tombstones), -1)])[order]
        if bad:
            is_good = ~np.isin(record, list(bad))
            record, value_row = record[is_good], value_row[is_good]
        if keys is None:
            return RowSources(records, None, values, record, None, value_row)
        positions = _positions_of(keys)
        first = np.searchsorted(positions, record, side="left")
        count = np.searchsorted(positions, record, side="right") - first
        if (count != 1).any():
            which = np.repeat(np.arange(len(record)), count)
            within = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
            record, value_row, first = record[which], value_row[which], first[which] + within
        return RowSources(records, keys, values, record, first, value_row)

    def _column(self, column: Column, parts: RowSources, bad: Reasons) -> pa.Array:
        metadata = self._metadata.get(column.name)
        in_key = None if self._key is None else self._key.index_of(column, metadata)
        in_value = self._value.index_of(column, metadata)
        if in_key is None and in_value is None and metadata is not None:
            key, records = metadata.key.key, parts.records
            values = lambda start, count: record_values(key, records.slice(start, count))  # noqa: E731
            return parts.of_record(_fitting(metadata, values, np.arange(records.num_rows), bad))
        if in_value is None:
            assert in_key is not None, "every column is in the key, in the value, or metadata"
            found = parts.of_key(in_key)
        else:
            found = parts.of_value(in_value)
            if in_key is not None and parts.is_tombstone.any():
                found = pc.if_else(pa.array(parts.is_tombstone), parts.of_key(in_key), found)
        return found if metadata is None else _fitting(metadata, found.slice, parts.record, bad)

    def _check(self, parts: RowSources, columns: Sequence[pa.Array], bad: Reasons) -> None:
        """Find records whose rows break a promise of the schema, or of ``fields.verify-integrity``."""
        key_columns = () if self._table.key is None else self._table.key.columns
        for column, values in zip(self._columns, columns, strict=True):
            if not column.nullable and values.null_count:
                broken = is_null(values)
                if column.name not in key_columns:
                    broken &= ~parts.is_tombstone
                reason = f"column {column.name!r} is NOT NULL, and the record has no value for it"
                for position in parts.record[broken].tolist():
                    bad.setdefault(position, reason)
        if not self._table.values["fields.verify-integrity"]:
            return
        for in_value, name in enumerate(self._table.value.columns):
            if name not in key_columns:
                continue
            one, other = parts.of_key(key_columns.index(name)), parts.of_value(in_value)
            for row in np.flatnonzero(~same_keys(one, other) & ~parts.is_tombstone).tolist():
                reason = (
                    f"column {name!r} must be the same in key and value, got {one[row].as_py()!r} and "
                    f"{other[row].as_py()!r}"
                )
                bad.setdefault(int(parts.record[row]), reason)

    def _kinds(self, parts: RowSources) -> pa.Array:
        if not self._table.is_upsert:
            return parts.of_value(parts.values.kinds)
        if not parts.is_tombstone.any():
            return pa.repeat(RowKind.UPDATE_AFTER.value, len(parts.record))
        return pc.if_else(pa.array(parts.is_tombstone), RowKind.DELETE.value, RowKind.UPDATE_AFTER.value)

    def _without_key(self, records: pa.Table, bad: Reasons) -> int:
        if self._key is None or not (keys := records.column("key")).null_count:
            return 0
        return int(keys.null_count) - sum(not keys[position].is_valid for position in bad)


class _Side:
    """The decoder of a key or a value, and where it puts columns and metadata."""

    def __init__(
        self, part: RecordPart, topic: str, metadata: dict[str, MetadataColumn], needs_before: bool
    ) -> None:
        prefix = f"{part.side}."
        offered = {key.key for key in part.format.metadata}
        asked = {column.key.key for column in metadata.values()}
        self.metadata = {prefix + key for key in sorted(offered) if prefix + key in asked}
        ordered = tuple(sorted(key.removeprefix(prefix) for key in self.metadata))
        context = part.context(topic, ordered, needs_before=needs_before)
        self.decode: Callable[[pa.Array], Decoded] = part.format.decoder(context).decode
        self._indexes = {name: index for index, name in enumerate(part.columns)}
        self._metadata_indexes = {
            prefix + key: len(part.columns) + index for index, key in enumerate(ordered)
        }

    def index_of(self, column: Column, metadata: MetadataColumn | None) -> int | None:
        """Where the decoded rows have this column; None where they do not."""
        if metadata is not None:
            return self._metadata_indexes.get(metadata.key.key)
        return self._indexes.get(column.name)


def _fitting(
    metadata: MetadataColumn, values: Callable[[int, int], pa.Array], record: Positions, bad: Reasons
) -> pa.Array:
    """Metadata in the type of its column; records whose value does not fit are bad.

    ``values`` gives those of so many rows from one on, ``record`` has the record of each row.
    """
    try:
        return metadata.read(values(0, len(record)))
    except SchemaError:
        pass  # find out which
    found = []
    for row, position in enumerate(record.tolist()):
        try:
            found.append(metadata.read(values(row, 1)))
        except SchemaError as cause:
            bad.setdefault(position, str(cause))
            found.append(pa.nulls(1, metadata.column.type))
    return pa.concat_arrays(found)
