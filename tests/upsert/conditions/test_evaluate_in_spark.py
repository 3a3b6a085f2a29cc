"""Every condition of `test_evaluate.py`, and its expected answer, asked of Spark itself."""

import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from deltajoin.expressions import Call, Cast, Condition, Const, Field
from tests.upsert.conditions.test_evaluate import CASES, COLUMNS, ROWS, WRAPPING
from upsert import types

pytestmark = pytest.mark.spark

INFIX = ("=", "<=>", "!=", "<", "<=", ">", ">=", "and", "or", "+", "-", "*", "like")


def literal(value: Any, type_: pa.DataType) -> str:
    name = types.sql_name(type_)
    match value:
        case None:
            return f"cast(null as {name})"
        case float() if math.isinf(value):
            return f"cast('{'-' * (value < 0)}Infinity' as {name})"
        case str():
            return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
        case bytes():
            return f"X'{value.hex()}'"
    return f"cast('{value}' as {name})"


def sql(condition: Condition) -> str:
    match condition:
        case Field(ref):
            return ref.column
        case Const(value, type_):
            return literal(value, type_)
        case Cast(value, type_):
            return f"cast({sql(value)} as {types.sql_name(type_)})"
        case Call(op, args):
            return called(op, [sql(arg) for arg in args])


def called(op: str, args: list[str]) -> str:
    op = op.removeprefix("wrapping ")
    if op in INFIX:
        return f"({f' {op} '.join(args)})"
    if op == "neg":
        return f"(-{args[0]})"
    if op == "in":
        return f"({args[0]} in ({', '.join(args[1:])}))"
    if op == "case":
        pairs = [f"when {args[i]} then {args[i + 1]}" for i in range(0, len(args) - 1, 2)]
        return f"(case {' '.join(pairs)}{f' else {args[-1]}' if len(args) % 2 else ''} end)"
    return f"{op}({', '.join(args)})"


def test_spark_gives_the_same_answers(spark: SparkSession) -> None:
    check(spark, CASES)


def test_spark_without_ansi_mode_gives_the_same_answers(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        check(spark, WRAPPING)
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")


def check(spark: SparkSession, cases: Sequence[tuple[Condition, list[Any]]]) -> None:
    table = pa.table({**COLUMNS, "row": pa.array(range(ROWS))})
    spark.createDataFrame(table).createOrReplaceTempView("conditions")
    columns = ", ".join(sql(condition) for condition, _ in cases)
    rows = spark.sql(f"SELECT {columns} FROM conditions ORDER BY row").collect()
    spark.catalog.dropTempView("conditions")
    answers = [[row[number] for row in rows] for number in range(len(cases))]
    different = [
        f"{condition}: {expected} here, {answer} in Spark"
        for (condition, expected), answer in zip(cases, answers, strict=True)
        if answer != expected
    ]
    assert different == []
