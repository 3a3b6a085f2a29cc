"""Arrow batches as sessions label them, in the types of tables; and rows of types that no table has."""

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from upsert.errors import SchemaError
from upsert.spark.batches import frame_of_rows, from_spark, local_rows
from upsert.store.rows.hashing import row_hashes
from upsert.types import TIMESTAMP

BERLIN = pa.timestamp("us", tz="Europe/Berlin")
INSIDE = pa.field("at", BERLIN, nullable=False)
COLUMNS = {
    "at": (BERLIN, TIMESTAMP, [0, None]),
    "text": (pa.large_string(), pa.string(), ["a", None]),
    "bytes": (pa.large_binary(), pa.binary(), [b"a", None]),
    "list": (pa.list_(BERLIN), pa.list_(pa.field("element", TIMESTAMP)), [[1, None], None]),
    "map": (pa.map_(pa.large_string(), BERLIN), pa.map_(pa.string(), TIMESTAMP), [[("x", 1)], None]),
    "struct": (pa.struct([INSIDE]), pa.struct([INSIDE.with_type(TIMESTAMP)]), [{"at": 1}, None]),
    "span": (pa.duration("us"), pa.duration("us"), [1, None]),
    "nothing": (pa.null(), pa.null(), [None, None]),
}


def test_batches_get_the_types_of_tables() -> None:
    """Also where they are slices, or have no rows."""
    given = pa.record_batch({name: pa.array(values, type_) for name, (type_, _, values) in COLUMNS.items()})
    for batch in from_spark([given, given.slice(1), given.slice(0, 0)]):
        assert batch.schema.types == [type_ for _, type_, _ in COLUMNS.values()]
        batch.validate(full=True)
    whole, *_ = from_spark([given])
    for name, (_, type_, values) in COLUMNS.items():
        assert whole.column(name).to_pylist() == pa.array(values, type_).to_pylist()


def test_batches_of_the_types_of_tables_are_not_touched() -> None:
    given = pa.record_batch({"at": pa.array([0], TIMESTAMP)})
    assert [batch is given for batch in from_spark([given])] == [True]


@pytest.mark.parametrize("type_", [BERLIN, pa.duration("us"), pa.time64("ns"), pa.list_(BERLIN), pa.null()])
def test_rows_of_other_types_are_told_apart(type_: pa.DataType) -> None:
    values = {pa.list_(BERLIN): [[1], [2], [1]], pa.null(): [None] * 3}.get(type_, [1, 2, 1])
    first, second, third = row_hashes([pa.array(values, type_)], 3).to_pylist()
    assert first == third
    assert (first == second) == (values[0] == values[1])


def test_rows_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(SchemaError, match="large_string; cast it"):
        row_hashes([pa.array(["a"], pa.large_string())], 1)


def test_rows_of_a_plan_leave_the_active_session_as_it_is(spark: SparkSession) -> None:
    """Also those that a session with its settings leaves to tasks."""
    key = "spark.sql.execution.arrow.localRelationThreshold"
    before, schema = spark.conf.get(key), StructType([StructField("id", LongType())])
    for threshold in (before, "0b"):
        spark.conf.set(key, threshold)
        try:
            assert local_rows(spark, pa.table({"id": [1, 2]}), schema).size() == 2
            found = SparkSession.getActiveSession()
            assert found is not None
            assert found._jsparkSession.equals(spark._jsparkSession)
        finally:
            spark.conf.set(key, before)


@pytest.mark.spark
def test_rows_of_no_batch_at_all_are_a_frame_without_rows(spark: SparkSession) -> None:
    """Of an array of times PySpark 4.3 makes an error of its own."""
    rows = pa.table({"times": pa.chunked_array([], pa.list_(pa.timestamp("us", "UTC")))})
    assert frame_of_rows(spark, rows, StructType.fromDDL("times ARRAY<TIMESTAMP>")).collect() == []
