"""Streaming statements over tables whose columns get other names and types, and statements that change."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import planner
from upsert import Catalog, own_error
from upsert.catalog.results import Running
from upsert.errors import ConfigurationError

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("ended_queries")]

JOIN = "INSERT INTO result SELECT id, amount, name FROM orders JOIN products USING (sku)"
JOIN_ANEW = "INSERT INTO result SELECT id, price, name FROM orders JOIN products ON product = sku"


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> Catalog:
    """Orders of products, and a table for their join."""
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    script(
        catalog,
        spark,
        "CREATE TABLE orders (id BIGINT, sku INT, amount INT, PRIMARY KEY (id) NOT ENFORCED, INDEX (sku));"
        "CREATE TABLE products (sku INT, name STRING, PRIMARY KEY (sku) NOT ENFORCED);"
        "CREATE TABLE result (id BIGINT, amount BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED);"
        "SET 'execution.runtime-mode' = 'streaming'; SET 'execution.trigger' = 'available-now'",
    )
    orders = {
        "id": [1, 2, 3],
        "sku": pa.array([1, 2, 1], pa.int32()),
        "amount": pa.array([10, 20, 30], pa.int32()),
    }
    catalog.table("orders").write(pa.table(orders))
    catalog.table("products").write(pa.table({"sku": pa.array([1, 2], pa.int32()), "name": ["one", "two"]}))
    return catalog


def script(catalog: Catalog, spark: SparkSession, statements: str) -> None:
    for statement in filter(None, statements.split(";")):
        catalog.sql(statement, spark=spark)


def batch(catalog: Catalog, spark: SparkSession, statements: str) -> None:
    script(catalog, spark, f"SET 'execution.runtime-mode' = 'batch'; {statements}")
    catalog.sql("SET 'execution.runtime-mode' = 'streaming'")


def run(catalog: Catalog, spark: SparkSession, statement: str, checkpoint: str = "first") -> str:
    """Run a statement until it has read all; its checkpoint."""
    catalog.sql(f"SET 'checkpoint.location' = '{checkpoint_of(catalog, checkpoint)}'")
    running = catalog.sql(statement, spark=spark)
    assert isinstance(running, Running)
    running.query.awaitTermination()
    return running.checkpoint


def checkpoint_of(catalog: Catalog, name: str) -> str:
    return str(Path(catalog.warehouse).parent / name)


def rows(catalog: Catalog, table: str = "result") -> set[tuple[object, ...]]:
    return {tuple(row.values()) for row in catalog.table(table).snapshot().scan().to_pylist()}


def test_a_running_query_goes_on_and_so_does_its_checkpoint_with_new_names_and_types(
    catalog: Catalog, spark: SparkSession
) -> None:
    location = checkpoint_of(catalog, "first")
    script(catalog, spark, f"SET 'execution.trigger' = '0 s'; SET 'checkpoint.location' = '{location}'")
    running = catalog.sql(JOIN, spark=spark)
    assert isinstance(running, Running)
    running.query.processAllAvailable()
    alter = (
        "ALTER TABLE orders RENAME COLUMN sku TO product; ALTER TABLE orders RENAME COLUMN amount TO price;"
    )
    script(catalog, spark, f"{alter} ALTER TABLE orders MODIFY price BIGINT")
    change = "INSERT INTO orders VALUES (1, 2, 11), (4, 1, 40)"
    batch(catalog, spark, f"{change}; UPDATE products SET name = 'zwei' WHERE sku = 2")
    running.query.processAllAvailable()
    expected = {(1, 11, "zwei"), (2, 20, "zwei"), (3, 30, "one"), (4, 40, "one")}
    assert rows(catalog) == expected
    running.query.stop()
    batch(catalog, spark, f"INSERT INTO orders VALUES (5, 2, {2**40}); DELETE FROM orders WHERE id = 3")
    catalog.sql("SET 'execution.trigger' = 'available-now'")
    run(catalog, spark, JOIN_ANEW)
    assert rows(catalog) == expected - {(3, 30, "one")} | {(5, 2**40, "zwei")}


@pytest.mark.parametrize(
    ("columns", "query"),
    [
        ("sku INT, n BIGINT", "SELECT sku, sum(amount) AS n FROM orders GROUP BY sku"),
        pytest.param(*("id BIGINT, n BIGINT", "SELECT id, amount AS n FROM orders"), marks=pytest.mark.long),
    ],
)
def test_a_column_that_is_replaced_ends_the_queries_that_use_it_and_no_other(
    catalog: Catalog, spark: SparkSession, columns: str, query: str
) -> None:
    """A sum would keep the old values, and a copy too."""
    key = columns.split()[0]
    script(catalog, spark, f"CREATE TABLE sink ({columns}, PRIMARY KEY ({key}) NOT ENFORCED)")
    script(catalog, spark, "CREATE TABLE skus (id BIGINT, sku INT, PRIMARY KEY (id) NOT ENFORCED)")
    run(catalog, spark, f"INSERT INTO sink {query}")
    run(catalog, spark, "INSERT INTO skus SELECT id, sku FROM orders", "second")
    script(catalog, spark, "ALTER TABLE orders DROP COLUMN amount; ALTER TABLE orders ADD COLUMN amount INT")
    batch(catalog, spark, "INSERT INTO orders VALUES (1, 2, 7)")
    with pytest.raises(StreamingQueryException, match="column 'amount' must be the one that the checkpoint"):
        run(catalog, spark, f"INSERT INTO sink {query}")
    run(catalog, spark, "INSERT INTO skus SELECT id, sku FROM orders", "second")
    assert rows(catalog, "skus") == {(1, 2), (2, 2), (3, 1)}


def test_sums_of_a_column_that_has_become_wider_are_refused_with_what_to_do(
    catalog: Catalog, spark: SparkSession
) -> None:
    """They lie in the state in the narrow type."""
    script(catalog, spark, "CREATE TABLE sink (sku INT, n BIGINT, PRIMARY KEY (sku) NOT ENFORCED)")
    query = "INSERT INTO sink SELECT sku, sum(amount) AS n FROM orders GROUP BY sku"
    run(catalog, spark, query)
    script(catalog, spark, "ALTER TABLE orders MODIFY amount BIGINT")
    batch(catalog, spark, "INSERT INTO orders VALUES (1, 2, 7)")
    with pytest.raises(StreamingQueryException) as raised:
        run(catalog, spark, query)
    assert "has become wider" in str(own_error(raised.value))


def test_a_changed_query_is_told_what_differs_and_goes_on_from_where_the_first_has_got_to(
    catalog: Catalog, spark: SparkSession
) -> None:
    first = run(catalog, spark, JOIN)
    batch(catalog, spark, "INSERT INTO orders VALUES (1, 1, 11), (4, 1, 40), (5, 1, 1)")
    dear = f"{JOIN} WHERE amount > 10"
    with pytest.raises(StreamingQueryException, match=r"new is filter orders: amount > 10; .*'start-from'"):
        run(catalog, spark, dear)
    before = rows(catalog)
    hint = f"/*+ OPTIONS('start-from' = '{first}') */"
    changed = dear.replace("result", f"result {hint}", 1)
    run(catalog, spark, changed, "second")
    # (1, 10) did not pass the new filter, so only its new row is written; the others were not read again
    assert rows(catalog) == before - {(1, 10, "one")} | {(1, 11, "one"), (4, 40, "one")}
    batch(catalog, spark, "INSERT INTO orders VALUES (6, 2, 60)")
    run(catalog, spark, changed, "second")
    assert (6, 60, "two") in rows(catalog)
    assert len(rows(catalog)) == len(before) + 2


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT id, amount, 'x' FROM orders", "must consist of delta joins .* got Changelog"),
        ("SELECT sku, sum(amount), 'x' FROM orders JOIN products USING (sku) GROUP BY sku", "got Sig"),
    ],
)
def test_what_is_no_delta_join_cannot_go_on_from_another_checkpoint(
    catalog: Catalog, spark: SparkSession, query: str, said: str
) -> None:
    hint = "/*+ OPTIONS('start-from' = '/nowhere') */"
    with pytest.raises(ConfigurationError, match=said):
        run(catalog, spark, f"INSERT INTO result {hint} {query}")


def test_a_batch_has_nothing_to_go_on_from(catalog: Catalog, spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="option 'start-from' must go with a stream"):
        batch(catalog, spark, "INSERT INTO result /*+ OPTIONS('start-from' = 'x') */ SELECT 1, 2, 'x'")
    catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
    df = catalog.read_changes(spark, "orders")
    with pytest.raises(ConfigurationError, match="start_from needs a catalog that plans delta joins"):
        Catalog(catalog.warehouse).write_changes(df, "result", start_from="x")
