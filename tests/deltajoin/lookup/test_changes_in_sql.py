"""Joins of changes with tables that are only looked up, by their definitions: ``latest``."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import planner
from planner.refusals import PlanError
from tests.deltajoin.lookup.batch_endpoint import BatchEndpoint
from tests.helpers import multiset
from tests.local_postgres import LocalPostgres
from upsert import Catalog
from upsert.catalog.results import Running
from upsert.errors import UpsertError

pytestmark = pytest.mark.spark

CURRENCIES = ("eur", "usd", "chf", "yen")


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> Iterator[Catalog]:
    """Orders whose changes are followed, in a session that looks up what is newest."""
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    catalog.sql(
        "CREATE TABLE orders (id BIGINT, cur STRING, n INT, PRIMARY KEY (id) NOT ENFORCED, INDEX (cur))"
    )
    catalog.sql("CREATE TABLE priced (id BIGINT, n INT, price DOUBLE, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.sql(f"SET 'checkpoint.location' = '{tmp_path}/checkpoints'")
    catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
    spark.conf.set("spark.deltajoin.consistency", "latest")
    yield catalog
    spark.conf.unset("spark.deltajoin.consistency")


def over_http(catalog: Catalog, endpoint: BatchEndpoint, rates: dict[str, float]) -> str:
    url = endpoint.serve(table_of(rates), ["cur"])
    catalog.sql(
        "CREATE TABLE rates (cur STRING, rate DOUBLE, PRIMARY KEY (cur) NOT ENFORCED) "
        f"WITH ('connector' = 'http', 'url' = '{url}')"
    )
    return url


def table_of(rates: dict[str, float]) -> pa.Table:
    return pa.table({"cur": list(rates), "rate": pa.array(list(rates.values()), pa.float64())})


def follow(catalog: Catalog, spark: SparkSession, statement: str) -> None:
    """Run a streaming INSERT until it has written what there is."""
    running = catalog.sql(statement, spark)
    assert isinstance(running, Running)
    assert running.query is not None
    try:
        running.query.processAllAvailable()
    finally:
        running.query.stop()


def test_changes_look_their_rates_up(catalog: Catalog, spark: SparkSession, endpoint: BatchEndpoint) -> None:
    """Random changes and rates, with a restart between: a row has the rate that it found when it changed."""
    seed = 17
    print(f"seed {seed}")
    random = Random(seed)
    rates = {"eur": 2.0, "usd": 3.0}
    url = over_http(catalog, endpoint, rates)
    orders: dict[int, tuple[str, int]] = {}
    expected: dict[int, tuple[int, float | None]] = {}
    statement = (
        "INSERT INTO priced SELECT o.id, o.n, o.n * r.rate FROM orders AS o LEFT JOIN rates AS r "
        "ON o.cur = r.cur WHERE o.n < 7"
    )
    for _ in range(3):
        changed = {random.randrange(12) for _ in range(6)}
        gone = {number for number in changed if number in orders and random.random() < 0.4}
        for number in gone:
            del orders[number]
            expected.pop(number, None)
        if gone:
            catalog.table("orders").delete([("id", "in", sorted(gone))])
        new = {number: (random.choice(CURRENCIES), random.randrange(10)) for number in sorted(changed - gone)}
        orders |= new
        write(catalog, *((number, cur, n) for number, (cur, n) in new.items()))
        for number, (cur, n) in new.items():
            expected.pop(number, None)
            if n < 7:
                expected[number] = (n, n * rates[cur] if cur in rates else None)
        follow(catalog, spark, statement)
        rows = catalog.table("priced").snapshot().scan().to_pylist()
        assert {row["id"]: (row["n"], row["price"]) for row in rows} == expected
        rates |= {random.choice(CURRENCIES): float(random.randrange(1, 9))}
        endpoint.change(url, table_of(rates), ["cur"])


def test_a_dataframe_looks_up_in_two_tables(
    catalog: Catalog, spark: SparkSession, endpoint: BatchEndpoint, postgres: LocalPostgres, tmp_path: Path
) -> None:
    """One after the other, below a filter on what was found: an update that fails it takes the row away."""
    over_http(catalog, endpoint, {"eur": 2.0, "usd": 3.0})
    postgres.run("DROP TABLE IF EXISTS pg_names; CREATE TABLE pg_names (n int PRIMARY KEY, name text)")
    postgres.run("INSERT INTO pg_names VALUES (1, 'one'), (2, 'two')")
    catalog.sql(
        "CREATE TABLE names (n INT, name STRING, PRIMARY KEY (n) NOT ENFORCED) "
        f"WITH ('connector' = 'postgres', 'url' = '{postgres.dsn}', 'table-name' = 'pg_names')"
    )
    catalog.sql(
        "CREATE TABLE named (number BIGINT, name STRING, rate DOUBLE, PRIMARY KEY (number) NOT ENFORCED)"
    )
    orders, rates, names = (
        catalog.read_changes(spark, "orders"),
        catalog.read(spark, "rates"),
        catalog.read(spark, "names"),
    )
    joined = orders.join(rates, "cur").join(names, "n", "left").where("rate > 2.5 OR name = 'one'")
    df = joined.selectExpr("id AS number", "name", "rate")
    (first, second) = planner.explain(df).joins
    assert (first.form, second.form) == ("lookup", "lookup")
    assert "its row replaces the one before by (id), which the sink must be keyed by" in first.hints[0]
    query = catalog.write_changes(planner.optimize(df), "named").option(
        "checkpointLocation", str(tmp_path / "c")
    )
    running = query.start()
    try:
        write(catalog, (1, "eur", 1), (2, "usd", 2), (3, "usd", 7), (4, "chf", 1), (5, "eur", 2))
        running.processAllAvailable()
        assert found(catalog) == {(1, "one", 2.0), (2, "two", 3.0), (3, None, 3.0)}
        write(catalog, (1, "eur", 2), (5, "usd", 1), (2, "chf", 1))
        running.processAllAvailable()
    finally:
        running.stop()
    assert found(catalog) == {(3, None, 3.0), (5, "one", 3.0)}


def write(catalog: Catalog, *orders: tuple[int, str, int]) -> None:
    ids, currencies, counts = zip(*orders, strict=True)
    catalog.table("orders").write(pa.table({"id": ids, "cur": currencies, "n": pa.array(counts, pa.int32())}))


def found(catalog: Catalog) -> set[tuple[Any, ...]]:
    return set(multiset(catalog.table("named").snapshot().scan()))


def test_what_cannot_be_looked_up_for_changes_is_refused(
    catalog: Catalog, spark: SparkSession, endpoint: BatchEndpoint
) -> None:
    over_http(catalog, endpoint, {"eur": 2.0})
    catalog.sql("CREATE TABLE keyless (cur STRING)")
    catalog.sql("CREATE TABLE counts (cur STRING, n BIGINT, PRIMARY KEY (cur) NOT ENFORCED)")
    join = "FROM orders AS o JOIN rates AS r ON o.cur = r.cur"
    refusals = [
        (
            "INSERT INTO keyless SELECT r.cur FROM keyless AS o JOIN rates AS r ON o.cur = r.cur",
            "no columns that",
        ),
        (f"INSERT INTO counts SELECT r.cur, count(*) {join} GROUP BY r.cur", "which only a sink can do"),
        (f"INSERT INTO keyless SELECT r.cur {join}", "would leave replaced rows in the sink"),
        ("INSERT INTO keyless SELECT r.cur FROM rates AS r", "would read all of"),
        (
            f"INSERT INTO priced SELECT o.id, o.n, r.rate {join} JOIN orders AS p ON o.id = p.id",
            "managed tables may delete rows on both sides",
        ),
        (
            "INSERT INTO priced SELECT o.id, o.n, 1 FROM orders AS o RIGHT JOIN rates AS r ON o.cur = r.cur",
            "LEFT join",
        ),
    ]
    for statement, said in refusals:
        with pytest.raises(UpsertError, match=said):
            catalog.sql(statement, spark)
    spark.conf.unset("spark.deltajoin.consistency")
    with pytest.raises(
        PlanError, match=r"set the option consistency = 'latest' \(spark.deltajoin.consistency\)"
    ):
        catalog.sql(
            "INSERT INTO priced SELECT o.id, o.n, r.rate FROM orders AS o "
            "JOIN rates FOR SYSTEM_TIME AS OF PROCTIME() AS r ON o.cur = r.cur",
            spark,
        )
    with pytest.raises(Exception, match=r"with 'spark\.deltajoin\.consistency' = 'latest'"):
        catalog.sql(f"INSERT INTO priced SELECT o.id, o.n, r.rate {join}", spark)
