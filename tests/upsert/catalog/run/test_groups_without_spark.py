"""Queries of groups of rows that need no Spark, beside what Spark gives for the same text."""

from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.upsert.catalog.run.test_without_spark import (
    ORDERED,
    filled,
    needs_spark,
    rows_of,
    same,
    without,
)
from upsert.catalog.catalog import Catalog
from upsert.catalog.results import Found, Frame

pytestmark = pytest.mark.spark

__all__ = ["filled"]

NUMBERS = ("id", "small", "tiny", "whole", "ratio", "single", "price", "large")


def both(catalog: Catalog, text: str, spark: SparkSession) -> tuple[list[Any], list[Any]]:
    """Names, types and rows of both, or the name of the error."""
    given = catalog.sql(text, spark)
    assert isinstance(given, Frame), text
    expected, found = given.rows, rows_of(without(catalog, text))
    assert found.schema.names == expected.schema.names, text
    assert found.schema.types == expected.schema.types, text
    return same(expected.to_pylist()), same(found.to_pylist())


def random_query(random: Random) -> tuple[str, bool]:
    """A query, and whether it says the order of all of its rows."""
    keys = random.sample(ORDERED, random.choice([0, 1, 1, 2]))
    functions = [random.choice(["count(*)", "COUNT(1)"])] if random.random() < 0.4 or not keys else []
    for _ in range(random.randrange(4)):
        name = random.choice(["count", "sum", "avg", "min", "max", "count(DISTINCT"])
        column = random.choice(NUMBERS if name in ("sum", "avg") else ORDERED)
        functions.append(f"{name}{'' if '(' in name else '('}{' ' if '(' in name else ''}{column})")
    names = [f"c{number}" for number in range(len(keys))]
    items = [f"{key} AS {name}" for key, name in zip(keys, names, strict=True)] + functions
    text = f"SELECT {', '.join(items)} FROM kinds"
    if random.random() < 0.4:
        text += random.choice([" WHERE id > 0", " WHERE flag", " WHERE small + tiny > 0", " WHERE id = 1000"])
    if keys:
        by = [
            random.choice([key, name, str(at + 1)])
            for at, (key, name) in enumerate(zip(keys, names, strict=True))
        ]
        text += f" GROUP BY {', '.join(by)}"
        if random.random() < 0.3:
            text += random.choice([" HAVING count(*) > 1", " HAVING max(id) >= 3 AND count(*) < 9"])
        if random.random() < 0.4:
            hows = [random.choice(["", " DESC", " NULLS LAST", " DESC NULLS FIRST"]) for _ in names]
            text += f" ORDER BY {', '.join(map(''.join, zip(names, hows, strict=True)))}"
            return text + random.choice(["", " LIMIT 3", " LIMIT 4 OFFSET 2"]), True
    return text, False


@pytest.mark.parametrize("seed", range(40))
def test_groups_are_sparks(spark: SparkSession, filled: Catalog, seed: int) -> None:
    text, is_ordered = random_query(Random(seed))
    if needs_spark(filled, text):
        assert "min(" in text or "max(" in text or "sum(large)" in text, text
        return
    expected, found = both(filled, text, spark)
    assert found == expected if is_ordered else sorted(found) == sorted(expected), text


@pytest.mark.parametrize("setting", ["groupByAliases", "groupByOrdinal", "orderByOrdinal"])
def test_a_session_says_what_numbers_and_names_mean(
    spark: SparkSession, filled: Catalog, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setattr(filled.context, "gives_rows", True)
    text = "SELECT flag, count(*) AS n FROM kinds GROUP BY flag ORDER BY 2"
    assert isinstance(filled.sql(text, spark), Found)
    spark.conf.set(f"spark.sql.{setting}", "false")
    try:
        assert isinstance(filled.sql(text, spark), Frame)
    finally:
        spark.conf.unset(f"spark.sql.{setting}")
