"""What a plain consumer of an upsert topic sees: the newest value of each key, and what came before it.

The records are read committed, byte for byte; DuckDB makes rows of them, nothing of what wrote them does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import duckdb
import pyarrow as pa

from examples.flights.compare import connect, sql_type
from upsert.kafka.client.admin import existing_topic, latest_offsets
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.consumer import read_range
from upsert.kafka.client.records import TopicPartition

RECORDS: Final = pa.schema(
    [("partition", pa.int32()), ("offset", pa.int64()), ("key", pa.binary()), ("value", pa.binary())]
)


@dataclass(frozen=True)
class Consumed:
    """A topic from its beginning to its end.

    Attributes:
        records: all that a reader of committed records gets.
        tombstones: those of them without a value.
        keys: how many keys occur.
        repeats: records that say of their key what the one before said; exactly-once leaves none.
        strays: keys whose records are in more than one partition, where their order is lost.
        rows: the newest value of each key that has one, in the columns asked for.
    """

    records: int
    tombstones: int
    keys: int
    repeats: int
    strays: int
    rows: pa.Table


def consume(connection: Connection, topic: str) -> pa.Table:
    """All committed records of a topic, as `RECORDS`."""
    places = [TopicPartition(topic, n) for n in range(existing_topic(connection, topic).partitions)]
    ends = latest_offsets(connection, places)
    chunks = (
        chunk.select(RECORDS.names).cast(RECORDS)
        for place in places
        for chunk in read_range(connection, place, 0, ends[place], wanted={"partition"})
    )
    return pa.concat_tables([RECORDS.empty_table(), *chunks])


def look_at(records: pa.Table, schema: pa.Schema) -> Consumed:
    """What the records of an upsert topic say, whose values are JSON objects with these columns."""
    with connect() as connection:
        connection.register("consumed", records)
        connection.execute(
            "CREATE TABLE records AS SELECT *,"
            " lag(value) OVER of_key AS earlier, row_number() OVER of_key AS number"
            ' FROM consumed WINDOW of_key AS (PARTITION BY key ORDER BY partition, "offset")'
        )
        counted = connection.sql(
            "SELECT count(*), count(*) - count(value), count(DISTINCT key),"
            " count(*) FILTER (number > 1 AND value IS NOT DISTINCT FROM earlier),"
            " (SELECT count(*) FROM (SELECT key FROM records GROUP BY key"
            " HAVING count(DISTINCT partition) > 1)) FROM records"
        )
        ((count, tombstones, keys, repeats, strays),) = counted.fetchall()
        return Consumed(count, tombstones, keys, repeats, strays, _newest(connection, schema))


def _newest(connection: duckdb.DuckDBPyConnection, schema: pa.Schema) -> pa.Table:
    columns = ", ".join(
        f"CAST(json ->> '$.{field.name}' AS {sql_type(field.type)}) AS {field.name}" for field in schema
    )
    return connection.sql(
        f"SELECT {columns} FROM (SELECT decode(value)::JSON AS json FROM (SELECT value FROM records"
        " QUALIFY number = max(number) OVER (PARTITION BY key)) WHERE value IS NOT NULL)"
    ).to_arrow_table()
