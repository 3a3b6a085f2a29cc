"""What the text of a query tells of the columns and rows it reads is enough: Spark gives the same rows."""

import os
from collections.abc import Mapping, Sequence
from random import Random

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.upsert.sql.random_texts import TABLES, Texts
from upsert.sql.columns import parse_columns
from upsert.sql.predicates import pushed
from upsert.sql.query import QueryText, Reference
from upsert.store.predicate import parse_where

pytestmark = pytest.mark.spark

SEED = int(os.environ.get("SEED", "0"))
SEEDS = (19, 65, 80, 105, 122, 126)
"""Some whose queries Spark takes, and of whose tables less is read."""
SCHEMAS = {name: parse_columns(columns) for name, columns in TABLES.items()}


def cell(random: Random, type_: pa.DataType) -> object:
    if random.random() < 0.15:
        return None
    if pa.types.is_struct(type_):
        return {field.name: cell(random, field.type) for field in type_}
    if pa.types.is_list(type_):
        return [random.randrange(4) for _ in range(random.randrange(3))]
    if pa.types.is_string(type_):
        return random.choice(["x", "y", "", "X", "1"])
    if pa.types.is_floating(type_):
        return random.choice([0.0, -0.0, 1.0, 2.0, float("nan")])
    return random.randrange(4)


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> Mapping[str, pa.Table]:
    random = Random(SEED)
    found = {}
    for name, schema in SCHEMAS.items():
        columns = [
            pa.array([18_262 + random.randrange(2) for _ in range(7)], pa.int32()).cast(pa.date32())
            if pa.types.is_date(field.type)
            else pa.array([cell(random, field.type) for _ in range(7)], field.type)
            for field in schema.arrow
        ]
        found[name] = pa.table(columns, schema=schema.arrow)
    return found


def read(reference: Reference, rows: Mapping[str, pa.Table]) -> pa.Table:
    """The columns and rows that are read for a table, as its text tells."""
    name = reference.name.lower()
    schema, table = SCHEMAS[name], rows[name]
    where = pushed(reference.where, schema, "UTC")
    kept = parse_where(where, schema).apply(table) if where else table
    named = [c for c in schema.names if reference.columns is None or c.lower() in reference.columns]
    found = kept.select(named or schema.names[:1])
    # Spark takes no table without a chunk
    return pa.Table.from_batches([pa.RecordBatch.from_pylist(found.to_pylist(), schema=found.schema)])


def result(session: SparkSession, text: str) -> tuple[list[str], list[str]]:
    df = session.sql(text)
    return df.columns, sorted(map(repr, df.collect()))


@pytest.mark.parametrize(
    "seeds",
    [SEEDS, pytest.param(range(SEED, SEED + 1_000), marks=[pytest.mark.long, pytest.mark.minutes])],
    ids=["some", "many"],
)
def test_a_query_has_the_same_rows_over_what_is_read(
    spark: SparkSession, rows: Mapping[str, pa.Table], seeds: Sequence[int]
) -> None:
    session, compared, less = spark.newSession(), list[int](), list[int]()
    for name, table in rows.items():
        session.createDataFrame(table).createOrReplaceTempView(name)
    for seed in seeds:
        text = Texts(Random(seed)).query()
        try:
            expected = result(session, text)
        except (PySparkException, Py4JJavaError):
            continue  # a name that is of no column or of two, a cast of a text, an error within Spark
        query = QueryText.of(text)
        tables = [read(reference, rows) for reference in query.references]
        for number, table in enumerate(tables):
            session.createDataFrame(table).createOrReplaceTempView(f"read_{number}")
        over = query.over([f"read_{number}" for number in range(len(tables))]).text
        assert result(session, over) == expected, f"SEED={seed}: {text}"
        compared.append(seed)
        shapes = [rows[one.name.lower()].shape for one in query.references]
        less += [seed] if shapes != [table.shape for table in tables] else []
    assert len(compared) > len(seeds) // 20
    assert len(less) > len(seeds) // 40
