"""The operator through Spark: batches, restarts, a batch that is run twice, awkward values."""

import datetime as dt
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import upsert
from tests.helpers import LOCAL_CLUSTER, changelog, of_kind, run_spark_script
from tests.upsert.changelog.model import Model, Row, by_key
from upsert.blobs import BLOB_BYTES, from_blob, in_order
from upsert.changelog.normalizer import Rules
from upsert.changelog.operator import NormalizeSpec, Pack, _expiry, table_schema
from upsert.errors import ConfigurationError, SchemaError
from upsert.schema import TableSchema
from upsert.spark.columns import spark_schema
from upsert.types import TIMESTAMP

pytestmark = pytest.mark.spark

COLUMNS = pa.schema({"word": pa.string(), "n": pa.int64(), "text": pa.string(), "seq": pa.int64()})

BEFORE_RESTART = (
    "+U one 1 a 1",
    "+U two 2 b 2",
    "+U one 1 aa 3",
    "+U three 3 c 4",
    "-D two 2 b 5",
    "+U three 3 cc 6",
)
AFTER_RESTART = (
    "+U four 4 d 7",
    "+U five 5 e 8",
    "+U six 6 f 9",
    "+U five 5 ee 10",
    "-D six 6 f 11",
    "+U four 4 dd 12",
)
FIRST = (
    "+I one 1 a 1",
    "+I two 2 b 2",
    "-U one 1 a 1",
    "+U one 1 aa 3",
    "+I three 3 c 4",
    "-D two 2 b 2",
    "-U three 3 c 4",
    "+U three 3 cc 6",
)
SECOND = (
    "+I four 4 d 7",
    "+I five 5 e 8",
    "+I six 6 f 9",
    "-U five 5 e 8",
    "+U five 5 ee 10",
    "-D six 6 f 9",
    "-U four 4 d 7",
    "+U four 4 dd 12",
)
"""Case CN01 with a column for the order."""


class Stream:
    """A folder of Parquet files, one a batch, normalized into lists of changes by batch."""

    def __init__(self, spark: SparkSession, folder: Path, columns: pa.Schema = COLUMNS) -> None:
        self.spark, self.folder, self.columns = spark, folder, columns
        self.changes: dict[int, list[Row]] = {}
        (folder / "input").mkdir(exist_ok=True)

    def add(self, rows: pa.Table) -> None:
        number = len(list((self.folder / "input").iterdir()))
        pq.write_table(rows, self.folder / "input" / f"{number:05}.parquet")

    def rows(self) -> DataFrame:
        columns = spark_schema(TableSchema.of(self.columns), row_kind=True)
        reader = self.spark.readStream.schema(columns).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.folder / "input"))

    def run(self, df: DataFrame, fails_after: int | None = None) -> None:
        def collect(batch: DataFrame, id: int) -> None:
            self.changes[id] = batch.toArrow().to_pylist()
            if id == fails_after:
                raise RuntimeError("the sink is gone")

        writer = df.writeStream.foreachBatch(collect).trigger(availableNow=True)
        writer.option("checkpointLocation", str(self.folder / "checkpoint")).start().awaitTermination()


def rows_of(lines: Sequence[str]) -> list[Row]:
    found: list[Row] = changelog(COLUMNS, *lines).to_pylist()
    return found


@pytest.fixture(params=["state store", "tables"])
def arguments(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    given: dict[str, Any] = {"key": ["word"], "order_by": "seq"}
    return given if request.param == "state store" else {**given, "state_path": str(tmp_path / "state")}


def test_an_upsert_stream_with_a_restart_in_the_middle(
    spark: SparkSession, tmp_path: Path, arguments: dict[str, Any]
) -> None:
    stream = Stream(spark, tmp_path)
    stream.add(changelog(COLUMNS, *BEFORE_RESTART))
    stream.add(changelog(COLUMNS, *AFTER_RESTART))
    # its tasks have committed their state when the sink fails: the batch is run again
    with pytest.raises(StreamingQueryException, match="the sink is gone"):
        stream.run(upsert.normalize(stream.rows(), **arguments), fails_after=1)
    first_attempt = stream.changes[1]
    stream.run(upsert.normalize(stream.rows(), **arguments))
    for found, expected in ((0, FIRST), (1, SECOND)):
        assert by_key(stream.changes[found], ["word"]) == by_key(rows_of(expected), ["word"])
    assert by_key(first_attempt, ["word"]) == by_key(rows_of(SECOND), ["word"])


AWKWARD = pa.schema(
    {
        "k": pa.int64(),
        "big": pa.int64(),
        "real": pa.float64(),
        "at": TIMESTAMP,
        "text": pa.string(),
        "money": pa.decimal128(38, 10),
        "tags": pa.list_(pa.field("element", pa.string())),
    }
)


def test_values_that_pandas_would_damage_arrive_as_they_were(spark: SparkSession, tmp_path: Path) -> None:
    late = dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC)
    early = dt.datetime(1, 1, 1, tzinfo=dt.UTC)
    rows = [
        {"k": 2**63 - 1, "big": None, "real": float("nan"), "at": late, "text": "\0😀", "tags": [None, ""]},
        {"k": -(2**63), "big": 2**62 + 1, "real": -0.0, "at": early, "text": None, "tags": None},
        {"k": -(2**63), "big": 2**62 + 3, "real": None, "at": late, "text": "", "tags": []},
    ]
    stream = Stream(spark, tmp_path, AWKWARD)
    table = pa.Table.from_pylist(rows, schema=AWKWARD)
    stream.add(of_kind(table, "+I"))
    stream.run(upsert.normalize(stream.rows(), key=["k"], order_by=["at"], buckets=3))
    first, second, third = table.to_pylist()
    expected = [
        first | {"_row_kind": "+I"},
        second | {"_row_kind": "+I"},
        second | {"_row_kind": "-U"},
        third | {"_row_kind": "+U"},
    ]
    assert by_key(stream.changes[0], ["k"]) == by_key(expected, ["k"])


def test_without_kinds_every_row_is_a_value_and_an_aggregate_may_follow(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path)
    for lines in (("+U a 1 x 1", "+U b 2 x 2"), ("+U a 5 x 3", "+U b 9 x 1")):
        stream.add(changelog(COLUMNS, *lines))
    changes = upsert.normalize(stream.rows().drop("_row_kind"), "word", "seq", buckets=1)
    assert changes.columns == [*COLUMNS.names, "_row_kind"]
    signed = changes.selectExpr("CASE WHEN _row_kind IN ('+I', '+U') THEN n ELSE -n END AS signed")
    query = (
        signed.groupBy()
        .sum("signed")
        .writeStream.format("memory")
        .queryName("totals")
        .outputMode("complete")
        .trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    query.awaitTermination()
    assert [row[0] for row in spark.sql("SELECT * FROM totals").collect()] == [7]


def test_a_state_that_is_too_large_asks_for_a_state_path_and_then_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path)
    stream.add(changelog(COLUMNS, "+U a 1 x 1"))
    stream.add(changelog(COLUMNS, *(f"+U word{number} 1 x 2" for number in range(50)), "+U a 2 x 2"))

    def normalized(**arguments: Any) -> DataFrame:
        return upsert.normalize(
            stream.rows(), key=["word"], order_by="seq", buckets=1, max_state_bytes=200, **arguments
        )

    with pytest.raises(StreamingQueryException, match=r"must fit into max_state_bytes=200.*give state_path="):
        stream.run(normalized())
    stream.run(normalized(state_path=str(tmp_path / "state")))
    of_a = by_key(stream.changes[1], ["word"])[("a",)]
    assert of_a == [("a", 1, "x", 1, "-U"), ("a", 2, "x", 2, "+U")]
    assert len(stream.changes[1]) == 52


def test_a_row_that_the_normalizer_refuses_stops_the_query(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path)
    stream.add(changelog(COLUMNS, "+U a 1 x NULL"))
    with pytest.raises(StreamingQueryException, match="order_by column 'seq' must not be NULL"):
        stream.run(upsert.normalize(stream.rows(), key=["word"], order_by="seq"))


def test_arguments_that_do_not_fit_are_refused_before_the_query_starts(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = Stream(spark, tmp_path).rows()
    given: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"key": ["x"]}, SchemaError, "unknown column 'x'"),
        ({"key": []}, SchemaError, "key must name at least one column"),
        ({"order_by": "x"}, SchemaError, "order_by has unknown column 'x'"),
        ({"order_by": []}, ConfigurationError, "order_by must name at least one column"),
        ({"compare": ["x"]}, SchemaError, "compare has unknown column 'x'"),
        ({"buckets": 0}, ConfigurationError, "buckets must be a positive integer, got 0"),
        ({"max_state_bytes": 0}, ConfigurationError, "max_state_bytes must be a positive integer"),
        ({"ttl": timedelta(hours=1)}, ConfigurationError, "ttl needs a TIMESTAMP in order_by"),
        ({"ttl": timedelta(0), "time": "seq"}, ConfigurationError, "ttl must be at least 1 ms"),
        ({"ttl": timedelta(hours=1), "time": "text"}, SchemaError, "must be TIMESTAMP or BIGINT"),
    ]
    for arguments, error, message in given:
        with pytest.raises(error, match=message):
            upsert.normalize(rows, **({"key": ["word"], "order_by": "seq"} | arguments))
    with pytest.raises(ConfigurationError, match="needs a streaming DataFrame, got a batch one"):
        upsert.normalize(spark.range(1), key=["id"], order_by="id")
    with pytest.raises(SchemaError, match="column 'i' must be of a type that a table can have, got INTERVAL"):
        table_schema(spark.sql("SELECT INTERVAL '1' MONTH AS i").schema, ["i"])


def test_the_time_of_a_ttl_is_the_first_timestamp_of_the_order() -> None:
    schema = TableSchema.of({"id": pa.int64(), "lsn": pa.int64(), "at": TIMESTAMP}, primary_key=["id"])
    found = _expiry(timedelta(seconds=2), None, ("lsn", "at"), schema)
    assert (found.time, found.ttl_ms) == ("at", 2000)


def test_blobs_of_a_task_carry_all_its_rows_in_order() -> None:
    schema = TableSchema.of(COLUMNS, primary_key=["word"])
    pack = Pack(NormalizeSpec(schema, Rules(("word",), (), ("seq",)), buckets=3))
    batch = changelog(COLUMNS, *(f"+U word{n} {n} x {n}" for n in range(20))).to_batches()[0]
    blobs = [row for sent in pack([batch]) for row in sent.to_pylist()]
    assert len({row["bucket"] for row in blobs}) == 3
    found = [row for sent in blobs for row in rows_in(sent["blob"])]
    assert sorted(row["n"] for row in found) == list(range(20))


def test_rows_of_a_large_bucket_come_in_their_order_whatever_the_shuffle_did() -> None:
    """They are several blobs: of rows of equal order the one that came later wins."""
    schema = TableSchema.of(COLUMNS, primary_key=["word"])
    pack = Pack(NormalizeSpec(schema, Rules(("word",), (), ("seq",)), buckets=1))
    texts = [f"{n}" * (BLOB_BYTES // 2) for n in range(5)]
    rows = pa.table([["a"] * 5, [*range(5)], texts, [1] * 5], schema=COLUMNS)
    blobs = [row["blob"] for sent in pack(rows.to_batches()) for row in sent.to_pylist()]
    assert len(blobs) > 1
    found = [row["n"] for part, _ in in_order(reversed(blobs)) for row in part.to_pylist()]
    assert found == [*range(5)]


def rows_in(blob: bytes) -> list[Row]:
    rows: list[Row] = from_blob(blob)[0].to_pylist()
    return rows


@pytest.mark.long
def test_on_a_cluster_of_processes(tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    columns = pa.schema({"word": pa.string(), "n": pa.int64(), "seq": pa.int64()})
    model, expected = Model(Rules(("word",), ("n", "seq"), ("seq",))), []
    for batch in range(3):
        lines = [f"+U word{n % 7} {n} {100 * batch + n}" for n in range(40)]
        rows = changelog(columns, *lines, f"-D word{batch} NULL {100 * batch + 50}")
        pq.write_table(rows, tmp_path / "input" / f"{batch}.parquet")
        expected += model.batch(rows.to_pylist())
    folders = [tmp_path / name for name in ("input", "output", "checkpoint", "state")]
    run_spark_script(Path(__file__).parent / "normalize_script.py", *folders, master=LOCAL_CLUSTER)
    found = pq.read_table(tmp_path / "output").to_pylist()
    assert {key: sorted(rows) for key, rows in by_key(found, ["word"]).items()} == {
        key: sorted(rows) for key, rows in by_key(expected, ["word"]).items()
    }
