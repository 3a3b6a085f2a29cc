"""Queries that run while their table is altered, and streams into tables that combine the rows of a key."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from upsert.managed.frames import read, read_changes, write_changes
from upsert.schema import Column, TableSchema
from upsert.store import Table
from upsert.store.alterations import AddColumn, DropColumn, RenameColumn, WidenColumn

pytestmark = pytest.mark.spark

SCHEMA = TableSchema.of({"id": pa.int64(), "n": pa.int32(), "name": pa.string()}, primary_key=["id"])

Started = Callable[[DataStreamWriter], StreamingQuery]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    """Starts queries, each on a checkpoint of its own, and stops them at the end."""
    queries: list[StreamingQuery] = []

    def start(writer: DataStreamWriter) -> StreamingQuery:
        queries.append(writer.option("checkpointLocation", str(tmp_path / f"c{len(queries)}")).start())
        return queries[-1]

    yield start
    for query in queries:
        query.stop()


def rows(table: Table, *values: tuple[Any, ...]) -> pa.Table:
    columns = {
        c.name: pa.array([row[n] for row in values], c.type) for n, c in enumerate(table.schema.columns)
    }
    return pa.table(columns)


def sorted_rows(table: Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.snapshot().scan().to_pylist())


@pytest.mark.long
def test_a_running_copy_goes_on_with_its_own_columns_until_one_is_dropped(
    spark: SparkSession, tmp_path: Path, started: Started
) -> None:
    source = Table.create(tmp_path / "source", SCHEMA, {"bucket": "2"})
    copy = Table.create(tmp_path / "copy", SCHEMA)
    source.write(rows(source, (1, 10, "ann"), (2, 20, "bob")))
    query = started(write_changes(read_changes(spark, source.path), copy.path))
    query.processAllAvailable()
    source.alter(
        RenameColumn("name", "title"),
        WidenColumn("n", pa.int64()),
        AddColumn(Column("city", pa.string()), "id"),
    )
    copy.alter(AddColumn(Column("note", pa.string())))
    source.write(rows(source, (1, "york", 11, "anna"), (3, None, 30, "cem")))
    query.processAllAvailable()
    assert sorted_rows(copy) == [(1, 11, "anna", None), (2, 20, "bob", None), (3, 30, "cem", None)]
    source.write(rows(source, (4, None, 2**40, "dan")))
    with pytest.raises(StreamingQueryException, match="column 'n' was INT when the query began"):
        query.processAllAvailable()

    titles = read_changes(spark, source.path).selectExpr("id", "title name", "_row_kind")
    query = started(write_changes(titles, _other(tmp_path)))
    query.processAllAvailable()
    source.alter(DropColumn("title"), AddColumn(Column("title", pa.string())))
    source.write(rows(source, (5, None, 1, "eve")))
    with pytest.raises(StreamingQueryException, match="column 'title', which the query began with"):
        query.processAllAvailable()

    assert read(spark, source.path).columns == ["id", "city", "n", "title"]
    assert {row.title for row in read(spark, source.path).collect()} == {None, "eve"}


def _other(tmp_path: Path) -> str:
    columns = {"id": pa.int64(), "name": pa.string()}
    return Table.create(tmp_path / "other", TableSchema.of(columns, primary_key=["id"])).path


def test_a_stream_into_sums_is_added_once_and_out_of_them_has_every_image(
    spark: SparkSession, tmp_path: Path, started: Started
) -> None:
    orders = Table.create(tmp_path / "orders", SCHEMA, {"bucket": "2"})
    schema = TableSchema.of({"name": pa.string(), "total": pa.int64(), "orders": pa.int64()}, ["name"])
    options = {
        "merge-engine": "aggregation",
        "fields.total.aggregate-function": "sum",
        "fields.orders.aggregate-function": "count",
    }
    totals = Table.create(tmp_path / "totals", schema, options | {"bucket": "2"})
    copy = Table.create(tmp_path / "copy", schema)
    amounts = read_changes(spark, orders.path).selectExpr("name", "bigint(n) total", "id orders", "_row_kind")
    into = started(write_changes(amounts, totals.path))
    out = started(write_changes(read_changes(spark, totals.path), copy.path))
    orders.write(rows(orders, *((n, n, f"c{n % 3}") for n in range(9))))
    into.processAllAvailable()
    orders.write(rows(orders, (0, 100, "c1"), (3, 50, "c0")))
    orders.delete([("id", "=", 8)])
    for query in (into, out):
        query.processAllAvailable()
    expected = [("c0", 56, 2), ("c1", 112, 4), ("c2", 7, 2)]
    assert sorted_rows(totals) == expected
    assert sorted_rows(copy) == expected


def test_partial_updates_of_two_streams_meet_in_one_row(
    spark: SparkSession, tmp_path: Path, started: Started
) -> None:
    left = Table.create(tmp_path / "left", SCHEMA)
    schema = TableSchema.of({"id": pa.int64(), "n": pa.int32(), "name": pa.string()}, primary_key=["id"])
    wide = Table.create(
        tmp_path / "wide", schema, {"merge-engine": "partial-update", "ignore-delete": "true", "bucket": "2"}
    )
    changes = read_changes(spark, left.path)
    halves = changes.selectExpr("id", "n", "string(null) name", "_row_kind").unionByName(
        changes.selectExpr("id", "int(null) n", "name", "_row_kind")
    )
    query = started(write_changes(halves, wide.path))
    left.write(rows(left, (1, 1, "a"), (2, 2, None)))
    query.processAllAvailable()
    left.write(rows(left, (1, None, "b"), (2, 3, "c")))
    query.processAllAvailable()
    assert sorted_rows(wide) == [(1, 1, "b"), (2, 3, "c")]
