"""Partitioned tables through Spark: every kind of value, overwrites, filters that prune, untracked writes."""

import datetime as dt
import json
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.helpers import multiset
from upsert import Catalog
from upsert.errors import ConfigurationError, SchemaError
from upsert.managed import reader
from upsert.managed.options import ReadOptions, WriteOptions
from upsert.managed.reader import SnapshotReader
from upsert.managed.writer import BatchWriter, StreamWriter, is_dynamic
from upsert.registration import register
from upsert.schema import TableSchema
from upsert.spark.columns import spark_schema
from upsert.store.files.data_file import forget_open_files
from upsert.store.metadata.stands_for import StandsFor
from upsert.store.predicate import where_to_json
from upsert.store.read.snapshot import Snapshot
from upsert.store.table import Table

SCHEMA = TableSchema.of(
    {"day": pa.date32(), "hub": pa.string(), "id": pa.int64(), "v": pa.string()},
    partitioned_by=["day", "hub"],
)
KEYED = TableSchema.of(
    {"day": pa.date32(), "hub": pa.string(), "id": pa.int64(), "v": pa.string()},
    primary_key=["day", "hub", "id"],
    partitioned_by=["day", "hub"],
)
FIRST, SECOND = dt.date(2013, 1, 1), dt.date(2013, 1, 2)
DDL = "day DATE, hub STRING, id BIGINT, v STRING"
ROWS: list[tuple[Any, ...]] = [
    (FIRST, "a/b", 1, "x"),
    (FIRST, "😀", 2, "y"),
    (SECOND, None, 3, "x"),
    (None, "-0.0", 4, None),
    (FIRST, "a/b", 5, "z"),
]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "t", SCHEMA, {"bucket": "2"})


def write(df: DataFrame, table: Table, mode: str = "overwrite", **options: str) -> None:
    named = {name.replace("_", "-"): value for name, value in options.items()}
    df.write.format("upsert-table").options(**named).mode(mode).save(table.path)


def content(table: Table) -> set[tuple[Any, ...]]:
    return set(multiset(table.snapshot().scan()))


def load(spark: SparkSession, table: Table, where: list[Any]) -> DataFrame:
    register(spark)
    options = {"scan.where": where_to_json(where), "row-kind": "false"}
    return spark.read.format("upsert-table").options(**options).load(table.path)


@pytest.mark.spark
def test_partitions_are_written_read_and_overwritten(spark: SparkSession, table: Table) -> None:
    register(spark)
    write(spark.createDataFrame(ROWS, DDL).repartition(3), table, "append")
    assert content(table) == set(ROWS)
    assert {info.name for info in table.partitions()} == {
        "day=2013-01-01/hub=a/b",
        "day=2013-01-01/hub=😀",
        "day=2013-01-02/hub=NULL",
        "day=NULL/hub=-0.0",
    }
    one = [(FIRST, "a/b", 9, "n")]
    write(spark.createDataFrame(one, DDL), table, partition_overwrite_mode="dynamic")
    assert content(table) == {*ROWS[1:4], *one}
    spec = json.dumps({"day": "2013-01-01", "hub": "😀"})
    write(spark.createDataFrame([(7, "m")], "id BIGINT, v STRING"), table, partition=spec)
    assert content(table) == {*ROWS[2:4], *one, (FIRST, "😀", 7, "m")}
    write(
        spark.createDataFrame([("q", 8, "m")], "hub STRING, id BIGINT, v STRING"),
        table,
        "append",
        partition='{"day": null}',
    )
    assert (None, "q", 8, "m") in content(table)
    with pytest.raises(Exception, match="must lie in the partition day=2013-01-02, got rows of"):
        write(spark.createDataFrame(one, DDL), table, partition='{"day": "2013-01-02"}')
    before = table.snapshot().id
    write(spark.createDataFrame(one, DDL), table, "append", change_tracking="false")
    assert not table.snapshot(before + 1).info.tracked

    found = load(spark, table, [("hub", "in", ["a/b", "q"])])
    assert {tuple(row) for row in found.collect()} == {*one, (None, "q", 8, "m")}
    poison(table, "day=2013-01-02")
    assert load(spark, table, [("day", "=", FIRST), ("id", ">", 7)]).count() == 2


def poison(table: Table, folder: str) -> None:
    forget_open_files()
    for path in Path(table.path, folder).rglob("*.arrow"):
        path.write_bytes(b"poison")


@pytest.mark.spark
def test_a_stream_reads_the_partitions_that_its_filter_leaves(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    register(spark)
    table.write(pa.table({"day": [FIRST, SECOND], "hub": ["a", "a"], "id": [1, 2], "v": ["x", "y"]}))
    poison(table, "day=2013-01-02")
    target = Table.create(tmp_path / "target", SCHEMA)
    options = {"scan.where": '[["day", "=", "2013-01-01"]]', "scan.untracked": "skip"}
    query = (
        spark.readStream.format("upsert-table")
        .options(**options)
        .load(table.path)
        .writeStream.format("upsert-table")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start(target.path)
    )
    try:
        query.processAllAvailable()
        table.write(pa.table({"day": [FIRST], "hub": ["a"], "id": [3], "v": ["hidden"]}), tracked=False)
        table.delete([("id", "=", 1), ("day", "=", FIRST)])
        table.write(pa.table({"day": [FIRST], "hub": ["b"], "id": [4], "v": ["z"]}))
        query.processAllAvailable()
    finally:
        query.stop()
    assert content(target) == {(FIRST, "b", 4, "z")}


@pytest.mark.spark
@pytest.mark.parametrize("is_statement", [False, True])
def test_an_overwrite_follows_sparks_own_setting_of_the_session(
    spark: SparkSession, tmp_path: Path, is_statement: bool
) -> None:
    """As one of a Parquet table does; an option says more, and a table without partitions has one part."""
    tables = [Table.create(tmp_path / "keyed", KEYED)]
    if not is_statement:  # which comes to the same write
        tables.append(Table.create(tmp_path / "t", SCHEMA))
    whole = Table.create(tmp_path / "whole", TableSchema.of({"id": pa.int64()}))
    catalog = Catalog(tmp_path)

    def overwrite(table: Table, rows: DataFrame, mode: str | None = None) -> None:
        key = "partition-overwrite-mode"
        if not is_statement:
            write(rows, table, **({} if mode is None else {key: mode}))
            return
        rows.createOrReplaceTempView("given")
        hint = "" if mode is None else f"/*+ OPTIONS('{key}' = '{mode}') */"
        catalog.sql(f"INSERT OVERWRITE {table.name} {hint} SELECT * FROM given", spark)

    register(spark)
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        for table in tables:
            write(spark.createDataFrame(ROWS[:2], DDL), table, "append")
            one = (FIRST, "a/b", 9, "n")
            overwrite(table, spark.createDataFrame([one], DDL))
            assert content(table) == {one, ROWS[1]}
            overwrite(table, spark.createDataFrame(ROWS[:0], DDL))
            assert content(table) == {one, ROWS[1]}
            overwrite(table, spark.createDataFrame([one], DDL), "static")
            assert content(table) == {one}
        write(spark.range(3), whole, "append")
        overwrite(whole, spark.range(0))
        assert content(whole) == set()
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
        spark.catalog.dropTempView("given")
    for table in tables:
        overwrite(table, spark.createDataFrame(ROWS[1:2], DDL))
        assert content(table) == {ROWS[1]}


def test_rows_of_a_view_are_all_replaced_in_any_session() -> None:
    of_view = WriteOptions("v", stands_for=StandsFor({}, 0))
    assert not is_dynamic(of_view, SCHEMA, "dynamic")
    assert is_dynamic(WriteOptions("t"), SCHEMA, "DYNAMIC")
    assert not is_dynamic(WriteOptions("t", partition={"hub": "a"}), SCHEMA, "dynamic")


def test_tasks_share_small_partitions_and_skip_those_without_rows(table: Table) -> None:
    table.write(pa.table({"day": [FIRST, SECOND], "hub": ["a", "a"], "id": [1, 2], "v": ["x", "y"]}))
    options = ReadOptions.parse({"path": table.path, "scan.where": '[["day", "=", "2013-01-02"]]'})
    reader = SnapshotReader(options, spark_schema(table.schema, row_kind=True))
    (only,) = reader.partitions()
    assert [dict(partition)["day"] for partition in (split.bucket_id[0] for split in only.splits)] == [
        "2013-01-02"
    ]


def test_task_looks_once_which_partitions_a_filter_leaves(table: Table) -> None:
    """With a look for each of them a task took minutes where a table has ten thousand."""
    days = [FIRST + dt.timedelta(n) for n in range(20)]
    table.write(pa.table({"day": days, "hub": ["a"] * 20, "id": range(20), "v": ["x"] * 20}))
    options = ReadOptions.parse({"path": table.path, "scan.where": '[["id", ">", 4]]'})
    of_all = SnapshotReader(options, spark_schema(table.schema, row_kind=True))
    (only,) = of_all.partitions()
    look = Snapshot.bucket_filters
    with patch.object(Snapshot, "bucket_filters", autospec=True, side_effect=look) as looks:
        assert sum(rows.num_rows for rows in of_all.read(only)) == 15
    assert len(only.splits) == 20
    assert looks.call_count == 1


def test_filter_leaves_one_task_only_of_as_many_rows_as_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an index a value may have most of the rows: as many tasks as without a filter read these."""
    schema = TableSchema.of({"id": pa.int64(), "x": pa.int64()}, primary_key=["id"]).index("x")
    table = Table.create(tmp_path / "t", schema)
    table.write(pa.table({"id": range(4000), "x": [number % 2 for number in range(4000)]}))
    monkeypatch.setattr(reader, "tasks", partial(reader.tasks, max_bytes=4096))
    counts = []
    for where in ("[]", '[["x", "=", 1]]', '[["id", "in", [1, 2]]]'):
        options = ReadOptions.parse({"path": table.path, "scan.where": where})
        counts.append(len(SnapshotReader(options, spark_schema(schema, row_kind=True)).partitions()))
    assert counts[0] == counts[1] > counts[2] == 1


@pytest.mark.parametrize(
    ("is_stream", "is_overwrite", "options", "error", "message"),
    [
        (
            True,
            True,
            {"partition-overwrite-mode": "dynamic"},
            ConfigurationError,
            "no stream overwrites partitions",
        ),
        (
            False,
            False,
            {"partition-overwrite-mode": "static"},
            ConfigurationError,
            "batch write of mode overwrite",
        ),
        (False, True, {"partition": '{"v": 1}'}, SchemaError, "must be given by partition columns"),
        (False, True, {"partition": "day=1"}, ConfigurationError, "must be a JSON object, got 'day=1'"),
        (False, True, {"partition-overwrite-mode": "maybe"}, ConfigurationError, "one of static, dynamic"),
    ],
)
def test_writer_options_that_do_not_fit_are_refused(
    table: Table,
    is_stream: bool,
    is_overwrite: bool,
    options: dict[str, str],
    error: type[Exception],
    message: str,
) -> None:
    given = spark_schema(table.schema, row_kind=False)
    writer = StreamWriter if is_stream else BatchWriter
    with pytest.raises(error, match=message):
        writer(WriteOptions.parse({"path": table.path, **options}), given, is_overwrite)
