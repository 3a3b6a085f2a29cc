"""Columns of Spark's plans by id, name and type, which are read from what Spark shows of a column."""

import pytest
from pyspark.sql import SparkSession

from planner.spark.catalyst import Catalyst

pytestmark = pytest.mark.spark

NAMES = ("a", "", "a#1", "b#5: int", "b#5: int#6: bigint", "#", "two\nlines", "Größe", "struct<x: int>")

VALUES = (
    "1",
    "1L",
    "CAST(3 AS DECIMAL(7, 2))",
    "INTERVAL '1' DAY",
    "make_interval(1)",
    "'a' COLLATE UTF8_LCASE",
    "NULL",
    "TIMESTAMP_NTZ '2020-01-01 00:00:00'",
    "X'00'",
    "map('a', array(1))",
    "array(1)",
    "named_struct('x#1: int', 1)",
    "array(named_struct('#2: int', 1))",
    "map('a', named_struct('x', named_struct('y#3: string', 'z')))",
)


@pytest.mark.parametrize("name", NAMES)
def test_columns_have_the_id_name_and_type_that_spark_gives_them(spark: SparkSession, name: str) -> None:
    """Whatever a name looks like; also of aliases, which Spark shows in another way, and of wide structs."""
    wide = ", ".join(f"'c{number}', {number}" for number in range(40))
    values = (*VALUES, f"named_struct({wide})")
    df = spark.sql(f"SELECT {', '.join(f'{value} AS `{name}`' for value in values)}")
    catalyst = Catalyst(df)
    plan = catalyst.analyzed(df)
    aliases, columns = catalyst.projected(plan), catalyst.output(plan)
    assert len(aliases) == len(columns) == len(values)
    for alias, column in zip(aliases, columns, strict=True):
        expected = int(column.exprId().id()), name, str(column.dataType().simpleString())
        assert catalyst.attribute(column) == expected
        assert catalyst.attribute(alias) == expected


def test_schema_of_a_node_has_its_columns_with_what_is_attached_to_them(spark: SparkSession) -> None:
    """Types, whether a value may be NULL, and comments are those of the columns."""
    df = spark.createDataFrame(
        [], "a INT NOT NULL COMMENT 'one', s STRUCT<x: ARRAY<STRING>, y: DECIMAL(7, 2)>"
    )
    catalyst = Catalyst(df)
    plan = catalyst.analyzed(df)
    assert catalyst.schema(plan) == catalyst.struct(catalyst.output(plan)) == df.schema
