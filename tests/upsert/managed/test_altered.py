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

from upsert.managed.frames import read, read_changes, write, write_changes
from upsert.schema import Column, TableSchema
from upsert.store import Table
from upsert.store.alterations import AddColumn, DropColumn, RenameColumn, SetOptions, WidenColumn

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


@pytest.mark.parametrize("partitions", ["2", pytest.param("9", marks=pytest.mark.long)])
def test_streams_go_on_when_their_tables_get_other_buckets(
    spark: SparkSession,
    tmp_path: Path,
    started: Started,
    partitions: str,
    request: pytest.FixtureRequest,
) -> None:
    """By the driver and by tasks, which have whole buckets if there are many of them or of partitions."""
    request.addfinalizer(lambda: spark.conf.set("spark.sql.shuffle.partitions", "2"))
    spark.conf.set("spark.sql.shuffle.partitions", partitions)
    source = Table.create(tmp_path / "source", SCHEMA, {"bucket": "2"})
    copy = Table.create(tmp_path / "copy", SCHEMA, {"bucket": "3"})
    upper = Table.create(tmp_path / "upper", SCHEMA, {"bucket": "2"})
    source.write(rows(source, *((n, n, f"c{n}") for n in range(100))))
    changes = read_changes(spark, source.path)
    queries = [
        started(write_changes(changes, copy.path)),
        started(write_changes(changes.selectExpr("id", "n", "upper(name) name", "_row_kind"), upper.path)),
    ]
    for query in queries:
        query.processAllAvailable()
    for turn, count in enumerate(["7", "1", "20"]):
        for table in (source, copy, upper):
            table.alter(SetOptions({"bucket": count}))
        many = range(turn * 30, 30_000 if turn == 2 else turn * 30 + 50)
        source.write(rows(source, *((n, turn, f"t{n}") for n in many)))
        source.delete([("id", "=", turn)])
        for query in queries:
            query.processAllAvailable()
        assert sorted_rows(copy) == sorted_rows(source)
        assert sorted_rows(upper) == [(id, n, name.upper()) for id, n, name in sorted_rows(source)]


def test_a_stream_whose_tasks_have_the_old_buckets_ends_and_goes_on_from_its_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    files, copy = tmp_path / "files", Table.create(tmp_path / "copy", SCHEMA, {"bucket": "5"})

    def put(first: int) -> None:
        ids = f"SELECT id, int(id) n, string(id) name FROM range({first}, {first + 50})"
        spark.sql(ids).write.mode("append").parquet(str(files))

    def query() -> StreamingQuery:
        given = spark.readStream.schema("id BIGINT, n INT, name STRING").parquet(str(files))
        return write_changes(given, copy.path).option("checkpointLocation", str(tmp_path / "c")).start()

    put(0)
    running = query()
    running.processAllAvailable()
    copy.alter(SetOptions({"bucket": "8"}))
    put(100)
    with pytest.raises(StreamingQueryException, match="into the 8 buckets that it has now, they came in 5"):
        running.processAllAvailable()
    again = query()
    again.processAllAvailable()
    again.stop()
    assert [row[0] for row in sorted_rows(copy)] == [*range(50), *range(100, 150)]
    assert not [one for one in copy.check(deep=True) if not one.is_information]


def test_a_stream_that_keeps_the_rows_of_each_key_goes_on_when_its_sink_gets_other_buckets(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Running, and started again: the table in which it keeps rows has the old number of buckets."""
    source = Table.create(tmp_path / "source", SCHEMA, {"bucket": "2"})
    sink = Table.create(tmp_path / "sink", TableSchema.of({"n": pa.int32(), "name": pa.string()}, ["n"]))
    sink.alter(SetOptions({"bucket": "3"}))

    def query() -> StreamingQuery:
        given = read_changes(spark, source.path).select("n", "name", "_row_kind")
        writer = write_changes(given, sink.path, {"sink.materialize": "force"})
        return writer.option("checkpointLocation", str(tmp_path / "c")).start()

    running = query()
    source.write(rows(source, *((id, id % 10, f"c{id}") for id in range(40))))
    running.processAllAvailable()
    for turn, count in enumerate(["5", "2"]):
        sink.alter(SetOptions({"bucket": count}))
        source.write(rows(source, (50 + turn, 7, f"last{turn}"), (8, 20 + turn, "moved")))
        running.processAllAvailable()
        assert (7, f"last{turn}") in sorted_rows(sink)
        running.stop()
        running = query()
        source.delete([("id", "=", 50 + turn)])
        running.processAllAvailable()
        there = {row[1:] for row in sorted_rows(source)}
        assert {n for n, _ in sorted_rows(sink)} == {n for n, _ in there}
        assert there.issuperset(sorted_rows(sink))
    running.stop()
    assert not [one for one in sink.check(deep=True) if not one.is_information]


@pytest.mark.parametrize("schema", [SCHEMA, TableSchema.of({"id": pa.int64()})], ids=["keyed", "counted"])
def test_a_batch_is_written_whole_when_its_table_gets_other_buckets_meanwhile(
    spark: SparkSession, tmp_path: Path, schema: TableSchema
) -> None:
    table = Table.create(tmp_path / "t", schema, {"bucket": "5"})
    path, names = table.path, table.schema.names

    def altered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        Table.open(path).alter(SetOptions({"bucket": "8"}))
        yield from batches

    given = spark.range(300).selectExpr("id", "int(id) n", "string(id) name").select(*names)
    write(given.mapInArrow(altered, given.schema), path)
    assert [row[0] for row in sorted_rows(table)] == [*range(300)]
    assert table.options.bucket == 8
    assert not [one for one in table.check(deep=True) if not one.is_information]
