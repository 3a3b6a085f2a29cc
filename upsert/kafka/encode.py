"""Rows of a table into Kafka records, many at a time (pure).

FLIP-149: the primary key becomes the key of a record, a deletion a record without a value. FLIP-107: METADATA
columns become the timestamp, headers, partition and topic of a record.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upsert.arrays import Mask
from upsert.errors import SchemaError
from upsert.kafka.record_metadata import HEADER_LIST
from upsert.kafka.table import KafkaTable, Part
from upsert.metadata_columns import cast
from upsert.schema import TableSchema
from upsert.store.hashing import one_array

_RECORD_COLUMN: Final = {"header-list": "headers"}
"""Metadata key -> column of a record, where they differ."""


class RecordEncoder:
    """Rows to records, for one task.

    Args:
        table: the table.
        schema: the columns that are written, see ``written_schema``.

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
        """One record for each row, in their order.

        Args:
            rows: conforming rows of the columns that are written.
            is_deleted: which rows become tombstones; None if none does.
            kinds: the kind of each row, for formats of changes.

        Raises:
            SchemaError: a value cannot be written in its format, or as the metadata of a record.
        """
        columns: dict[str, pa.Array] = {}
        if self._key is not None and self._key_encoder is not None:
            columns["key"] = self._key_encoder.encode(_fields(rows, self._key))
        columns["value"] = self._values(rows, is_deleted, kinds)
        for found in self._metadata:
            values = one_array(found.write(rows.column(found.column.name)))
            columns[_RECORD_COLUMN.get(found.key.key, found.key.key)] = self._as_record(found.key.key, values)
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
                return _header_list(values)
            case "header-list":
                return _without_nulls(values)
            case "partition":
                _check_partitions(self._table, values)
        return values


def _fields(rows: pa.Table, part: Part) -> pa.Table:
    """The columns of a part by the names that its format sees."""
    return rows.select(part.columns).rename_columns(part.fields.names)


def _header_list(maps: pa.MapArray) -> pa.ListArray:
    """Maps of headers as lists of them; NULL as no headers."""
    entries = pa.StructArray.from_arrays([maps.keys, maps.items], names=["key", "value"])
    return _lists(maps.offsets.to_numpy(), entries, maps)


def _lists(offsets: npt.NDArray[np.int32], entries: pa.StructArray, like: pa.Array) -> pa.ListArray:
    """Lists of headers, NULL where the rows of ``like`` are."""
    mask = pc.is_null(like) if like.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets), entries, HEADER_LIST, mask=mask)


def _without_nulls(lists: pa.ListArray) -> pa.ListArray:
    """Lists of headers without those that are NULL or have no name."""
    lists = lists.cast(HEADER_LIST)
    entries = lists.values
    is_named = pc.is_valid(pc.struct_field(entries, "key")).to_numpy(zero_copy_only=False)
    if is_named.all():
        return lists
    before = np.concatenate([[0], np.cumsum(is_named)]).astype(np.int32)
    return _lists(before[lists.offsets.to_numpy()], entries.filter(pa.array(is_named)), lists)


def check_topics(table: KafkaTable, rows: pa.Table, column: str) -> None:
    """Refuse rows for topics that the table does not have.

    Raises:
        SchemaError: with the first such topic, or NULL.
    """
    for topic in pc.unique(rows.column(column)).to_pylist():
        if topic is None or not _is_topic_of(table.values, topic):
            allowed = table.values["topic-pattern"] or ";".join(table.topics or ())
            raise SchemaError(
                f"{table.name}: metadata 'topic' must be one of the table's topics {allowed!r}, got {topic!r}"
            )


def _is_topic_of(values: Mapping[str, object], topic: str) -> bool:
    topics, pattern = values["topic"], values["topic-pattern"]
    return topic in topics if isinstance(topics, tuple) else bool(re.fullmatch(str(pattern), topic))


def _check_partitions(table: KafkaTable, partitions: pa.Array) -> None:
    lowest = pc.min(partitions).as_py()
    if lowest is not None and lowest < 0:
        raise SchemaError(f"{table.name}: metadata 'partition' must be 0 or more, or NULL, got {lowest}")
