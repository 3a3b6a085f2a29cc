"""Reads whose sources the driver makes."""

import json
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import deltajoin
from deltajoin import DeltaJoinSpec, Side
from upsert import registration
from upsert.managed import frames
from upsert.managed.frames import changes_between, read_changes
from upsert.managed.options import ReadOptions
from upsert.managed.reader import ChangesReader
from upsert.schema import TableSchema
from upsert.spark import reads
from upsert.spark.columns import spark_schema
from upsert.spark.formats import active
from upsert.store.table import Table

pytestmark = pytest.mark.spark


def made_by_the_driver(read: DataFrame) -> tuple[bool, bool]:
    """Whether the plan of a read has its source, and the function that tasks read with."""

    def field(owner: Any, name: str) -> Any:
        found = owner.getClass().getDeclaredField(name)
        found.setAccessible(True)
        return found.get(owner)

    source = field(read._jdf.queryExecution().analyzed().table(), "ds")
    return field(source, "dataSourceInPython") is not None, field(source, "readInfo") is not None


def test_the_driver_makes_what_spark_would_ask_processes_for(spark: SparkSession, tmp_path: Path) -> None:
    """What reads something else when the query starts is asked for then, as the latest state is."""
    table = Table.create(tmp_path / "t", TableSchema.of({"k": pa.int64()}, primary_key=["k"]).index("k"))
    spec = DeltaJoinSpec.of("inner", *[Side(table.path, ("k",), ("k",))] * 2)
    read = {
        "changes": read_changes(spark, table.path),
        "join": deltajoin.read_join(spark, spec),
        "the latest one then": frames.read(spark, table.path, options={"scan.mode": "latest"}),
        "by Spark": spark.readStream.format("upsert-table").load(table.path),
    }
    assert {name: made_by_the_driver(each) for name, each in read.items()} == {
        "changes": (True, True),
        "join": (True, True),
        "the latest one then": (True, False),
        "by Spark": (True, False),
    }


@pytest.mark.parametrize(
    ("most", "key", "columns", "is_sent"),
    [
        ("10MB", "k", ("k", "text"), True),
        ("1KB", "k", ("k", "text"), False),
        ("1KB", "k", ("k",), True),
        ("-1", "k", ("k", "text"), False),
        ("10MB", None, ("k", "text"), False),
    ],
    ids=["small", "large", "few columns", "off", "counted rows"],
)
def test_a_small_table_is_sent_to_the_tasks_of_a_join(
    spark: SparkSession,
    tmp_path: Path,
    most: str,
    key: str | None,
    columns: tuple[str, ...],
    *,
    is_sent: bool,
) -> None:
    """The other one, which is large or not known, is not shuffled then."""
    schema = TableSchema.of({"k": pa.int64(), "text": pa.string()}, primary_key=[key] if key else [])
    table = Table.create(tmp_path / "t", schema)
    table.write(pa.table({"k": range(50), "text": ["wide " * 20] * 50}))
    setting = "spark.sql.autoBroadcastJoinThreshold"
    before = spark.conf.get(setting)
    spark.conf.set(setting, most)
    try:
        joined = frames.read(spark, table.path, columns=columns).join(
            changes_between(spark, table.path, 0, 1), "k"
        )
        assert ("BroadcastHashJoin" in str(joined._jdf.queryExecution().executedPlan())) == is_sent
        assert joined.count() == 50
    finally:
        spark.conf.set(setting, before)


def test_a_join_of_small_tables_with_many_rows_for_each_is_not_taken_for_small(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A driver cannot hold it, and tasks need not."""
    schema = TableSchema.of({"k": pa.int64(), "g": pa.int64()}, primary_key=["k"])
    tables = [Table.create(tmp_path / name, schema, {"bucket": "3"}) for name in "ab"]
    for table in tables:
        table.write(pa.table({"k": range(1600), "g": [k % 2 for k in range(1600)]}))
    a, b = (frames.read(spark, table.path) for table in tables)
    many = a.join(b.withColumnRenamed("k", "other"), "g")
    joined = many.join(changes_between(spark, tables[0].path, 0, 1).select("k"), "k")
    plan = str(joined._jdf.queryExecution().executedPlan())
    assert "SortMergeJoin [k" in plan
    assert "BroadcastHashJoin [g" in plan
    assert joined.count() == 1600 * 800


def test_a_batch_of_one_state_is_a_function_in_the_plan(spark: SparkSession, tmp_path: Path) -> None:
    """Its plan tells what it reads, as that of a source does."""
    table = Table.create(tmp_path / "t", TableSchema.of({"k": pa.int64()}, primary_key=["k"]))
    table.write(pa.table({"k": [1, 2, 3]}))
    given = {"row-kind": "false", "path": table.path}
    by_option = {"scan.mode": "from-snapshot", "scan.snapshot-id": "1"}
    read = {
        "rows": frames.read(spark, table.path, columns=["k"]),
        "a snapshot": frames.read(spark, table.path, 1),
        "one by its option": frames.read(spark, table.path, options=by_option),
        "step": changes_between(spark, table.path, 0, 1),
        "a source": frames.read(spark, table.path, options={"scan.mode": "latest"}),
    }
    plans = {name: each._jdf.queryExecution().analyzed() for name, each in read.items()}
    assert [reads.is_read(plan) for plan in plans.values()] == [True] * 5
    assert not reads.is_read(read["rows"].where("k > 1")._jdf.queryExecution().analyzed())
    assert {name: reads.read_of(spark, plan) for name, plan in plans.items()} == {
        "rows": ("upsert-table", {**given, "scan.pinned": f"1@{table.uuid}"}),
        "a snapshot": ("upsert-table", {**given, **by_option}),
        "one by its option": ("upsert-table", {**given, **by_option}),
        "step": (
            "upsert-table-step",
            {"step": json.dumps({table.uuid: [0, 1]}), "scan.source": "files", "path": table.path},
        ),
        "a source": ("upsert-table", {**given, "scan.mode": "latest"}),
    }
    classes = [plan.getClass().getSimpleName() for plan in plans.values()]
    assert classes == ["MapInArrow"] * 4 + ["DataSourceV2Relation"]
    assert sorted(row.k for row in read["rows"].collect()) == [1, 2, 3]


def test_a_batch_of_one_state_needs_no_format(spark: SparkSession, tmp_path: Path) -> None:
    """To register it, Spark starts processes that look for others. A stream needs it."""
    table = Table.create(tmp_path / "t", TableSchema.of({"k": pa.int64()}, primary_key=["k"]))
    session = spark.newSession()
    frames.write(session.range(3).toDF("k"), table.path)
    assert sorted(row.k for row in frames.read(session, table.path).collect()) == [0, 1, 2]
    assert changes_between(session, table.path, 0, 1).count() == 3
    assert session not in registration._sessions
    read_changes(session, table.path)
    assert session in registration._sessions


def test_reads_of_as_many_partitions_share_their_numbers_within_a_session(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Also in one plan, and a session has its own: its settings are not those of another.

    That is of tables of which it is not known how few rows they have.
    """
    schema, tables = TableSchema.of({"k": pa.int64()}), []
    for name, bucket in [("a", "1"), ("b", "1"), ("c", "2")]:
        tables.append(Table.create(tmp_path / name, schema, {"bucket": bucket}))
        tables[-1].write(pa.table({"k": range(len(tables), 10)}))
    a, b, c = (frames.read(spark, table.path) for table in tables)
    elsewhere = frames.read(spark.newSession(), tables[0].path)
    numbers: list[Any] = [each._jdf.queryExecution().analyzed().child() for each in (a, b, c, elsewhere)]
    ids = [each.rdd().id() for each in numbers]
    assert [one == ids[0] for one in ids] == [True, True, False, False]
    both = a.join(b, a.k == b.k).join(c, a.k == c.k).select(a.k)
    assert sorted(row.k for row in both.unionAll(a).collect()) == sorted([*range(3, 10), *range(1, 10)])
    assert sorted(row.k for row in elsewhere.collect()) == [*range(1, 10)]


def test_a_function_of_the_user_s_is_no_read(spark: SparkSession) -> None:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    assert not reads.is_read(spark.range(1).mapInArrow(read, "id BIGINT")._jdf.queryExecution().analyzed())


def test_another_session_may_be_active(spark: SparkSession, tmp_path: Path) -> None:
    """Spark looks for a format in the session that is active, which need not know this one."""
    table = Table.create(tmp_path / "t", TableSchema.of({"k": pa.int64()}, primary_key=["k"]).index("k"))
    spec = DeltaJoinSpec.of("inner", *[Side(table.path, ("k",), ("k",))] * 2)
    with active(spark.newSession()):
        assert made_by_the_driver(deltajoin.read_join(spark.newSession(), spec)) == (True, True)


@pytest.mark.parametrize("lacks", ["PythonDataSourceCreationResult", "PythonDataSourceReadInfo"])
def test_spark_starts_its_processes_where_it_lacks_a_class(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    """As one of a later version may."""
    jvm = spark._jvm
    own = jvm.org.apache.spark.sql.execution.datasources.v2.python

    class Lacking:
        def __getattr__(self, name: str) -> Any:
            return jvm.org.apache.spark.of.no.version if name == lacks else getattr(own, name)

    python = Lacking()
    sql = SimpleNamespace(
        execution=SimpleNamespace(datasources=SimpleNamespace(v2=SimpleNamespace(python=python)))
    )
    apache = SimpleNamespace(spark=SimpleNamespace(sql=sql, api=jvm.org.apache.spark.api))
    monkeypatch.setattr(reads, "java_of", lambda _: SimpleNamespace(org=SimpleNamespace(apache=apache)))
    table = Table.create(tmp_path / "t", TableSchema.of({"k": pa.int64()}, primary_key=["k"]))
    assert made_by_the_driver(read_changes(spark, table.path))[1] is False


def test_a_table_that_is_replaced_before_the_query_starts_is_read_by_its_own_columns(tmp_path: Path) -> None:
    """The reader of tasks is as old as the DataFrame; that of the query names the table that is there."""
    columns = {"k": pa.int64(), "v": pa.int64()}
    replaced = Table.create(tmp_path / "t", TableSchema.of(columns, primary_key=["k"]))
    options = ReadOptions.parse({"path": replaced.path})
    asked = spark_schema(replaced.schema, row_kind=True)
    old = pickle.loads(pickle.dumps(ChangesReader(options, asked)))
    shutil.rmtree(replaced.root)
    turned = TableSchema.of(dict(reversed(columns.items())), primary_key=["k"])
    Table.create(tmp_path / "t", turned).write(pa.table({"k": [1], "v": [100]}))
    reader = ChangesReader(options, asked)
    end = reader.latestOffset(start := reader.initialOffset(), reader.getDefaultReadLimit())
    (partition,) = reader.partitions(start, end)
    read = [row for batch in old.read(partition) for row in batch.to_pylist()]
    assert read == [{"k": 1, "v": 100, "_row_kind": "+I"}]
