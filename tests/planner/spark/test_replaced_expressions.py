"""Expressions that Spark replaces before it runs, below a self join: Spark renews the ids of one side there.

What such an expression was written with keeps the old ids, so only its replacement says what it computes.
"""

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import planner
from tests.planner.in_steps import joined_in_steps, local, step_of, versions_of
from tests.planner.test_queries import in_one
from upsert.managed import frames
from upsert.schema import TableSchema
from upsert.store import Table

pytestmark = pytest.mark.spark

CONDITIONS = (
    "k BETWEEN 1 AND 2",
    "k NOT BETWEEN 1 AND 2",
    "k + 1 BETWEEN id AND 2 * id",
    "k BETWEEN 1 AND 3 AND v BETWEEN 0 AND 2",
    "nvl(k, 0) = 1",
    "nvl2(s, k, id) = 2",
    "ifnull(s, 'none') = 'none'",
    "nullif(k, 2) IS NULL",
    "nullif(k, id) = 2",
    "equal_null(k, 1)",
    "left(s, 1) = 'a'",
    "right(s, 1) = 'b'",
    "s ILIKE 'A%'",
    "decode(k, 1, 'one', 2, 'two', 'many') = 'two'",
    "try_add(k, 1) = 2",
    "try_divide(v, k) > 0.5",
    "extract(SECOND FROM at) = 1",
    "regexp_count(s, 'a') = 1",
)
INSIDE = tuple(c for c in CONDITIONS if not c.startswith(("right", "s ILIKE", "try_", "extract", "regexp")))
"""Those that a delta join evaluates itself, as it must below the side of an outer join."""
VALUES = (
    *CONDITIONS,
    "date_part('minute', at)",
    "try_subtract(k, id)",
    "try_multiply(k, id)",
    "try_element_at(array(k, id), 2)",
    "get(array(k, id), 1)",
    "array_size(array(k, id))",
    "array_compact(array(k, id))",
    "array_append(array(k), id)",
    "nullifzero(k)",
    "zeroifnull(k)",
    "url_encode(s)",
    "to_date(left(CAST(at AS STRING), 10))",
    "try_to_timestamp(s)",
    "to_json(struct(k, s))",
    "try_parse_url(s, 'HOST')",
    "concat_ws('-', left(s, 1), nvl(k, 0))",
    "btrim(s)",
    "typeof(nvl(k, 1))",
    "width_bucket(v, 0.0, 5.0, 4)",
    "luhn_check(s)",
    "pmod(k, nullif(id, 0))",
)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Table:
    columns = {
        "id": pa.int64(),
        "k": pa.int64(),
        "v": pa.float64(),
        "s": pa.string(),
        "at": pa.timestamp("us", "UTC"),
    }
    schema = TableSchema.of(columns, primary_key=["id"]).index("k")
    return Table.create(tmp_path_factory.mktemp("replaced") / "numbers", schema, {"bucket": "1"})


def rows_of(ids: range, shift: int) -> pa.Table:
    return pa.table(
        {
            "id": list(ids),
            "k": [(i + shift) % 4 if i % 5 else None for i in ids],
            "v": [(i * 3 + shift) % 7 / 2 for i in ids],
            "s": ["ab"[(i + shift) % 2] * (i % 3) if i % 4 else None for i in ids],
            "at": pa.array([i * 1_000_000 for i in ids], pa.timestamp("us", "UTC")),
        }
    )


def queries(inner: Sequence[str], outer: Sequence[str]) -> dict[str, str]:
    """Self joins with conditions on the renewed side, INNER and LEFT, and one with all values."""
    computed = ", ".join(f"{value} AS c{number}" for number, value in enumerate(VALUES))
    found = {
        "values": f"SELECT x.id, y.* FROM numbers x JOIN (SELECT id AS other, k AS kk, {computed} "
        "FROM numbers) y ON x.k = y.kk"
    }
    for condition in inner:
        side = f"(SELECT id, k FROM numbers WHERE {condition}) y ON x.k = y.k"
        found[f"inner: {condition}"] = f"SELECT x.id, y.id AS other FROM numbers x JOIN {side}"
    for condition in outer:
        side = f"(SELECT id, k FROM numbers WHERE {condition}) y ON x.k = y.k"
        found[f"left: {condition}"] = f"SELECT x.id, y.id AS other FROM numbers x LEFT JOIN {side}"
    return found


@pytest.mark.parametrize(
    ("inner", "outer"),
    [
        ([one for one in CONDITIONS if one not in INSIDE][::2], INSIDE[::3]),
        pytest.param(CONDITIONS, INSIDE, marks=pytest.mark.long),
    ],
    ids=["some", "all"],
)
def test_results_are_those_of_a_batch(
    spark: SparkSession, numbers: Table, inner: Sequence[str], outer: Sequence[str]
) -> None:
    """Each condition is among the values, too."""
    numbers.write(rows_of(range(1, 13), 0))
    ends = [versions_of([numbers])]
    numbers.write(rows_of(range(5, 16), 1))
    ends.append(versions_of([numbers]))
    frames.read_changes(spark, numbers.path).createOrReplaceTempView("numbers")
    texts = queries(inner, outer)
    with joined_in_steps(ends):
        optimized = {
            title: planner.optimize(spark.sql(text), strategy="force", shards=1)
            for title, text in texts.items()
        }
    found: dict[str, Counter[str]] = {title: Counter() for title in optimized}
    for title, row, kind in in_one(optimized).collect():
        found[title][row] += step_of(kind)[0].sign
    local(spark, numbers).createOrReplaceTempView("numbers")
    wanted: dict[str, Counter[str]] = {title: Counter() for title in optimized}
    for title, row, _ in in_one({title: spark.sql(text) for title, text in texts.items()}).collect():
        wanted[title][row] += 1
    net = {title: Counter({row: n for row, n in rows.items() if n}) for title, rows in found.items()}
    assert net == wanted
    assert all(wanted.values()), "a query without rows shows nothing"
