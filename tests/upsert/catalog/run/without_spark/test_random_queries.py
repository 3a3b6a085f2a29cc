"""Random queries that need no Spark, beside what Spark gives for the same text over the same rows."""

import os
import re
from collections.abc import Iterator
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.upsert.catalog.run.without_spark.beside_spark import (
    UTC_SESSION,
    kinds,
    rows_of,
    same,
    view_of,
    without,
)
from tests.upsert.catalog.run.without_spark.random_queries import COLUMNS, TABLES, Query, random_query
from upsert.catalog.catalog import Catalog
from upsert.catalog.run.jobs import SparkNeededError
from upsert.catalog.run.without_spark.columns import UnknownColumnError
from upsert.errors import SchemaError

pytestmark = pytest.mark.spark

SEED = int(os.environ.get("SEED", "0"))


@pytest.fixture(scope="module")
def stored(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    """A catalog of tables, of which one is empty, whose rows are also views of Spark's."""
    spark.conf.set("spark.sql.timeType.enabled", "true")
    catalog = Catalog(tmp_path_factory.mktemp("stored"))
    catalog.context.settings = UTC_SESSION
    random = Random(8)
    for table, number in TABLES.items():
        listed = ", ".join(f"{name} {type_}" for name, type_ in COLUMNS.items())
        index = ", INDEX (small)" if table == "b" else ""
        catalog.sql(f"CREATE TABLE {table} ({listed}, own_{table} INT{index})")
        given, schema = kinds(random, number), catalog.table(table).schema
        given["id"] = [random.choice([None, *range(-9, 9)]) for _ in range(number)]
        given["fixed"] = [random.choice([None, "a", "tea", ""]) for _ in range(number)]
        given[f"own_{table}"] = [random.randrange(3) for _ in range(number)]
        rows = pa.table({name: pa.array(given[name], schema.type_of(name)) for name in schema.names})
        for half in (rows.slice(0, number // 2), rows.slice(number // 2)):
            catalog.table(table).write(half)
        view_of(catalog, table, spark, table)
    yield catalog
    for table in TABLES:
        spark.catalog.dropTempView(table)
    spark.conf.unset("spark.sql.timeType.enabled")


def by_spark(spark: SparkSession, text: str) -> pa.Table | None:
    """The rows; None where Spark has an error."""
    try:
        return spark.sql(text).toArrow()
    except PySparkException:
        return None


def here(catalog: Catalog, text: str) -> pa.Table | None:
    """The rows; None for a column that is in no table."""
    try:
        return rows_of(without(catalog, text))
    except UnknownColumnError:
        return None


def check(query: Query, found: pa.Table | None, given: pa.Table | None) -> None:
    """The names, types and rows of both, in their order where the query says it."""
    if found is None or given is None:
        assert found is given, query.text
        return
    assert found.schema.names == given.schema.names, query.text
    assert found.schema.types == given.schema.types, query.text
    rows, expected = listed(found), listed(given)
    if query.is_ordered:  # by all columns, in which -0.0 and 0.0 are equal
        rows, expected = (
            [re.sub(r"(?<![\d.])-0\.0(?!\d)", "0.0", row) for row in one] for one in (rows, expected)
        )
    assert rows == expected if query.is_ordered else sorted(rows) == sorted(expected), query.text


def listed(rows: pa.Table) -> list[str]:
    """Rows as texts; there may be several columns of one name."""
    columns: list[list[Any]] = [column.to_pylist() for column in rows.columns]
    return same(list(zip(*columns, strict=True)))


def compare(spark: SparkSession, catalog: Catalog, seed: int, number: int) -> int:
    """How many of so many random queries needed no Spark."""
    done = 0
    for step in range(number):
        query = random_query(Random(seed + step))
        try:
            found = here(catalog, query.text)
        except (SparkNeededError, SchemaError):
            continue  # sqlglot does not read all that Spark does
        check(query, found, by_spark(spark, query.text))
        done += 1
    return done


def test_random_queries_are_sparks(spark: SparkSession, stored: Catalog) -> None:
    assert compare(spark, stored, seed=100, number=75) > 15


@pytest.mark.long
@pytest.mark.minutes
def test_many_random_queries_are_sparks(spark: SparkSession, stored: Catalog) -> None:
    assert compare(spark, stored, seed=SEED * 1_000_000, number=6000) > 1000
