"""Kafka records as Arrow tables, and their metadata by FLIP-107's keys, as Flink ships them (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.formats.metadata_columns import MetadataKey, cast


class TopicPartition(NamedTuple):
    """One partition of a topic.

    >>> str(TopicPartition("orders", 3))
    'orders-3'
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


HEADERS: Final = pa.list_(
    pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
)
"""All headers of a record in their order; a name may occur twice, a value may be NULL."""

RECORD_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),  # NULL is a tombstone; an empty value is not
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.int64()),  # milliseconds since 1970
        pa.field("timestamp-type", pa.string(), nullable=False),
        pa.field("leader-epoch", pa.int32()),
        pa.field("headers", HEADERS, nullable=False),
    ]
)
"""Every column that a consumed record can have; `read_range` gives the ones that are wanted."""

ALWAYS: Final = frozenset({"key", "value", "offset"})
"""Columns that consumed records have, wanted or not."""

PRODUCED: Final = frozenset({"key", "value", "topic", "partition", "timestamp", "headers"})
"""Columns that records to produce can have; others are refused."""

TIMESTAMP_TYPES: Final = ("NoTimestampType", "CreateTime", "LogAppendTime")
"""Values of ``timestamp-type``, by the number that the protocol has for them."""


def record_schema(wanted: Collection[str] = ()) -> pa.Schema:
    """The columns of consumed records, in the order of `RECORD_SCHEMA`.

    >>> record_schema({"timestamp"}).names
    ['key', 'value', 'offset', 'timestamp']
    """
    return pa.schema([field for field in RECORD_SCHEMA if field.name in ALWAYS or field.name in wanted])


HEADER_MAP: Final = pa.map_(pa.string(), pa.binary())

HEADER_LIST: Final = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)


def record_metadata(*, topic_is_writable: bool, partition_is_writable: bool) -> Mapping[str, MetadataKey]:
    """The keys, in the order in which Flink lists them.

    ``headers`` loses the order of headers and all but the last of equal names; ``header-list`` keeps both.
    Rows may name their topic where several are configured, their partition where keys need not stay together.
    """
    keys = (
        MetadataKey("topic", pa.string(), topic_is_writable),
        MetadataKey("partition", pa.int32(), partition_is_writable),
        MetadataKey("headers", HEADER_MAP, is_writable=True),
        MetadataKey("header-list", HEADER_LIST, is_writable=True),
        MetadataKey("leader-epoch", pa.int32()),
        MetadataKey("offset", pa.int64()),
        MetadataKey("timestamp", types.TIMESTAMP, is_writable=True),
        MetadataKey("timestamp-type", pa.string()),
    )
    return {key.key: key for key in keys}


def record_column(key: str) -> str:
    """The column of raw records that a metadata key is read from and written to."""
    return "headers" if key == "header-list" else key


def record_values(key: str, records: pa.Table) -> pa.Array:
    """The values of a metadata key, one for each raw record, in the key's own type."""
    column = records.column(record_column(key)).combine_chunks()
    match key:
        case "timestamp":
            return cast(column, types.TIMESTAMP, "metadata 'timestamp'")
        case "headers":
            return header_maps(column)
        case "header-list":
            if column.null_count:
                column = pc.fill_null(column, pa.scalar([], column.type))
            return column.cast(HEADER_LIST)
    return column


def header_maps(headers: pa.Array) -> pa.Array:
    """Maps from lists of headers: of equal names the last one counts, no headers are an empty map.

    >>> two = [{"key": "k", "value": b"1"}, {"key": "k", "value": b"2"}]
    >>> header_maps(pa.array([two, None], HEADER_LIST)).to_pylist()
    [[('k', b'2')], []]
    """
    entries = headers.flatten()
    lengths = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    row_of = np.repeat(np.arange(len(headers)), lengths)
    names = entries.field("key").dictionary_encode()
    codes = row_of * max(1, len(names.dictionary)) + names.indices.to_numpy(zero_copy_only=False)
    # np.unique keeps the first of equals, of the reversed ones the last
    _, from_end = np.unique(codes[::-1], return_index=True)
    kept = np.sort(len(codes) - 1 - from_end)
    ends = np.cumsum(np.bincount(row_of[kept], minlength=len(headers)))
    offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
    chosen = entries.take(pa.array(kept))
    return pa.MapArray.from_arrays(offsets, chosen.field("key"), chosen.field("value"))


def header_lists(maps: pa.MapArray) -> pa.ListArray:
    """Maps of headers as lists of them; NULL as no headers."""
    entries = pa.StructArray.from_arrays([maps.keys, maps.items], names=["key", "value"])
    return _header_lists_of(maps.offsets.to_numpy(), entries, maps)


def _header_lists_of(offsets: npt.NDArray[np.int32], entries: pa.StructArray, like: pa.Array) -> pa.ListArray:
    """Lists of headers, NULL where the rows of ``like`` are."""
    mask = pc.is_null(like) if like.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets), entries, HEADER_LIST, mask=mask)


def named_headers(lists: pa.ListArray) -> pa.ListArray:
    """Lists of headers without those that are NULL or have no name."""
    lists = lists.cast(HEADER_LIST)
    entries = lists.values
    is_named = pc.is_valid(pc.struct_field(entries, "key")).to_numpy(zero_copy_only=False)
    if is_named.all():
        return lists
    before = np.concatenate([[0], np.cumsum(is_named)]).astype(np.int32)
    return _header_lists_of(before[lists.offsets.to_numpy()], entries.filter(pa.array(is_named)), lists)


def whole(value: object) -> int:
    """An offset in JSON; ``ValueError`` if it is none."""
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value


def share(
    available: Mapping[TopicPartition, tuple[int, int]], max_rows: int | None
) -> dict[TopicPartition, int]:
    """How far each partition is read in a step of at most ``max_rows``: in proportion to what it has.

    Every partition that has something gets at least one record, so none waits for ever behind a longer one;
    a step may therefore exceed the limit by the number of partitions. Offsets are counted, and where
    transactions or compaction left gaps there are fewer records than that. ``available`` has of each
    partition the first offset that is not yet read, and the end.

    >>> logs = {TopicPartition("words", 0): (0, 900), TopicPartition("words", 1): (0, 100)}
    >>> [share(logs, 100)[partition] for partition in logs]
    [90, 10]
    """
    sizes = {partition: max(0, end - first) for partition, (first, end) in available.items()}
    total = sum(sizes.values())
    if max_rows is None or total <= max_rows:
        return {partition: first + sizes[partition] for partition, (first, _) in available.items()}
    rows = {p: min(size, max(1, size * max_rows // total)) for p, size in sizes.items()}
    # what rounding down left over goes to those that lost most by it
    rounded = [p for p, size in sizes.items() if size * max_rows >= total]
    for partition in sorted(rounded, key=lambda p: (-(sizes[p] * max_rows % total), p)):
        if sum(rows.values()) >= max_rows:
            break
        rows[partition] += rows[partition] < sizes[partition]
    return {partition: first + rows[partition] for partition, (first, _) in available.items()}
