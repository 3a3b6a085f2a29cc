"""``FOR SYSTEM_TIME AS OF PROCTIME()`` over tables whose rows a web service or PostgreSQL has."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import planner
from planner.refusals import PlanError
from tests.deltajoin.lookup.batch_endpoint import BatchEndpoint
from tests.local_postgres import PASSWORD, LocalPostgres
from upsert import Catalog
from upsert.errors import ConfigurationError, SchemaError

pytestmark = pytest.mark.spark

RATES = pa.table({"cur": ["eur", "usd"], "rate": [2.0, 3.0]})
ORDERS = [(1, "eur", 10), (2, "usd", 10), (3, "chf", 10), (4, None, 10), (5, "eur", 20)]


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> Catalog:
    """Orders as a stream of files, whose rows are only added."""
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    catalog.sql(
        "CREATE TABLE orders (id BIGINT, cur STRING, n INT, t TIMESTAMP, proc AS PROCTIME(), "
        f"WATERMARK FOR t AS t) WITH ('connector' = 'parquet', 'path' = '{tmp_path}/orders')"
    )
    catalog.sql(f"SET 'checkpoint.location' = '{tmp_path}/checkpoints'")
    add(spark, catalog, *ORDERS)
    return catalog


def add(spark: SparkSession, catalog: Catalog, *orders: tuple[int, str | None, int]) -> None:
    df = spark.createDataFrame(orders, "id BIGINT, cur STRING, n INT").selectExpr(
        "*", "TIMESTAMP '2024-01-01 00:00:00' + make_interval(0, 0, 0, 0, 0, CAST(id AS INT)) AS t"
    )
    df.coalesce(1).write.mode("append").parquet(catalog.connected("orders").options["path"])  # type: ignore[union-attr]


def over_http(catalog: Catalog, endpoint: BatchEndpoint, **options: str) -> str:
    url = endpoint.serve(RATES, ["cur"])
    given = {"connector": "http", "url": url, "header.authorization": f"Bearer {PASSWORD}", **options}
    pairs = ", ".join(f"'{key}' = '{text}'" for key, text in given.items())
    catalog.sql(
        f"CREATE TABLE rates (cur STRING, rate DOUBLE, PRIMARY KEY (cur) NOT ENFORCED) WITH ({pairs})"
    )
    return url


def follow(catalog: Catalog, spark: SparkSession, statement: str) -> None:
    """Run a streaming INSERT until it has written what there is."""
    catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
    running: Any = catalog.sql(statement, spark)
    try:
        running.query.processAllAvailable()
    finally:
        running.query.stop()
        catalog.sql("SET 'execution.runtime-mode' = 'batch'")


def rows(catalog: Catalog, table: str) -> list[tuple[Any, ...]]:
    found = catalog.table(table).snapshot().scan().sort_by("id")
    return [tuple(row.values()) for row in found.to_pylist()]


PRICED = (
    "SELECT o.id, o.n * r.rate AS price FROM orders AS o LEFT JOIN rates FOR SYSTEM_TIME AS OF o.proc AS r "
    "ON o.cur = r.cur"
)


def test_orders_look_their_rates_up_over_http(
    catalog: Catalog, spark: SparkSession, endpoint: BatchEndpoint
) -> None:
    """Through a restart: a rate that changes later leaves the rows alone that are out."""
    url = over_http(catalog, endpoint, **{"lookup.max-retries": "2"})
    catalog.sql("CREATE TABLE priced (id BIGINT, price DOUBLE)")
    endpoint.behave(first=[[503, {}, "not yet"]])
    follow(catalog, spark, f"INSERT INTO priced {PRICED}")
    before = [(1, 20.0), (2, 30.0), (3, None), (4, None), (5, 40.0)]
    assert rows(catalog, "priced") == before
    seen = endpoint.seen()
    keys = sorted(f'{{"cur": "{cur}"}}' for cur in ("chf", "eur", "usd"))
    assert sorted(seen["asked"]) == sorted(keys * 2)  # and the retry
    assert seen["headers"]["Authorization"] == f"Bearer {PASSWORD}"
    endpoint.change(url, pa.table({"cur": ["eur"], "rate": [7.0]}), ["cur"])
    add(spark, catalog, (6, "eur", 1))
    follow(catalog, spark, f"INSERT INTO priced {PRICED}")
    assert rows(catalog, "priced") == [*before, (6, 7.0)]


def test_a_table_of_postgresql_is_written_and_looked_up(
    catalog: Catalog, spark: SparkSession, postgres: LocalPostgres
) -> None:
    """By its key, by another column, and through a view; the same in a batch and in a stream."""
    postgres.run(
        "DROP TABLE IF EXISTS pg_rates CASCADE; CREATE TABLE pg_rates (cur text PRIMARY KEY, rate float8, "
        "n int); CREATE VIEW pg_view AS SELECT cur, rate * 10 AS rate FROM pg_rates"
    )
    where = f"'connector' = 'postgres', 'url' = '{postgres.dsn}', 'lookup.cache' = 'PARTIAL', "
    cached = "'lookup.partial-cache.expire-after-write' = '1 h'"
    columns = "cur STRING, rate DOUBLE, n INT, PRIMARY KEY (cur) NOT ENFORCED"
    catalog.sql(f"CREATE TABLE rates ({columns}) WITH ({where} 'table-name' = 'pg_rates', {cached})")
    columns = "cur STRING, rate DOUBLE, PRIMARY KEY (cur) NOT ENFORCED"
    catalog.sql(f"CREATE TABLE tens ({columns}) WITH ({where} 'table-name' = 'pg_view', {cached})")
    catalog.sql("INSERT INTO rates VALUES ('eur', 2, 10), ('usd', 3, 20)", spark)
    with pytest.raises(ConfigurationError, match="has a view of this name, whose rows are only looked up"):
        catalog.sql("INSERT INTO tens VALUES ('eur', 2)", spark)
    query = (
        "SELECT o.id, r.cur, t.rate, s.rate AS other FROM orders AS o "
        "JOIN rates FOR SYSTEM_TIME AS OF PROCTIME() AS r ON o.n = r.n AND r.rate < 5 "
        "LEFT JOIN tens FOR SYSTEM_TIME AS OF PROCTIME() AS t ON o.cur = t.cur "
        "LEFT JOIN rates FOR SYSTEM_TIME AS OF PROCTIME() AS s ON t.cur = s.cur"
    )
    expected = [
        (1, "eur", 20.0, 2.0),
        (2, "eur", 30.0, 3.0),
        (3, "eur", None, None),
        (4, "eur", None, None),
        (5, "usd", 20.0, 2.0),
    ]
    found: Any = catalog.sql(query, spark)
    assert sorted(map(tuple, found.df.collect())) == expected
    catalog.sql("CREATE TABLE joined (id BIGINT, cur STRING, rate DOUBLE, other DOUBLE)")
    follow(catalog, spark, f"INSERT INTO joined {query}")
    assert rows(catalog, "joined") == expected
    postgres.run("DROP VIEW pg_view; DROP TABLE pg_rates")


@pytest.mark.long
def test_a_watermark_goes_through_a_lookup(
    catalog: Catalog, spark: SparkSession, endpoint: BatchEndpoint
) -> None:
    over_http(catalog, endpoint)
    catalog.sql("CREATE TABLE counts (w TIMESTAMP, n BIGINT)")
    add(spark, catalog, (100, "eur", 1))
    statement = (
        "INSERT INTO counts SELECT window.start, count(*) FROM (SELECT o.t, r.rate FROM orders AS o JOIN "
        "rates FOR SYSTEM_TIME AS OF PROCTIME() AS r ON o.cur = r.cur) GROUP BY window(t, '1 minute')"
    )
    follow(catalog, spark, statement)
    found = catalog.table("counts").snapshot().scan().to_pylist()
    # that of the last minute is still open
    assert sorted((row["w"].minute, row["n"]) for row in found) == [(1, 1), (2, 1), (5, 1)]


def test_what_cannot_be_looked_up_is_refused(
    catalog: Catalog, spark: SparkSession, endpoint: BatchEndpoint
) -> None:
    over_http(catalog, endpoint)
    catalog.sql("CREATE TABLE priced (id BIGINT, price DOUBLE)")
    at = "rates FOR SYSTEM_TIME AS OF PROCTIME() AS r"
    refusals: list[tuple[str, type[Exception], str]] = [
        ("SELECT * FROM rates", ConfigurationError, "table 'rates'.* are only looked up by key"),
        (f"SELECT * FROM {at}", PlanError, "would read all of its rows; join a stream"),
        (
            f"SELECT o.id, r.rate FROM orders o JOIN {at} ON o.n > r.rate",
            PlanError,
            "equates no column of it",
        ),
        (
            f"SELECT o.id FROM {at} LEFT JOIN orders o ON o.cur = r.cur",
            PlanError,
            "only looked up; write an INNER",
        ),
        ("INSERT INTO rates VALUES ('chf', 1)", ConfigurationError, "only looked up, got rows to write"),
        (
            f"CREATE MATERIALIZED VIEW v AS SELECT o.id FROM orders o JOIN {at} ON o.cur = r.cur",
            Exception,
            "orders",
        ),
        ("SELECT * FROM rates FOR SYSTEM_TIME AS OF TIMESTAMP '2024-01-01'", SchemaError, "has no snapshots"),
    ]
    for statement, error, said in refusals:
        with pytest.raises(error, match=said) as refused:
            catalog.sql(statement, spark)
        assert PASSWORD not in str(refused.value)
    with pytest.raises(ConfigurationError, match="has no snapshots, got 3"):
        catalog.read(spark, "rates", snapshot=3)
    endpoint.behave(first=[[400, {}, f"no {PASSWORD} here"]] * 9)
    with pytest.raises(Exception, match=r"HttpLookup http://127\.0\.0\.1:\d+/lookup/\d+: .* 400") as failed:
        catalog.sql(PRICED, spark).df.collect()  # type: ignore[attr-defined]
    assert PASSWORD not in str(failed.value)
    catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
    explained: Any = catalog.sql(f"EXPLAIN INSERT INTO priced {PRICED}", spark)
    shown = "\n".join(explained.rows.column(0).to_pylist())
    assert "looks the table 'rates' up (http) when it is" in shown
    plan = catalog.sql(PRICED, spark).df._jdf.queryExecution().toString()  # type: ignore[attr-defined]
    assert PASSWORD not in shown + plan
