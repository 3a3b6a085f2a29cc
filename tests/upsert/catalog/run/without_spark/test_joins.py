"""Queries of joined tables that need no Spark, beside what Spark gives for the same text."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.upsert.catalog.run.test_without_spark import UTC_SESSION, kinds, rows_of, same, without
from upsert.catalog.catalog import Catalog
from upsert.catalog.results import Frame
from upsert.catalog.run.jobs import SparkNeededError

pytestmark = pytest.mark.spark

OF_TYPE = {
    "id": "BIGINT",
    "small": "SMALLINT",
    "tiny": "TINYINT",
    "whole": "INT",
    "flag": "BOOLEAN",
    "ratio": "DOUBLE",
    "single": "FLOAT",
    "price": "DECIMAL(10, 2)",
    "name": "STRING",
    "short": "CHAR(5)",
    "raw": "BINARY",
    "day": "DATE",
    "at": "TIMESTAMP",
    "local": "TIMESTAMP_NTZ",
    "clock": "TIME(6)",
    "span": "INTERVAL DAY TO SECOND",
    "tags": "ARRAY<STRING>",
}
TABLES = {"a": 20, "b": 15, "c": 6, "d": 0}
"""How many rows each has."""

PREDICATES = (
    *("{t}.id > 0", "{t}.id IN (1, 2, 3, -4, 5)", "{t}.small > {u}.tiny", "{t}.name = 'b'", "{t}.flag"),
    *("{t}.ratio IS NULL", "NOT {t}.name LIKE 'a%'", "coalesce({t}.small, 0) = 0", "{t}.whole <=> {u}.whole"),
    *("{t}.id = {u}.id OR {u}.flag", "{t}.ratio >= 0 AND {u}.price < 2", "{t}.id BETWEEN -9 AND 9"),
)
JOINS = ("JOIN", "INNER JOIN", "LEFT JOIN", "LEFT OUTER JOIN", "RIGHT JOIN", "FULL JOIN", "FULL OUTER JOIN")
HALVES = ("LEFT SEMI JOIN", "SEMI JOIN", "LEFT ANTI JOIN", "ANTI JOIN")


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    """A catalog of four tables, of which one is empty."""
    spark.conf.set("spark.sql.timeType.enabled", "true")  # a NULL in place of a TIME is a literal to Spark
    catalog = Catalog(tmp_path_factory.mktemp("shop"))
    catalog.context.settings = UTC_SESSION
    random = Random(8)
    for table, count in TABLES.items():
        listed = ", ".join(f"{name} {type_}" for name, type_ in OF_TYPE.items())
        keys = {"a": ", PRIMARY KEY (id) NOT ENFORCED", "b": ", INDEX (small)"}.get(table, "")
        catalog.sql(f"CREATE TABLE {table} ({listed}, own_{table} INT{keys})")
        given, schema = kinds(random, count), catalog.table(table).schema
        given["id"] = random.sample(range(-count, count), count)
        given[f"own_{table}"] = [random.randrange(3) for _ in range(count)]
        columns = {name: pa.array(given[name], schema.type_of(name)) for name in schema.names}
        catalog.table(table).write(pa.table(columns))
    yield catalog
    spark.conf.unset("spark.sql.timeType.enabled")


def random_query(random: Random) -> tuple[str, bool]:
    """A query over two to four tables, and whether it says the order of its rows."""
    tables = random.choices([*TABLES], [5, 4, 3, 1], k=random.choice([2, 2, 2, 3, 4]))
    called = [f"t{number}" for number in range(len(tables))]
    text, seen, is_using = f"FROM {tables[0]} t0", ["t0"], random.random() < 0.3
    for table, name in zip(tables[1:], called[1:], strict=True):
        how = random.choice(JOINS + HALVES)
        columns = random.sample([*OF_TYPE][:-1], random.choice([1, 1, 2]))
        if is_using:
            by = f"USING ({', '.join(columns)})"
        else:
            pairs = [[f"{random.choice(seen)}.{column}", f"{name}.{column}"] for column in columns]
            by = "ON " + " AND ".join(" = ".join(random.sample(pair, 2)) for pair in pairs)
        text += f" {how} {table} AS {name} {by}"
        seen += [] if how in HALVES else [name]
    if random.random() < 0.5:
        part = " AND ".join(random.sample(PREDICATES, random.choice([1, 1, 2])))
        text += " WHERE " + part.format(t=random.choice(seen), u=random.choice(seen))
    names = [f"{random.choice(seen)}.{random.choice([*OF_TYPE])}" for _ in range(3)]
    if random.random() < 0.25:
        return f"SELECT {names[0]}, count(*), max({seen[-1]}.id) {text} GROUP BY {names[0]}", False
    if random.random() < 0.3:
        return f"SELECT {random.choice(['*', seen[-1] + '.*', seen[0] + '.*, ' + names[0]])} {text}", False
    items = [f"{name} AS c{number}" for number, name in enumerate(dict.fromkeys(names))]
    items = [item for item in items if ".tags" not in item] or ["t0.id"]
    if random.random() < 0.3:
        by = ", ".join(f"{place} {random.choice(['', 'DESC'])}" for place in range(1, len(items) + 1))
        text += f" ORDER BY {by}{random.choice(['', ' LIMIT 5 OFFSET 1'])}"
        return f"SELECT {', '.join(items)} {text}", True
    return f"SELECT {', '.join(items)} {text}", False


def outcome(found: Any) -> tuple[list[str], list[pa.DataType], list[str]]:
    rows = rows_of(found)
    columns = zip(*(column.to_pylist() for column in rows.columns), strict=True)
    return rows.schema.names, rows.schema.types, same([*columns])


def check(catalog: Catalog, text: str, spark: SparkSession, *, is_ordered: bool) -> bool:
    """Whether a query is answered without Spark; then its outcome is Spark's."""
    try:
        found = outcome(without(catalog, text))
    except SparkNeededError:
        return False
    given = catalog.sql(text, spark)
    assert isinstance(given, Frame), text
    names, types, rows = outcome(given)
    assert found[:2] == (names, types), text
    assert found[2] == rows if is_ordered else sorted(found[2]) == sorted(rows), text
    return True


@pytest.mark.parametrize("seed", range(40))
def test_joins_are_sparks(spark: SparkSession, shop: Catalog, seed: int) -> None:
    text, is_ordered = random_query(Random(seed))
    assert check(shop, text, spark, is_ordered=is_ordered) or "USING" in text or "max(" in text, text
