"""Columns of TIME: what a table gives is what Spark's own table of the same rows gives."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import planner
from upsert import types
from upsert.catalog.catalog import Catalog
from upsert.spark_formats import register
from upsert.spark_table import FORMAT, table_for_spark
from upsert.store.table import Table

pytestmark = pytest.mark.spark

SEED = random.randrange(2**32)
ROWS = 60


@dataclass(frozen=True)
class OfType:
    """A type of columns, and what is done with its values.

    Attributes:
        arrow: the type in which values are given to ``Table.write``.
        values: numbers of its unit: limits and others.
        literals: some of its values in SQL, to filter by.
    """

    sql: str
    arrow: pa.DataType
    values: Sequence[int]
    literals: Sequence[str]

    def array(self, numbers: Sequence[int | None]) -> pa.Array:
        width = pa.int32() if self.arrow.bit_width == 32 else pa.int64()
        return pa.array(numbers, width).cast(self.arrow)

    def drawn(self, rng: random.Random) -> int | None:
        return rng.choice([None, *self.values, rng.randrange(self.values[0], self.values[-1] + 1)])


DAY = 86_400
TYPES: Mapping[str, OfType] = {
    "t0": OfType("TIME(0)", pa.time32("s"), [0, 36_000, DAY - 1], ["TIME '10:00'"]),
    "t3": OfType("TIME(3)", pa.time32("ms"), [0, 36_000_001, DAY * 1000 - 1], ["TIME '10:00:00.001'"]),
    "t6": OfType(
        "TIME",
        pa.time64("us"),
        [0, 36_000_000_001, DAY * 10**6 - 1],
        ["TIME '10:00:00.000001'", "TIME '23:59:59'"],
    ),
    "t9": OfType(
        "TIME(9)",
        pa.time64("ns"),
        [0, 36_000_000_000_001, 36_000_000_000_999, 36_000_000_001_000, DAY * 10**9 - 1],
        ["TIME '10:00:00.000000001'", "TIME '10:00:00.000000999'", "TIME '10:00:00.000001'"],
    ),
}


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, with TIME, which Spark 4.3 has behind an option."""
    register(spark)
    spark.conf.set("spark.sql.timeType.enabled", "true")
    yield spark
    spark.conf.unset("spark.sql.timeType.enabled")


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(tmp_path / "warehouse", optimize=planner.optimize)


def drawn_rows(rng: random.Random, ids: Sequence[int]) -> pa.Table:
    columns = {name: of.array([of.drawn(rng) for _ in ids]) for name, of in TYPES.items()}
    return pa.table({"id": pa.array(ids, pa.int64()), **columns})


def by_id(rows: pa.Table) -> dict[int, tuple[int | None, ...]]:
    """The rows as numbers of their types' units."""
    numbers = [
        column.cast(types.in_spark(column.type)).cast(pa.int64()).to_pylist() for column in rows.columns
    ]
    return {row[0]: row[1:] for row in zip(*numbers, strict=True)}


def as_spark_has(session: SparkSession, rows: pa.Table) -> DataFrame:
    casts = (f"CAST({name} AS {of.sql}) AS {name}" for name, of in TYPES.items())
    return session.createDataFrame(table_for_spark(rows)).selectExpr("id", *casts)


def shown(rows: DataFrame) -> list[tuple[Any, ...]]:
    """The rows, their values as Spark writes them."""
    rows = rows.toDF(*(f"c{number}" for number in range(len(rows.columns))))
    texts = (f"CAST({name} AS STRING)" for name in rows.columns)
    return [tuple(row) for row in rows.selectExpr(*texts).collect()]


def created(catalog: Catalog, name: str, with_: str = "WITH ('bucket' = '2')") -> Table:
    columns = ", ".join(f"{column} {of.sql}" for column, of in TYPES.items())
    catalog.sql(f"CREATE TABLE {name} (id BIGINT, {columns}, PRIMARY KEY (id) NOT ENFORCED) {with_}")
    return catalog.table(name)


@pytest.mark.parametrize("file_format", ["arrow", "parquet", "orc", "avro"])
def test_a_table_gives_what_spark_s_own_table_gives(
    catalog: Catalog, session: SparkSession, tmp_path: Path, file_format: str
) -> None:
    """Random rows, written as Arrow and by Spark, some keys again: the same rows, filtered and in order."""
    print("seed", SEED)
    rng = random.Random(SEED)
    table = created(catalog, "t", f"WITH ('bucket' = '2', 'file.format' = '{file_format}')")
    model: dict[int, tuple[int | None, ...]] = {}
    for part in range(3):
        rows = drawn_rows(rng, rng.sample(range(ROWS), ROWS // 2))
        if part % 2:
            as_spark_has(session, rows).write.format(FORMAT).option("path", table.path).mode("append").save()
        else:
            table.write(rows)
        model |= by_id(rows)
    assert by_id(table.snapshot().scan()) == model
    if file_format != "arrow":
        return
    catalog.sql("SELECT * FROM t", session).df.write.parquet(str(tmp_path / "own"))
    session.read.parquet(str(tmp_path / "own")).createOrReplaceTempView("own")
    assert by_id(session.table("own").toArrow()) == model
    for name, of in TYPES.items():
        operators = [rng.choice(["=", "<>", "<", "<=", ">", ">="]) for _ in of.literals]
        conditions = [
            f"{name} {operator} {one}" for operator, one in zip(operators, of.literals, strict=True)
        ]
        for where in conditions:
            query = f"SELECT {name}, count(*), min(id) FROM %s WHERE {where} GROUP BY {name} ORDER BY {name}"
            own = shown(session.sql(query % "own"))
            assert shown(catalog.sql(query % "t", session).df) == own, query


@pytest.mark.parametrize("key", TYPES)
def test_values_are_keys_by_which_rows_are_replaced_looked_up_and_told_apart(
    catalog: Catalog, session: SparkSession, key: str
) -> None:
    """Spark and the store agree on the bucket of a key, and on what is one key."""
    of = TYPES[key]
    columns = f"k {of.sql}, v BIGINT, PRIMARY KEY (k) NOT ENFORCED, INDEX (v)"
    catalog.sql(f"CREATE TABLE keyed ({columns}) WITH ('bucket' = '4')")
    table = catalog.table("keyed")
    numbers = list(range(len(of.values)))
    rows = pa.table({"k": of.array(of.values), "v": pa.array(numbers, pa.int64())})
    table.write(rows)
    doubled = f"SELECT CAST(k AS {of.sql}) AS k, v + 100 AS v FROM {{rows}}"
    again = session.sql(doubled, rows=session.createDataFrame(table_for_spark(rows)))
    again.write.format(FORMAT).option("path", table.path).mode("append").save()
    found = table.snapshot().scan().sort_by("v")
    assert found.column("v").to_pylist() == [number + 100 for number in numbers]
    assert found.column("k").combine_chunks().equals(of.array(of.values))
    looked_up = table.snapshot().lookup(["k"], rows.select(["k"]))
    assert sorted(looked_up.column("v").to_pylist()) == [number + 100 for number in numbers]


def test_a_stream_of_changes_carries_them_into_another_table(
    catalog: Catalog, session: SparkSession, tmp_path: Path
) -> None:
    """An update shows with both values; a row that is written as it was shows not at all."""
    rng = random.Random(SEED)
    print("seed", SEED)
    source, sink = created(catalog, "source"), created(catalog, "sink")

    def follow() -> None:
        changes = session.readStream.format(FORMAT).option("path", source.path).load()
        writer = catalog.write_changes(changes, "sink")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query.start().awaitTermination()

    rows = drawn_rows(rng, range(ROWS))
    for some in (rows, rows.slice(0, 5), drawn_rows(rng, range(0, ROWS, 3))):
        source.write(some)
        follow()
        assert by_id(sink.snapshot().scan()) == by_id(source.snapshot().scan())
