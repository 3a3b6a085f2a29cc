"""Changes as the records that Debezium writes for a table of PostgreSQL, without the schema (pure).

Written with nothing of what the demo shows: the topics are input from outside, and so is what is compared at
the end. The values are those of Debezium's JSON converter with ``schemas.enable=false``: a DATE is the number
of days since 1970, a TIMESTAMPTZ an ISO text in UTC, and each delete is followed by a tombstone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from examples.flights.replay import Recorded
from upsert.rowkind import RowKind

RECORD: Final = pa.schema([pa.field("key", pa.binary()), pa.field("value", pa.binary())])
"""What is produced: the columns `key` and `value` of `upsert.kafka.client.records.RECORD_SCHEMA`."""

_KINDS: Final = pa.array([RowKind.INSERT.value, RowKind.UPDATE_AFTER.value, RowKind.DELETE.value])
_OPERATIONS: Final = pa.array(["c", "u", "d"])
_NULL: Final = "null"


def records(log: Recorded, table: str, key: Sequence[str]) -> pa.Table:
    """The records of some changes, in their order; two for a delete.

    Args:
        log: the changes, with both images.
        table: what the database calls the table.
        key: the columns of its primary key.
    """
    operation = pc.index_in(log.kinds, value_set=_KINDS)
    is_insert, is_delete = pc.equal(operation, 0), pc.equal(operation, 2)
    envelope = {
        "before": pc.if_else(is_insert, _NULL, objects(log.before)),
        "after": pc.if_else(is_delete, _NULL, objects(log.after)),
        "source": _sources(log, table),
        "op": _quoted(_OPERATIONS.take(operation)),
        "ts_ms": _texts(pa.array(log.at // 1000)),
        "transaction": pa.repeat(_NULL, len(log.kinds)),
    }
    values = _join(envelope)
    deleted = is_delete.to_numpy(zero_copy_only=False)
    copies = 1 + deleted
    is_tombstone = np.zeros(copies.sum(), dtype=bool)
    is_tombstone[(copies.cumsum() - 1)[deleted]] = True
    rows = pa.table([objects(log.after.select(key)), values], names=RECORD.names)
    rows = rows.take(np.repeat(np.arange(len(copies)), copies))
    value = pc.if_else(pa.array(is_tombstone), None, rows["value"])
    return rows.set_column(1, "value", value).cast(RECORD)


def objects(rows: pa.Table) -> pa.Array:
    """Each row as the text of a JSON object.

    >>> objects(pa.table({"flight": [1545, None], "origin": ["EWR", "JFK"]})).to_pylist()
    ['{"flight":1545,"origin":"EWR"}', '{"flight":null,"origin":"JFK"}']
    """
    return _join({name: _texts(rows[name]) for name in rows.column_names})


def _sources(log: Recorded, table: str) -> pa.Array:
    """The block that says where a change comes from."""
    same = {
        "version": "3.1.0.Final",
        "connector": "postgresql",
        "name": "airports",
        "snapshot": "false",
        "db": "airports",
        "schema": "public",
        "table": table,
    }
    texts = {name: pa.repeat(json.dumps(text), len(log.kinds)) for name, text in same.items()}
    return _join(texts | {"ts_ms": _texts(pa.array(log.at // 1000))})


def _join(texts: dict[str, pa.Array]) -> pa.Array:
    """JSON objects of members whose values are JSON already."""
    members: list[Any] = []
    for name, text in texts.items():
        members += [f"{',' if members else '{'}{json.dumps(name)}:", text]
    return pc.binary_join_element_wise(*members, "}", "")


def _quoted(plain: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', plain, '"', "")


def _texts(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """JSON of each value; few of them are distinct, so only those are looked at one by one."""
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_date32(values.type):
        values = values.cast(pa.int32())
    if pa.types.is_integer(values.type):
        return pc.fill_null(values.cast(pa.string()), _NULL)
    if pa.types.is_timestamp(values.type):
        values = pc.strftime(values.cast(pa.timestamp("s", values.type.tz)), "%Y-%m-%dT%H:%M:%SZ")
    distinct = values.dictionary_encode()
    texts = pa.array([json.dumps(value) for value in distinct.dictionary.to_pylist()], pa.string())
    return pc.fill_null(texts.take(distinct.indices), _NULL)
