"""Every condition of `test_evaluate.py`, and its expected answer, asked of Spark itself."""

import math
from collections.abc import Sequence
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from deltajoin.expressions import Call, Cast, Condition, Const, Field, Ref
from tests.upsert.conditions.test_evaluate import CASES, COLUMNS, ROWS, WRAPPING
from upsert import types
from upsert.arrays import one_array
from upsert.conditions.evaluate import type_of, value
from upsert.errors import ConfigurationError

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


DECIMALS = [(5, 2), (12, 2), (18, 6), (20, 0), (38, 0), (38, 6), (38, 18), (38, 38)]


def random_decimals(random_: Random, count: int, digits: int, scale: int) -> pa.Array:
    def one() -> Decimal | None:
        most = 10 ** random_.randint(1, digits) - 1
        whole = random_.choice((1, -1, most, -most, random_.randint(-most, most)))
        return None if random_.random() < 0.05 else Decimal(f"{whole}E-{scale}")

    return pa.array([one() for _ in range(count)], pa.decimal128(digits, scale))


@pytest.mark.parametrize("divisor", DECIMALS)
def test_quotients_and_products_of_decimals_have_the_digits_that_spark_gives_them(
    spark: SparkSession, divisor: tuple[int, int]
) -> None:
    seed = Random().randrange(1 << 32)
    random_ = Random(seed)
    numbers = {f"a{at}": random_decimals(random_, 1_000, *type_) for at, type_ in enumerate(DECIMALS)}
    rows = pa.table({**numbers, "b": random_decimals(random_, 1_000, *divisor), "row": range(1_000)})
    spark.createDataFrame(rows).createOrReplaceTempView("decimals")
    # NULL for what is an error here, and in ANSI mode
    of = {"/": "try_divide", "rounded *": "try_multiply", "rounded +": "try_add", "rounded -": "try_subtract"}
    asked = [(op, name, f"{function}({name}, b)") for op, function in of.items() for name in numbers]
    columns = ", ".join(f"{text} AS c{at}" for at, (_, _, text) in enumerate(asked))
    answers = spark.sql(f"SELECT {columns} FROM decimals ORDER BY row").toArrow()
    spark.catalog.dropTempView("decimals")
    for at, (op, name, text) in enumerate(asked):
        answer = one_array(answers.column(at))
        fields = Field(Ref(0, name)), Field(Ref(0, "b"))
        found = computed(Call(op, (*fields, Const(None, answer.type))), rows.filter(answer.is_valid()))
        assert found is None or found.equals(answer.drop_null()), f"seed {seed}: {text}"


def computed(condition: Condition, rows: pa.Table) -> pa.Array | None:
    """What a condition gives; None for one of more digits than are computed here."""
    try:
        type_of(condition, lambda ref: rows.schema.field(ref.column).type)
    except ConfigurationError:
        return None
    return value(condition, lambda ref: one_array(rows.column(ref.column)), rows.num_rows, {})
