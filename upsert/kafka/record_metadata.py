"""The metadata that every Kafka record has: FLIP-107's keys, as Flink ships them (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from upsert import types
from upsert.metadata_columns import MetadataKey

HEADERS: Final = pa.map_(pa.string(), pa.binary())
HEADER_LIST: Final = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
TIMESTAMP_TYPES: Final = ("NoTimestampType", "CreateTime", "LogAppendTime")


def record_metadata(*, topic_is_writable: bool, partition_is_writable: bool) -> Mapping[str, MetadataKey]:
    """The keys, in the order in which Flink lists them.

    ``headers`` loses the order of headers and all but the last of equal names; ``header-list`` keeps both.

    Args:
        topic_is_writable: whether rows may name their topic: where several are configured.
        partition_is_writable: whether rows may name their partition: where keys need not stay together.
    """
    keys = (
        MetadataKey("topic", pa.string(), topic_is_writable),
        MetadataKey("partition", pa.int32(), partition_is_writable),
        MetadataKey("headers", HEADERS, is_writable=True),
        MetadataKey("header-list", HEADER_LIST, is_writable=True),
        MetadataKey("leader-epoch", pa.int32()),
        MetadataKey("offset", pa.int64()),
        MetadataKey("timestamp", types.TIMESTAMP, is_writable=True),
        MetadataKey("timestamp-type", pa.string()),
    )
    return {key.key: key for key in keys}
