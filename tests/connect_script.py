"""What a client of Spark Connect does with tables, in a process of its own; prints a JSON of what came out.

The first argument is the folder of its warehouse. An exception is its class's name and text.
"""

import contextlib
import io
import json
import os
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

os.environ["SPARK_TESTING"] = "1"  # lets the server choose its port

from pyspark.sql import SparkSession

import deltajoin
import planner
import upsert
from deltajoin import DeltaJoinSpec, Side
from tests.helpers import REPOSITORY, SESSION_OPTIONS

warnings.simplefilter("ignore")
FOLDER = sys.argv[1]

builder = SparkSession.builder.remote("local[2]")
for key, value in SESSION_OPTIONS.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
catalog = upsert.Catalog(os.path.join(FOLDER, "warehouse"), optimize=planner.optimize)
results: dict[str, Any] = {}


def step(function: Callable[[], Any]) -> None:
    """Do one thing, and keep what comes out, or why it does not."""
    try:
        results[function.__name__] = function()
    except Exception as error:
        results[function.__name__] = f"{type(error).__name__}: {error}"


def sql(text: str) -> Any:
    return catalog.sql(text, spark)


def rows(name: str) -> list[dict[str, Any]]:
    table = catalog.table(name)
    return table.snapshot().scan().sort_by(table.schema.primary_key[0]).to_pylist()


def as_stream(*statements: str) -> None:
    """Run statements as streams over what is there."""
    catalog.options["execution.runtime-mode"] = "streaming"
    try:
        running = [sql(statement) for statement in statements]
        assert all(one.await_termination(120) for one in running)
    finally:
        catalog.options["execution.runtime-mode"] = "batch"


def streamed(df: Any, name: str) -> list[dict[str, Any]]:
    """Write a stream of what is there; the rows of the table then."""
    writer = catalog.write_changes(df, name).option("checkpointLocation", os.path.join(FOLDER, f"to-{name}"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert query.exception() is None
    return rows(name)


catalog.options["execution.trigger"] = "available-now"
catalog.options["checkpoint.location"] = os.path.join(FOLDER, "checkpoints")
for name, columns, more in (
    ("orders", "id BIGINT, product_id BIGINT, amount DOUBLE", ", INDEX (product_id)"),
    ("products", "product_id BIGINT, name STRING", ""),
    ("sales", "id BIGINT, name STRING, amount DOUBLE", ""),
    ("kinds", "id BIGINT, name STRING", ""),
    ("copy", "id BIGINT, product_id BIGINT, amount DOUBLE", ""),
    ("big", "id BIGINT, product_id BIGINT, amount DOUBLE", ""),
    ("by_product", "product_id BIGINT, id BIGINT", ""),
):
    key = columns.split()[0]
    sql(f"CREATE TABLE {name} ({columns}, PRIMARY KEY ({key}) NOT ENFORCED{more})")

ORDERS = Side(catalog.table("orders").path, ("id", "product_id"), ("product_id",))
PRODUCTS = Side(catalog.table("products").path, ("product_id", "name"), ("product_id",))
JOIN = """INSERT INTO sales SELECT id, upper(p.name) AS name, amount * 2 FROM orders o
          LEFT JOIN products AS p ON o.product_id = p.product_id WHERE amount < 100 AND o.id IN (1, 2, 3)"""


@step
def written() -> Any:
    sql("INSERT INTO orders VALUES (1, 1, 3.5), (2, 2, 4.0), (3, 7, 9.0), (4, 1, 500.0)")
    sql("INSERT INTO products VALUES (1, 'tea'), (2, 'coffee'), (5, 'cake')")
    sql("UPDATE orders SET amount = amount + 0.5 WHERE id % 2 = 0")
    return rows("orders")


@step
def queried() -> Any:
    joined = "SELECT o.id, p.name FROM orders o JOIN products p USING (product_id) WHERE o.amount < :most"
    result = catalog.sql(f"{joined} ORDER BY id", spark, args={"most": 100})
    return result.rows.to_pylist()


@step
def misspelt() -> Any:
    return sql("SELECT nam FROM products")


@step
def read() -> Any:
    return [
        row.asDict()
        for row in catalog.read(spark, "orders", columns=["id"], where=[("id", ">", 3)]).collect()
    ]


@step
def first_join() -> Any:
    sql("CREATE VIEW expensive AS SELECT * FROM orders WHERE amount > 100")
    as_stream(JOIN, "INSERT INTO big SELECT id, product_id, amount FROM expensive")
    return rows("sales"), rows("big")


JOINED = {
    "full_join": """SELECT id, p.name FROM orders o
                    FULL OUTER JOIN products AS p ON p.product_id = o.product_id""",
    "anti_join": """SELECT id, CAST(amount AS STRING) FROM orders
                    LEFT ANTI JOIN products p ON orders.product_id = p.product_id""",
    "three_tables": """SELECT a.id, concat(name, ' it''s, from a,b') AS `where` FROM products p
                       RIGHT JOIN orders a ON (p.product_id = a.product_id)
                       LEFT SEMI JOIN orders b ON b.product_id = p.product_id AND b.id = a.id
                       WHERE a.amount > 4 OR name IS NULL""",
}


@step
def kinds_of_joins() -> Any:
    """One or each as a stream, and as the batch query that it must be equal to."""
    joined = JOINED if "every-join" in sys.argv else {"three_tables": JOINED["three_tables"]}
    for name, query in joined.items():
        sql(f"CREATE TABLE {name} (id BIGINT, name STRING)")
        as_stream(f"INSERT INTO {name} {query}")
    streams = {name: catalog.table(name).snapshot().scan().to_pylist() for name in joined}
    batches = {
        name: sql(query).rows.rename_columns(["id", "name"]).to_pylist() for name, query in joined.items()
    }
    return [{name: sorted(map(repr, rows)) for name, rows in found.items()} for found in (streams, batches)]


@step
def next_join() -> Any:
    sql("INSERT INTO products VALUES (7, 'milk')")
    sql("DELETE FROM orders WHERE id = 1")
    sql("INSERT INTO orders VALUES (2, 2, 700.0)")
    as_stream(JOIN)
    return rows("sales")


@step
def merged() -> Any:
    sql("CREATE TABLE merged (id BIGINT, amount DOUBLE, PRIMARY KEY (id) NOT ENFORCED)")
    sql("CREATE TABLE taken AS SELECT id, amount FROM orders WHERE id < 3")
    sql("INSERT INTO merged SELECT * FROM taken")
    sql("""MERGE INTO merged m USING orders o ON m.id = o.id WHEN MATCHED THEN UPDATE SET amount = 0
           WHEN NOT MATCHED THEN INSERT (id, amount) VALUES (o.id, o.amount)""")
    return sql("SELECT * FROM merged ORDER BY id").rows.to_pylist()


@step
def viewed() -> Any:
    """A view before and after a refresh in another time zone, beside its query."""
    query = """SELECT product_id, count(*) AS n, string(timestamp_millis(min(id))) AS at
               FROM expensive GROUP BY product_id"""
    sql(f"CREATE MATERIALIZED VIEW dear (PRIMARY KEY (product_id) NOT ENFORCED) AS {query}")
    found = [rows("dear")]
    sql("INSERT INTO orders VALUES (4, 2, 900.0), (5, 5, 800.0)")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    results["refresh"] = [str(sql("REFRESH MATERIALIZED VIEW dear")) for _ in range(2)]
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    results["reason"] = catalog.view("dear").refreshes["dear"].reason
    results["state"] = sql("SHOW MATERIALIZED VIEWS").rows.to_pylist()
    results["plan"] = str(sql("EXPLAIN MATERIALIZED VIEW dear"))
    return [*found, rows("dear"), sql(f"{query} ORDER BY product_id").rows.to_pylist()]


@step
def page() -> str:
    """What the snippet of docs/connect.md prints."""
    text = (REPOSITORY / "docs" / "connect.md").read_text()
    program = re.search(r"snippet: client -->\n```python\n(.*?)```", text, re.DOTALL)
    assert program is not None
    os.chdir(FOLDER)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(
            program[1]
            .replace("sc://spark.example.org:15002", "local[2]")
            .replace('"warehouse"', '"of-the-page"'),
            {},
        )
    return printed.getvalue()


@step
def joined_by_spec() -> Any:
    changes = deltajoin.read_join(spark, DeltaJoinSpec.of("inner", ORDERS, PRODUCTS))
    return streamed(changes.selectExpr("t0_id AS id", "t1_name AS name", "_row_kind"), "kinds")


@step
def exposed() -> Any:
    catalog.expose(spark)
    spark.sql("INSERT INTO copy VALUES (9, 9, 9.0)")
    found = [row.asDict() for row in spark.sql("SELECT * FROM copy").collect()]
    catalog.unexpose(spark)
    return found, spark.catalog.tableExists("copy")


def changes_of(name: str) -> Any:
    return catalog.read_changes(spark, name)


REFUSED: dict[str, Callable[[], Any]] = {
    "a join of DataFrames": lambda: catalog.write_changes(
        changes_of("orders").join(changes_of("products"), "product_id"), "sales"
    ),
    "lost kinds": lambda: catalog.write_changes(changes_of("orders").drop("_row_kind"), "copy"),
    "chance": lambda: catalog.write_changes(
        changes_of("orders").selectExpr("id", "rand() AS x", "_row_kind"), "copy"
    ),
    "explain": lambda: planner.explain(changes_of("orders")),
    "a view of the clock": lambda: sql("CREATE MATERIALIZED VIEW v AS SELECT id, now() AS t FROM orders"),
    "a view by changes": lambda: sql(
        "CREATE MATERIALIZED VIEW v WITH ('refresh' = 'incremental') AS SELECT id FROM orders"
    ),
    "a view of two rows": lambda: sql(
        "CREATE MATERIALIZED VIEW v (PRIMARY KEY (one) NOT ENFORCED) AS SELECT 1 AS one FROM products"
    ),
    "a view that is kept": lambda: as_stream("CREATE MATERIALIZED VIEW v AS SELECT id FROM orders"),
    "a key of a plain view": lambda: as_stream(
        "INSERT INTO kinds SELECT product_id AS id, 'x' FROM expensive"
    ),
    "a join with a plain view": lambda: as_stream(
        "INSERT INTO kinds SELECT o.id, 'x' FROM orders o JOIN expensive e ON o.id = e.id"
    ),
    "a union": lambda: as_stream(
        "INSERT INTO kinds SELECT id, 'x' FROM orders UNION ALL SELECT id, 'y' FROM orders"
    ),
    "a subquery": lambda: as_stream(
        "INSERT INTO kinds SELECT id, 'x' FROM orders WHERE product_id IN (SELECT product_id FROM products)"
    ),
    "materialize": lambda: catalog.write_changes(changes_of("copy"), "copy", sink_materialize="force"),
    "an aggregate": lambda: as_stream(
        "INSERT INTO by_product SELECT product_id, count(*) FROM orders GROUP BY product_id"
    ),
    "a key that is none": lambda: as_stream(
        """INSERT INTO by_product SELECT p.product_id, o.id FROM orders o
           JOIN products p ON o.product_id = p.product_id"""
    ),
    "an inequality": lambda: as_stream(
        "INSERT INTO kinds SELECT o.id, p.name FROM orders o JOIN products p ON o.product_id > p.product_id"
    ),
    "an unknown column": lambda: as_stream("INSERT INTO kinds SELECT o.nope, 'x' FROM orders o"),
    "a column of two tables": lambda: as_stream(
        """INSERT INTO kinds SELECT product_id, name FROM orders o
           JOIN products p ON o.product_id = p.product_id"""
    ),
}
for name, refused in REFUSED.items():
    refused.__name__ = name
    step(refused)

print("\n" + json.dumps(results))
spark.stop()
