"""Which columns a query must have to be written into a Kafka table (pure).

FLIP-107: METADATA columns are part of what is written and NULL where a query leaves them out; VIRTUAL ones
are only read, so a query that has one would lose its values.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from upsert.errors import SchemaError
from upsert.kafka.table import KafkaTable
from upsert.materializer.choice import Sink
from upsert.schema import Column, TableSchema


def written_schema(table: KafkaTable, names: Collection[str]) -> TableSchema:
    """What a query with these columns writes: all physical columns, and the METADATA columns that it has.

    The schema has no metadata any more: to whoever checks and casts rows they are columns like others.

    Args:
        table: the table.
        names: the query's columns; unknown and missing physical ones are for the check of types to refuse.

    Raises:
        SchemaError: a column is VIRTUAL, holds metadata that cannot be written, or is the missing topic.

    >>> import pyarrow as pa
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
        _plain(column)
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
    written = table.metadata(writing=True)
    return (*table.primary_key, *(c.column.name for c in written if c.key.key == "topic"))


def sink_of(table: KafkaTable) -> Sink:
    """The table as a sink of changes; only an upsert table may keep the rows of its keys."""
    return Sink(table.name, sink_key(table), table.values.get("sink.materialize", "none"))


def _plain(column: Column) -> Column:
    return replace(column, metadata=None, virtual=False)
