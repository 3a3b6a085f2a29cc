"""Kafka records as Arrow tables, before any format has looked at them (pure)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

import pyarrow as pa


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
