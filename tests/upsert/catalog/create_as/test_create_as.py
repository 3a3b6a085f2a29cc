"""CREATE TABLE AS SELECT through Spark: batches, streams, replacement, hooks (FLIP-218)."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import QueryTerminatedEvent

import planner
from tests.helpers import wait_until
from upsert import Catalog
from upsert.catalog.create_as.create_as import QueryWatcher
from upsert.catalog.job_hooks import Job, JobStatusHook
from upsert.errors import ConfigurationError, SchemaError, TableExistsError, TableNotFoundError

pytestmark = pytest.mark.spark


class Heard(JobStatusHook):
    def __init__(self) -> None:
        self.said: list[str] = []

    def on_created(self, job: Job) -> None:
        self.said.append(f"{job.table} created")

    def on_finished(self, job: Job) -> None:
        self.said.append(f"{job.table} finished")

    def on_failed(self, job: Job, error: BaseException | str) -> None:
        assert "too large" in str(error)
        self.said.append(f"{job.table} failed")

    def on_canceled(self, job: Job) -> None:
        self.said.append(f"{job.table} canceled")


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(tmp_path / "warehouse", optimize=planner.optimize)


@pytest.fixture
def words(catalog: Catalog, spark: SparkSession, ended_queries: None) -> DataFrame:
    """A stream of a table's changes."""
    catalog.sql("CREATE TABLE words (id BIGINT, word STRING, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.table("words").write(pa.table({"id": [1, 2, 3], "word": ["a", "b", "a"]}))
    return catalog.read_changes(spark, "words")


def squares(spark: SparkSession, count: int = 5) -> DataFrame:
    return spark.range(count).select("id", (F.col("id") * F.col("id")).alias("square"))


def rows(catalog: Catalog, name: str) -> list[tuple[object, ...]]:
    found = catalog.table(name).snapshot().scan().to_pylist()
    return sorted(tuple(row.values()) for row in found)


def fails(spark: SparkSession) -> DataFrame:
    return squares(spark).withColumn("square", F.expr("assert_true(id < 3, 'too large')").cast("bigint"))


def test_a_batch_becomes_a_table_of_its_columns_with_the_key_that_is_given(
    catalog: Catalog, spark: SparkSession
) -> None:
    heard = Heard()
    done = catalog.create_table_as(
        "squares",
        squares(spark),
        primary_key=["id"],
        indexes=[["square"]],
        options={"bucket": "2"},
        hook=heard,
    )
    assert done is None
    assert rows(catalog, "squares") == [(n, n * n) for n in range(5)]
    table = catalog.table("squares")
    assert table.schema.primary_key == ("id",)
    assert table.snapshot().id == 1
    assert table.options.bucket == 2
    assert table.snapshot().lookup(["square"], pa.table({"square": [9]})).to_pylist() == [
        {"id": 3, "square": 9}
    ]
    assert heard.said == ["squares created", "squares finished"]


def test_a_batch_without_rows_becomes_an_empty_table(catalog: Catalog, spark: SparkSession) -> None:
    catalog.create_table_as("empty", squares(spark, 0))
    assert catalog.tables() == ("empty",)
    assert rows(catalog, "empty") == []


def test_a_batch_that_fails_leaves_no_table_and_its_name_is_free(
    catalog: Catalog, spark: SparkSession
) -> None:
    heard = Heard()
    with pytest.raises(Exception, match="too large"):
        catalog.create_table_as("squares", fails(spark), hook=heard)
    assert catalog.tables() == ()
    assert not any(path.name == "squares" for path in Path(catalog.warehouse).iterdir())
    assert heard.said == ["squares created", "squares failed"]
    catalog.create_table_as("squares", squares(spark))
    assert len(rows(catalog, "squares")) == 5


def test_nobody_sees_the_table_while_it_is_filled(catalog: Catalog, spark: SparkSession) -> None:
    seen: list[object] = []

    class Look(JobStatusHook):
        def on_created(self, job: Job) -> None:
            seen.append(catalog.tables())
            with pytest.raises(TableNotFoundError):
                catalog.table(job.table)
            with pytest.raises(TableExistsError, match=r"being created by process \d+"):
                catalog.sql("CREATE TABLE IF NOT EXISTS squares (id INT)")
            with pytest.raises(TableExistsError, match="being created"):
                catalog.create_table_as(job.table, squares(spark))

    catalog.create_table_as("squares", squares(spark), hook=Look())
    assert seen == [()]
    assert catalog.tables() == ("squares",)


def test_an_existing_table_is_an_error_or_left_alone(catalog: Catalog, spark: SparkSession) -> None:
    catalog.create_table_as("squares", squares(spark))
    with pytest.raises(TableExistsError, match="exists already"):
        catalog.create_table_as("squares", squares(spark, 9))
    heard = Heard()
    catalog.create_table_as("squares", fails(spark), if_not_exists=True, hook=heard)
    assert heard.said == []
    assert len(rows(catalog, "squares")) == 5


def test_a_replaced_table_can_be_read_until_the_new_one_is_whole(
    catalog: Catalog, spark: SparkSession
) -> None:
    catalog.create_table_as("squares", squares(spark))
    with pytest.raises(Exception, match="too large"):
        catalog.create_table_as("squares", fails(spark), or_replace=True)
    assert len(rows(catalog, "squares")) == 5

    class Look(JobStatusHook):
        def on_created(self, job: Job) -> None:
            assert len(rows(catalog, job.table)) == 5

    # the new rows are read from the table that they replace
    doubled = catalog.read(spark, "squares").withColumn("square", F.lit("many"))
    catalog.create_table_as("squares", doubled, or_replace=True, hook=Look())
    assert rows(catalog, "squares") == [(n, "many") for n in range(5)]
    assert sorted(path.name for path in Path(catalog.warehouse).iterdir()) == ["squares"]


def test_or_replace_makes_a_table_where_there_is_none(catalog: Catalog, spark: SparkSession) -> None:
    catalog.create_table_as("squares", squares(spark), or_replace=True)
    assert len(rows(catalog, "squares")) == 5


def test_a_stream_shows_its_table_with_the_first_commit_and_goes_on_with_its_checkpoint(
    catalog: Catalog, spark: SparkSession, words: DataFrame, tmp_path: Path
) -> None:
    heard = Heard()

    def create() -> None:
        query = catalog.create_table_as(
            "copy",
            words,
            primary_key=["id"],
            checkpoint=tmp_path / "checkpoint",
            trigger={"availableNow": True},
            hook=heard,
        )
        assert query is not None
        query.awaitTermination()

    create()
    wait_until(lambda: heard.said == ["copy created", "copy finished"])
    assert rows(catalog, "copy") == [(1, "a"), (2, "b"), (3, "a")]
    catalog.table("words").write(pa.table({"id": [2, 4], "word": ["c", "d"]}))
    create()
    assert rows(catalog, "copy") == [(1, "a"), (2, "c"), (3, "a"), (4, "d")]
    wait_until(lambda: len(heard.said) == 4)
    with pytest.raises(TableExistsError, match="exists already"):
        catalog.create_table_as("copy", words, primary_key=["id"], checkpoint=tmp_path / "another")
    with pytest.raises(ConfigurationError, match=r"must have its columns and keys, \(id BIGINT, word STRING"):
        catalog.create_table_as(
            "copy", words.drop("word"), primary_key=["id"], checkpoint=tmp_path / "checkpoint"
        )


def test_the_key_of_an_aggregate_over_changes_is_that_of_its_groups(
    catalog: Catalog, spark: SparkSession, words: DataFrame, tmp_path: Path
) -> None:
    query = catalog.create_table_as(
        "counts",
        words.groupBy("word").agg(F.count("*").alias("n")),
        checkpoint=tmp_path / "checkpoint",
        trigger={"availableNow": True},
    )
    assert query is not None
    query.awaitTermination()
    assert catalog.table("counts").schema.primary_key == ("word",)
    assert rows(catalog, "counts") == [("a", 2), ("b", 1)]


@pytest.mark.parametrize("drop", [False, True])
def test_a_stream_that_a_user_stops_keeps_its_table_unless_asked(
    catalog: Catalog, spark: SparkSession, words: DataFrame, tmp_path: Path, drop: bool
) -> None:
    heard = Heard()
    query = catalog.create_table_as(
        "copy", words, primary_key=["id"], checkpoint=tmp_path / "c", drop_on_cancel=drop, hook=heard
    )
    assert query is not None
    wait_until(lambda: "copy" in catalog.tables())
    with pytest.raises(TableExistsError, match="is being filled by a query with this checkpoint"):
        catalog.create_table_as("copy", words, primary_key=["id"], checkpoint=tmp_path / "c")
    query.stop()
    wait_until(lambda: heard.said == ["copy created", "copy canceled"])
    assert ("copy" in catalog.tables()) == (not drop)


def test_of_queries_that_end_beside_a_stream_nothing_is_kept() -> None:
    nothing: Any = None
    watcher = QueryWatcher(nothing, nothing, nothing, "copy", nothing, nothing)
    first, later = (
        QueryTerminatedEvent.fromJson(
            {"id": str(uuid4()), "runId": str(uuid4()), "exception": None, "errorClassOnException": None}
        )
        for _ in range(2)
    )
    watcher.onQueryTerminated(first)  # while the stream starts, this may be its own
    watcher._run = str(uuid4())
    watcher.onQueryTerminated(later)
    assert [*watcher._ended] == [str(first.runId)]


def test_a_stream_that_fails_before_its_first_commit_leaves_no_table(
    catalog: Catalog, spark: SparkSession, words: DataFrame, tmp_path: Path
) -> None:
    heard = Heard()
    bad = words.withColumn("word", F.expr("string(assert_true(id < 3, 'too large'))"))
    query = catalog.create_table_as("copy", bad, primary_key=["id"], checkpoint=tmp_path / "c", hook=heard)
    assert query is not None
    with pytest.raises(Exception, match="too large"):
        query.awaitTermination()
    wait_until(lambda: heard.said == ["copy created", "copy failed"])
    assert catalog.tables() == ("words",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"or_replace": True, "if_not_exists": True}, "either OR REPLACE or IF NOT EXISTS"),
        ({"checkpoint": "/c"}, "no checkpoint, trigger or drop_on_cancel for a batch"),
        ({"options": {"buckets": "2"}}, "did you mean 'bucket'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    catalog: Catalog, spark: SparkSession, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        catalog.create_table_as("squares", squares(spark), **arguments)  # type: ignore[arg-type]
    assert catalog.tables() == ()


def test_a_stream_needs_a_checkpoint_and_no_replace(catalog: Catalog, words: DataFrame) -> None:
    with pytest.raises(ConfigurationError, match="a checkpoint for its streaming query"):
        catalog.create_table_as("copy", words)
    with pytest.raises(ConfigurationError, match="no OR REPLACE for a streaming query"):
        catalog.create_table_as("copy", words, checkpoint="/c", or_replace=True)


def test_columns_that_no_table_can_have_are_refused(catalog: Catalog, spark: SparkSession) -> None:
    with pytest.raises(SchemaError, match="column 'i' must be of a type that a table can have, got INTERVAL"):
        catalog.create_table_as("t", spark.sql("SELECT INTERVAL '1' MONTH AS i"))
    with pytest.raises(SchemaError, match="its query gives two columns 'id'; give one another name with AS"):
        catalog.create_table_as("t", spark.sql("SELECT 1 AS id, 2 AS id"))


@pytest.mark.parametrize(
    "form", ["parquet", "csv", *(pytest.param(form, marks=pytest.mark.long) for form in ("orc", "json"))]
)
def test_files_that_have_rows_are_not_added_to(
    catalog: Catalog, spark: SparkSession, tmp_path: Path, form: str
) -> None:
    """As Spark refuses a place that is not empty; an empty folder, or none, is as good as a new one."""
    folder = tmp_path / "files"
    options = f"WITH ('connector' = '{form}', 'path' = '{folder}')"
    catalog.sql(f"CREATE TABLE one {options} AS SELECT 1 AS id", spark)
    with pytest.raises(ConfigurationError, match=r"'two': CREATE TABLE AS needs an empty folder, got"):
        catalog.sql(f"CREATE TABLE two {options} AS SELECT 2 AS id", spark)
    with pytest.raises(TableNotFoundError):
        catalog.schema("two")
    assert [row.id for row in catalog.read(spark, "one").collect()] == [1]
    (tmp_path / "empty").mkdir()
    options = f"WITH ('connector' = '{form}', 'path' = '{tmp_path / 'empty'}')"
    catalog.sql(f"CREATE TABLE three {options} AS SELECT 3 AS id", spark)
    assert [row.id for row in catalog.read(spark, "three").collect()] == [3]


def test_a_stream_does_not_begin_among_rows(catalog: Catalog, spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    spark.range(1).write.json(str(folder))
    stream = spark.readStream.schema("id BIGINT").json(str(folder))
    options = {"connector": "json", "path": str(folder)}
    with pytest.raises(ConfigurationError, match="needs an empty folder, got"):
        catalog.create_table_as("s", stream, options=options, checkpoint=tmp_path / "c")
    with pytest.raises(TableNotFoundError):
        catalog.schema("s")
