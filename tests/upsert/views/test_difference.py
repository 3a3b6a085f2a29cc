"""Changes between two states: applied to the old rows they give the new ones, value by value.

Rows are collected for that up to a number of bytes, however wide they turn out to be.
"""

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from upsert.spark.batches import arrow_of
from upsert.views.difference import SAME_KEY, collected_up_to, difference

pytestmark = pytest.mark.spark

SCHEMA = "k INT, v DOUBLE, m MAP<STRING, FLOAT>, s STRUCT<a: ARRAY<DOUBLE>, b: BINARY>, t TIMESTAMP"
NAN = float("nan")
OLD = [
    (1, 0.0, {"a": 1.0, "b": -0.0}, ([NAN, None], b"x"), None),
    (2, NAN, {}, None, None),
    (3, None, None, ([], None), None),
    (None, 1.0, None, None, None),
    (5, 5.0, None, None, None),
]
SAME = [
    (1, 0.0, {"b": -0.0, "a": 1.0}, ([NAN, None], b"x"), None),  # a map has no order
    (2, NAN, {}, None, None),
]
NEW = [
    *SAME,
    (3, None, None, (None, None), None),
    (None, -1.0, None, None, None),
    (6, 6.0, None, None, None),
]


def frame(spark: SparkSession, rows: list[Any]) -> DataFrame:
    return spark.createDataFrame(rows, SCHEMA)


def values(df: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(map(repr, row)) for row in df.collect()]


def test_with_a_key_each_key_has_one_change(spark: SparkSession) -> None:
    changes = difference(frame(spark, OLD), frame(spark, NEW), ["k"])
    kinds = {row["k"]: row["_row_kind"] for row in changes.collect()}
    assert kinds == {3: "+U", None: "+U", 5: "-D", 6: "+I"}
    (deleted,) = changes.where("k = 5").collect()
    assert deleted["v"] == 5.0


def test_without_a_key_rows_come_and_go_as_often_as_they_differ(spark: SparkSession) -> None:
    old, new = [*OLD, OLD[1], OLD[4]], [*NEW, NEW[1], NEW[1], NEW[4]]
    changes = difference(frame(spark, old), frame(spark, new), [])
    counted: Counter[Any] = Counter()
    for *row, kind in values(changes):
        counted[tuple(row)] += 1 if kind == "'+I'" else -1
    wanted = Counter(values(frame(spark, new)))
    wanted.subtract(values(frame(spark, old)))
    # of equal maps either text may come
    shown = {row[:2]: n for row, n in wanted.items() if n and row[0] != "1"}
    assert {row[:2]: n for row, n in counted.items() if n} == shown


def test_what_is_stored_differently_is_a_change(spark: SparkSession) -> None:
    pairs = (0.0, -0.0), (-0.0, 0.0), (1.0, NAN), (None, NAN)
    old, new = (
        spark.createDataFrame([*enumerate(one)], "k INT, v DOUBLE") for one in zip(*pairs, strict=True)
    )
    keyed = difference(old, new, ["k"]).collect()
    assert sorted((row["k"], row["_row_kind"]) for row in keyed) == [(k, "+U") for k in range(4)]
    others = difference(old, new, []).collect()
    assert sorted((row["k"], row["_row_kind"]) for row in others) == [
        (k, kind) for k in range(4) for kind in ("+I", "-D")
    ]
    assert difference(new, new, ["k"]).unionAll(difference(old, old, [])).isEmpty()


def test_two_rows_of_one_key_are_no_rows_of_a_view(spark: SparkSession) -> None:
    old = frame(spark, OLD)
    for twice in (OLD[0], (1, 7.0, None, None, None)):
        with pytest.raises(PySparkException, match=SAME_KEY):
            difference(old, frame(spark, [*OLD, twice]), ["k"]).collect()


def test_nothing_changes_an_empty_view(spark: SparkSession) -> None:
    empty = spark.createDataFrame(pa.table({"k": pa.array([], pa.int32())}))
    assert difference(empty, empty, ["k"]).count() == difference(empty, empty, []).count() == 0


TEXT = "CASE WHEN id > 5 THEN repeat('x', 50000) END"


@pytest.mark.parametrize(
    "value",
    [
        TEXT,
        f"map('key', array(NULL, named_struct('text', CAST({TEXT} AS BINARY))))",
        pytest.param("CASE WHEN id > 5 THEN array_repeat(id, 6250) END", marks=pytest.mark.long),
    ],
)
def test_rows_that_are_wide_are_not_all_collected(
    spark: SparkSession, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def measured(df: DataFrame) -> pa.Table:
        found = arrow_of(df)
        sizes.append(found.nbytes)
        return found

    monkeypatch.setattr("upsert.views.difference.arrow_of", measured)
    rows = spark.range(300, numPartitions=2).selectExpr("id", f"{value} AS `a value`")
    assert collected_up_to(rows.limit(301), 1_000_000) is None
    assert sizes[0] < 3_000_000  # of 15 MB; Spark takes twice what values need
    few = rows.where("id < 20")
    found = collected_up_to(few.limit(301), 1_000_000)
    assert found is not None
    assert found.sort_by("id").to_pylist() == few.toArrow().sort_by("id").to_pylist()


def test_rows_of_a_fixed_width_are_collected_as_they_are(spark: SparkSession) -> None:
    rows = spark.range(10).selectExpr("id", "id > 4 AS is_late", "DATE '2024-01-01' AS day")
    found = collected_up_to(rows.limit(11), 1)
    assert found is not None
    assert found.num_rows == 10
    assert found.column_names == ["id", "is_late", "day"]
