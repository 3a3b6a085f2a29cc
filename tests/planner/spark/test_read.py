"""Expressions as the planner reads them: what they are given beside their arguments tells them apart."""

import re
import threading
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from planner.plan.expressions import walk_expression
from planner.plan.nodes import Aggregate, Generate, Join, Plan, Project
from planner.plan.trees import walk
from planner.spark.catalyst import Catalyst
from planner.spark.read import read_plan

pytestmark = pytest.mark.spark

ROWS = "(SELECT array(1) AS l, named_struct('p', 1, 'q', 2) AS s, '1' AS x)"

OTHERS = (
    ("s.p", "s.q"),
    ("transform(l, (y, n) -> y - n)", "transform(l, (y, n) -> n - y)"),
    ("transform(l, y -> transform(l, z -> y))", "transform(l, y -> transform(l, z -> z))"),
    ("try_cast(x AS INT)", "CAST(x AS INT)"),
    ("from_json(x, 't DATE', map('dateFormat', 'dd/MM'))", "from_json(x, 't DATE', map('dateFormat', 'd'))"),
    ("mode() WITHIN GROUP (ORDER BY x)", "mode() WITHIN GROUP (ORDER BY x DESC)"),
)
"""Expressions whose arguments are the same, or called the same, and which give others."""


def read(spark: SparkSession, query: str) -> Plan:
    df = spark.sql(query)
    return read_plan(Catalyst(df), df)


@pytest.mark.parametrize(("one", "other"), OTHERS)
def test_expressions_are_equal_where_they_give_the_same(spark: SparkSession, one: str, other: str) -> None:
    """Also one with variables of other names; by this a GROUP BY is found among the columns."""
    renamed = re.sub(r"\b[nyz]\b", r"\g<0>_2", one)
    plan = read(spark, f"SELECT {one} AS a, {one} AS b, {renamed} AS c, {other} AS d FROM {ROWS}")
    assert isinstance(plan, Project | Aggregate)
    a, b, c, d = (output.value for output in plan.outputs)
    assert a == b == c
    assert a != d


def test_python_functions_of_one_name_are_others(spark: SparkSession) -> None:
    one, other = (F.udf(function, "int") for function in (lambda v: v + 1, lambda v: v - 1))
    df = spark.sql("SELECT id AS x FROM range(1)").select(one("x"), one("x"), other("x"))
    plan = read_plan(Catalyst(df), df)
    assert isinstance(plan, Project)
    a, b, c = (output.value for output in plan.outputs)
    assert a == b
    assert a != c


def test_a_generator_that_gives_a_row_in_any_case_is_another_one(spark: SparkSession) -> None:
    """In the text of a plan too, by which hidden tables are told apart."""
    plans = (read(spark, f"SELECT 1 FROM {ROWS} LATERAL VIEW {how} explode(l) e") for how in ("", "OUTER"))
    inner, outer = (next(node for node in walk(plan) if isinstance(node, Generate)) for plan in plans)
    assert str(inner).startswith("Generate Explode")
    assert str(outer).startswith("Generate outer Explode")


def test_plans_are_read_in_few_calls(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call takes some 0.1 ms of both processes; plans have thousands of expressions, joins many columns."""
    client, here, calls = spark.sparkContext._gateway._gateway_client, threading.get_ident(), 0
    send = client.send_command

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += threading.get_ident() == here  # another thread says which objects are gone
        return send(*args, **options)

    tables = " JOIN ".join(
        f"(SELECT {n} AS n, id AS a, id AS b, id AS c FROM range(1)) t{n}" for n in range(5)
    )
    df = spark.sql(f"SELECT {' + '.join(f't0.a * {n}L' for n in range(50))} AS sum FROM {tables}")
    monkeypatch.setattr(client, "send_command", counted)
    for _ in range(2):  # what there is to know of classes is known then
        calls = 0
        plan = read_plan(Catalyst(df), df)
    assert isinstance(plan, Project)
    parts = sum(1 for _ in walk_expression(plan.outputs[0].value))
    columns = sum(len(one.columns) for one in walk(plan) if isinstance(one, Join))
    assert calls < 5 * parts + 3 * columns + 100
