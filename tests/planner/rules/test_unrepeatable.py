"""What gives another value some other time is refused wherever a query over changes computes it."""

from collections.abc import Mapping

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

import planner
from planner import PlanError
from upsert.spark.version import PYSPARK

pytestmark = pytest.mark.spark

CLOCK = (
    "now()",
    "current_timestamp()",
    "current_date()",
    "curdate()",
    "current_time()",
    "localtimestamp()",
    "unix_timestamp()",
    "date_add(current_date(), 1)",
    *(() if PYSPARK == "4.2" else ("CAST(TIME '12:00' AS TIMESTAMP)",)),
    "to_timestamp('now')",
    "to_timestamp_ntz('now')",
    "to_timestamp_ltz('today')",
    "try_to_timestamp('tomorrow')",
    "to_date('now')",
    "try_to_date('yesterday')",
    "date('now')",
    "timestamp('today')",
    "CAST(' Now ' AS TIMESTAMP)",
    "CAST(lower('NOW') AS TIMESTAMP)",
    "CAST(left('nowadays', 3) AS DATE)",
    "CAST(nullif('today UTC', 'x') AS TIMESTAMP_NTZ)",
    "TRY_CAST(concat('to', 'day') AS DATE)",
    "(at > 'now')",
    "(at BETWEEN 'yesterday' AND 'tomorrow')",
)
SESSION = (
    "current_user()",
    "user()",
    "session_user()",
    "current_catalog()",
    "current_database()",
    "current_schema()",
    "current_timezone()",
    "version()",
    "upper(current_user())",
)
CHANCE = (
    "rand()",
    "randn(3)",
    "random()",
    "randstr(3)",
    "uniform(1, 5)",
    "uuid()",
    "shuffle(array(1, 2))",
    "spark_partition_id()",
    "monotonically_increasing_id()",
    "input_file_name()",
    "input_file_block_start()",
    "reflect('java.util.UUID', 'randomUUID')",
    "aes_encrypt(note, '0000111122223333')",
    "aes_encrypt(note, '0000111122223333', 'CBC')",
)
PLACES = {
    "projection": "SELECT order_id, {} AS c FROM orders",
    "filter": "SELECT order_id FROM orders WHERE {} IS NOT NULL",
    "join condition": "SELECT order_id FROM orders o JOIN products p "
    "ON o.product_id = p.product_id AND {} IS NOT NULL",
    "group key": "SELECT {} AS c, count(*) AS n FROM orders GROUP BY 1",
    "aggregate": "SELECT product_id, count({}) AS n FROM orders GROUP BY product_id",
    "FILTER of an aggregate": "SELECT product_id, count(*) FILTER (WHERE {} IS NOT NULL) AS n "
    "FROM orders GROUP BY product_id",
    "HAVING": "SELECT product_id, count(*) AS n FROM orders GROUP BY product_id HAVING {} IS NOT NULL",
    "union": "SELECT {} AS c FROM orders UNION ALL SELECT {} AS c FROM orders",
    "generator": "SELECT explode(array({})) AS c FROM orders",
}
AT_THE_SIDE = ("current_user()", "to_timestamp('now')", "rand()")
"""One of each kind is asked for in every place, all in a projection and in a filter."""


CASES = (
    *((place, one) for place in ("projection", "filter") for one in (*CLOCK, *SESSION, *CHANCE)),
    *((place, one) for place in PLACES for one in AT_THE_SIDE if place not in ("projection", "filter")),
)
REASONS = (
    "reads the clock",
    "is another one in another session",
    "is not deterministic",
    "draws a vector",
    "NON_DETERMINISTIC",  # Spark itself refuses chance in a join condition and below an aggregate
    "AGGREGATE_FUNCTION_WITH_NONDETERMINISTIC_EXPRESSION",
)
FIXED = (
    "TIMESTAMP 'now'",
    "DATE 'today'",
    "to_timestamp('epoch')",
    "CAST('epoch' AS DATE)",
    "to_timestamp('2013-01-01')",
    "to_timestamp('now', 'yyyy')",
    "CAST(note AS TIMESTAMP)",
    "CAST('now' AS STRING)",
    "hour(at)",
    "date_format(at, 'HH')",
    "aes_encrypt(note, '0000111122223333', 'ECB')",
    "aes_encrypt(note, '0000111122223333', 'CBC', 'PKCS', '0000111122223333')",
    "hash(note)",
    "typeof(note)",
)
"""What is settled when Spark analyses the query, or is computed from the row alone."""


@pytest.mark.parametrize(("place", "one"), CASES)
def test_what_gives_another_value_some_other_time_is_refused(
    place: str, one: str, spark: SparkSession, changes: Mapping[str, DataFrame]
) -> None:
    assert changes
    with pytest.raises((PlanError, AnalysisException)) as refused:
        planner.optimize(spark.sql(PLACES[place].replace("{}", one)))
    assert any(reason in str(refused.value) for reason in REASONS)


def test_the_remedy_for_the_session_is_a_constant(
    spark: SparkSession, changes: Mapping[str, DataFrame]
) -> None:
    assert changes
    with pytest.raises(PlanError) as refused:
        planner.optimize(spark.sql("SELECT * FROM orders WHERE note = current_user()"))
    assert str(refused.value) == (
        "CurrentUser(…) is another one in another session, so a row over the changes of 'orders' could not "
        "be deleted with the values of its insert; write its value into the query as a constant"
    )


def test_what_is_settled_with_the_query_is_taken(
    spark: SparkSession, changes: Mapping[str, DataFrame]
) -> None:
    assert changes
    columns = ", ".join(f"{one} AS c{number}" for number, one in enumerate(FIXED))
    assert planner.optimize(spark.sql(f"SELECT order_id, {columns} FROM orders")).columns[-1] == "_row_kind"
