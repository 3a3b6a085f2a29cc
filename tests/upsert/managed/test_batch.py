"""Batch reads and writes through Spark: every type, any session time zone, and clear refusals."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit

from tests.helpers import multiset
from upsert.errors import CommitConflictError
from upsert.managed.frames import read, write
from upsert.registration import register
from upsert.schema import TableSchema
from upsert.store.table import Table

pytestmark = pytest.mark.spark

AT = datetime(2020, 7, 1, 12, 30, 0, 5, tzinfo=UTC)
TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "b": (pa.bool_(), [True, None]),
    "i8": (pa.int8(), [-128, None]),
    "i16": (pa.int16(), [300, None]),
    "i32": (pa.int32(), [-(2**31), None]),
    "f32": (pa.float32(), [0.5, None]),
    "f64": (pa.float64(), [float("inf"), None]),
    "s": (pa.string(), ["grüße", None]),
    "bin": (pa.binary(), [b"\x00\xff", None]),
    "d": (pa.date32(), [date(1999, 12, 31), None]),
    "ts": (pa.timestamp("us", "UTC"), [AT, None]),
    "ntz": (pa.timestamp("us"), [AT.replace(tzinfo=None), None]),
    "dec": (pa.decimal128(10, 2), [Decimal("-1.50"), None]),
    "wide": (pa.decimal128(38, 10), [Decimal("1234567890123456789012345678.0123456789"), None]),
    "array": (pa.list_(pa.timestamp("us", "UTC")), [[AT, None], None]),
    "map": (pa.map_(pa.string(), pa.decimal128(20, 3)), [[("a", Decimal("1.500")), ("b", None)], None]),
    "struct": (
        pa.struct([pa.field("x", pa.int32(), nullable=False), pa.field("y", pa.list_(pa.timestamp("us")))]),
        [{"x": 1, "y": [AT.replace(tzinfo=None)]}, None],
    ),
}
EVERY_TYPE = TableSchema.of({"id": pa.int64(), **{n: t for n, (t, _) in TYPES.items()}}, primary_key=["id"])
SMALL = TableSchema.of({"id": pa.int64(), "v": pa.string()}, primary_key=["id"])


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, in another time zone: instants must not move."""
    register(spark)
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "t", SMALL, {"bucket": "2"})


def load(session: SparkSession, path: str, **options: str) -> DataFrame:
    return session.read.format("upsert-table").options(**options).load(path)


def frame(session: SparkSession, *rows: tuple[Any, ...], schema: str = "id BIGINT, v STRING") -> DataFrame:
    return session.createDataFrame(list(rows), schema)


def test_a_session_that_was_told_of_nothing_finds_the_format(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    """For reads and writes, in batches and streams; to tell it afterwards is no error."""
    other = spark.newSession()
    frame(other, (1, "a"), (2, "b")).write.format("upsert-table").mode("append").save(table.path)
    assert load(other, table.path, **{"row-kind": "false"}).count() == 2
    copy = Table.create(tmp_path / "copy", SMALL)
    changes = other.readStream.format("upsert-table").load(table.path)
    writer = changes.writeStream.format("upsert-table").option("checkpointLocation", str(tmp_path / "c"))
    writer.trigger(availableNow=True).start(copy.path).awaitTermination()
    assert multiset(copy.snapshot().scan()) == multiset(table.snapshot().scan())
    register(other)
    assert load(other, table.path).count() == 2


@pytest.mark.parametrize("file_format", ["arrow", "parquet"])
def test_every_type_survives_both_ways(session: SparkSession, tmp_path: Path, file_format: str) -> None:
    table = Table.create(tmp_path / "t", EVERY_TYPE)
    columns = {name: pa.array(values, type_) for name, (type_, values) in TYPES.items()}
    table.write(pa.table({"id": pa.array([1, 2], pa.int64()), **columns}))
    found = read(session, table.path)
    copy = Table.create(tmp_path / "copy", EVERY_TYPE, {"file.format": file_format})
    found.write.format("upsert-table").mode("append").save(copy.path)
    assert copy.snapshot().scan().to_pylist() == table.snapshot().scan().to_pylist()
    texts = found.selectExpr(
        "CAST(ts AS STRING)", "CAST(ntz AS STRING)", "CAST(array[0] AS STRING)", "map['a']"
    )
    assert tuple(texts.where("ts IS NOT NULL").first() or ()) == (
        "2020-07-01 08:30:00.000005",
        "2020-07-01 12:30:00.000005",
        "2020-07-01 08:30:00.000005",
        Decimal("1.500"),
    )


def test_rows_have_their_kind_unless_told_otherwise(session: SparkSession, table: Table) -> None:
    table.write(pa.table({"id": [1, 2], "v": ["a", None]}))
    found = load(session, table.path)
    assert [field.simpleString() for field in found.schema] == ["id:bigint", "v:string", "_row_kind:string"]
    assert sorted(found.collect()) == [(1, "a", "+I"), (2, None, "+I")]
    assert sorted(load(session, table.path, **{"row-kind": "false"}).collect()) == [(1, "a"), (2, None)]


def test_schema_of_the_reader_prunes_columns(session: SparkSession, table: Table) -> None:
    table.write(pa.table({"id": [1], "v": ["a"]}))
    reader = session.read.format("upsert-table")
    assert reader.schema("_row_kind STRING, v STRING").load(table.path).collect() == [("+I", "a")]
    with pytest.raises(Exception, match="unknown column 'w'"):
        reader.schema("w STRING").load(table.path).collect()


def test_a_frame_that_is_used_twice_has_its_own_rows_each_time_where_filters_are_pushed(
    session: SparkSession, table: Table
) -> None:
    """Spark 4.3 keeps the plan that was made last with the frame: a reader that takes filters loses rows."""
    table.write(pa.table({"id": [1, 2, 3], "v": ["a", "b", None]}))
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        rows = read(session, table.path)
        assert rows.where("id = 1").collect() == [(1, "a")]
        both = rows.where("id = 1").union(rows.where("id = 2")).union(rows)
        assert sorted(row.id for row in both.collect()) == [1, 1, 2, 2, 3]
    finally:
        session.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_older_snapshots_can_be_read(session: SparkSession, table: Table) -> None:
    for number in (1, 2, 3):
        table.write(pa.table({"id": [1], "v": [str(number)]}))
    at = table.history()[1].time_ms
    assert read(session, table.path, snapshot=1).collect() == [(1, "1")]
    assert read(session, table.path, snapshot=0).collect() == []
    by_time = load(session, table.path, **{"scan.mode": "from-timestamp", "scan.timestamp-millis": str(at)})
    assert by_time.select("v").first() is not None
    assert read(session, table.path).collect() == [(1, "3")]


def test_append_and_overwrite(session: SparkSession, table: Table) -> None:
    def write(df: DataFrame, mode: str) -> None:
        df.write.format("upsert-table").mode(mode).save(table.path)

    write(session.range(1000).withColumn("v", lit("a")).repartition(5), "append")
    write(
        frame(session, ("-D", 0, None), ("+U", 1, "b"), schema="_row_kind STRING, id BIGINT, v STRING"),
        "append",
    )
    rows = multiset(table.snapshot().scan())
    assert len(rows) == 999
    assert rows[1, "b"] == 1
    write(frame(session, (7, "c")), "overwrite")
    assert multiset(table.snapshot().scan()) == {(7, "c"): 1}
    assert [info.kind for info in table.history() if info.changes_rows] == ["append", "append", "overwrite"]


@pytest.mark.parametrize("bucket", ["1", "5"])
def test_this_process_commits_what_tasks_have_staged(
    session: SparkSession, tmp_path: Path, bucket: str
) -> None:
    """So an error of the commit is its own, no text of another process, and no staged file stays."""
    table = Table.create(tmp_path / bucket, SMALL, {"bucket": bucket})
    rows = session.range(100).selectExpr("id", "CAST(id AS STRING) AS v")
    write(rows, table.path)
    write(rows.where("id = 7").select("id", lit("x").alias("v")), table.path)
    with pytest.raises(CommitConflictError):
        write(rows, table.path, {"unchanged-since": "1"})
    stored = {id: str(id) for id in range(100)} | {7: "x"}
    assert {row["id"]: row["v"] for row in Table.open(table.path).snapshot().scan().to_pylist()} == stored
    assert table.snapshot().id == 2
    assert table.clean(older_than_s=0) == 0


def test_rows_that_do_not_fit_are_refused_and_nothing_is_written(session: SparkSession, table: Table) -> None:
    def write(df: DataFrame) -> None:
        df.write.format("upsert-table").mode("append").save(table.path)

    for df, message in (
        (session.range(1), r"table 't': the query lacks column\(s\) v"),
        (session.range(1).withColumn("v", col("id")), "column 'v' must be STRING, got BIGINT; write CAST"),
        (frame(session, (None, "a")), "PRIMARY KEY column 'id' must not be NULL"),
        (
            frame(session, ("x", 1, "a"), schema="_row_kind STRING, id BIGINT, v STRING"),
            "must be one of .*, got 'x'",
        ),
        (frame(session, (1, "a"), (1, "b")).repartition(2), "'id': 1"),
    ):
        with pytest.raises(Exception, match=message):
            write(df)
    assert table.snapshot().id == 0


def test_bad_options_and_paths_are_refused(session: SparkSession, table: Table, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"unknown option 'scan\.mod'; did you mean 'scan\.mode'"):
        load(session, table.path, **{"scan.mod": "full"})
    with pytest.raises(Exception, match="TableNotFoundError"):
        load(session, str(tmp_path / "none"))
    with pytest.raises(Exception, match="unknown option 'buckets'"):
        frame(session, (1, "a")).write.format("upsert-table").mode("append").option("buckets", 2).save(
            table.path
        )


def test_a_dataframe_keeps_the_snapshot_that_it_was_analysed_with(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    """However often it runs, and whatever is made of it: as Delta's frames do."""
    empty = read(spark, table.path)
    table.write(pa.table({"id": [1], "v": ["a"]}))
    one = read(spark, table.path)
    table.write(pa.table({"id": [1, 2], "v": ["b", "c"]}))
    table.compact()
    assert (empty.count(), one.count()) == (0, 1)
    assert [tuple(row) for row in one.select("v", "id").collect()] == [("a", 1)]
    assert one.join(read(spark, table.path).withColumnRenamed("v", "w"), "id").collect() == [
        (1, "a", "b")  # two reads of one table, each of its own snapshot
    ]
    table.write(pa.table({"id": [3], "v": ["d"]}))
    assert one.filter("id > 0").count() == 1
    assert read(spark, table.path).count() == 3


def test_a_pin_is_of_one_table_and_for_a_batch(spark: SparkSession, table: Table) -> None:
    with pytest.raises(Exception, match=r"option 'scan\.pinned' must be the id of a snapshot and the uuid"):
        read(spark, table.path, options={"scan.pinned": "1"}).collect()
    with pytest.raises(Exception, match=r"another one|no table"):
        read(spark, table.path, options={"scan.pinned": "0@gone"}).collect()


class TestMergeSchema:
    """Columns that a batch adds to the table, see the option ``merge-schema``."""

    def test_new_columns_are_added_and_numbers_widen(self, session: SparkSession, tmp_path: Path) -> None:
        schema = TableSchema.of({"id": pa.int32(), "n": pa.int32()}, primary_key=["id"])
        table = Table.create(tmp_path / "merged", schema)
        table.write(pa.table({"id": pa.array([1], pa.int32()), "n": pa.array([1], pa.int32())}))
        rows = session.createDataFrame([(2, 2**40, ["x"])], "id BIGINT, n BIGINT, tags ARRAY<STRING>")
        for _ in range(2):
            rows.write.format("upsert-table").option("mergeSchema", "true").mode("append").save(table.path)
        found = Table.open(table.path)
        assert found.definition.version == 1
        assert [(c.name, c.sql_type, c.nullable) for c in found.schema.columns] == [
            ("id", "INT", False),
            ("n", "BIGINT", True),
            ("tags", "ARRAY<STRING>", True),
        ]
        assert found.snapshot().scan().sort_by("id").to_pylist() == [
            {"id": 1, "n": 1, "tags": None},
            {"id": 2, "n": 2**40, "tags": ["x"]},
        ]

    def test_what_alter_does_not_take_is_refused(self, session: SparkSession, table: Table) -> None:
        for columns, reason in (
            ("id BIGINT, v INT", "column 'v' must be STRING, got INT"),
            ("id BIGINT, v STRING, V STRING", "columns 'v' and 'V' differ in case alone"),
            (
                "id BIGINT, v STRING, w INTERVAL YEAR",
                "'merge-schema': column 'w' must be of a type that a table",
            ),
            ("id BIGINT, w STRING", "the query lacks column"),
        ):
            rows = session.createDataFrame([], columns)
            with pytest.raises(Exception, match=reason):
                rows.write.format("upsert-table").option("merge-schema", "true").mode("append").save(
                    table.path
                )
        rows = session.createDataFrame([(1, "a", 2)], "id BIGINT, v STRING, w INT")
        with pytest.raises(Exception, match=r"has column.* w that the table lacks"):
            rows.write.format("upsert-table").mode("append").save(table.path)
        assert Table.open(table.path).schema.names == ("id", "v")
