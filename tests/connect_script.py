"""What a client of Spark Connect does with tables, in a process of its own; prints a JSON of what came out.

The first argument is the folder of its warehouse. A step that must be refused gives its exception's class and
text; of another one that fails there is its traceback, under ``failed``.
"""

import contextlib
import io
import json
import os
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

os.environ["SPARK_TESTING"] = "1"  # lets the server choose its port
# PostgreSQL is started by another user, for which Python forks: what gRPC does then has aborted the child
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

import deltajoin
import planner
import upsert
from deltajoin import DeltaJoinSpec, Side
from tests.deltajoin.lookup.batch_endpoint import BatchEndpoint
from tests.helpers import REPOSITORY, SESSION_OPTIONS, wait_until
from tests.local_postgres import LocalPostgres
from upsert.materializer.choice import UnprovenKeyWarning

warnings.simplefilter("ignore")
FOLDER = sys.argv[1]
EVERY = "every-step" in sys.argv

builder = SparkSession.builder.remote("local[2]")
for key, value in SESSION_OPTIONS.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
catalog = upsert.Catalog(os.path.join(FOLDER, "warehouse"), optimize=planner.optimize)
failed: dict[str, str] = {}
results: dict[str, Any] = {"failed": failed}


def step(function: Callable[[], Any]) -> None:
    """Do one thing, and keep what comes out, or why it does not."""
    try:
        results[function.__name__] = function()
    except Exception:
        failed[function.__name__] = traceback.format_exc()


def refused_step(function: Callable[[], Any]) -> None:
    """Do what must be refused, and keep what is said."""
    try:
        function()
        results[function.__name__] = "nothing was refused"
    except Exception as error:
        results[function.__name__] = f"{type(error).__name__}: {error}"


def long_step(function: Callable[[], Any]) -> None:
    """A step of long runs alone, in which the client is told to take every step."""
    if EVERY:
        step(function)


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
    ("sold", "product_id BIGINT, name STRING", ""),
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

MATCHED = """INSERT INTO sold SELECT product_id, name FROM products p
             WHERE product_id NOT IN (SELECT id FROM orders WHERE amount > 8)
             AND EXISTS (SELECT * FROM orders o WHERE o.product_id = p.product_id AND amount < 400)"""


@step
def written() -> Any:
    sql("INSERT INTO orders VALUES (1, 1, 3.5), (2, 2, 4.0), (3, 7, 9.0), (4, 1, 500.0)")
    sql("INSERT INTO products VALUES (1, 'tea'), (2, 'coffee'), (5, 'cake')")
    sql("UPDATE orders SET amount = amount + 0.5 WHERE id % 2 = 0")
    return rows("orders")


@step
def queried() -> Any:
    joined = "SELECT o.id, p.name FROM orders o JOIN products p USING (product_id) WHERE o.amount < :most"
    spark.conf.set("worst", "cake")
    text = f"{joined} AND p.name <> '${{worst}}' AND p.name <> '${{nothing}}' ORDER BY id"
    return catalog.sql(text, spark, args={"most": 100}).rows.to_pylist()


@refused_step
def misspelt() -> Any:
    return sql("SELECT nam FROM products")


@step
def read() -> Any:
    return [
        row.asDict()
        for row in catalog.read(spark, "orders", columns=["id"], where=[("id", ">", 3)]).collect()
    ]


GROUPED = (
    """INSERT INTO busy SELECT product_id, concat(count(*), ' of ', sum(id)) FROM orders
       GROUP BY product_id HAVING count(*) > 1""",
    """INSERT INTO earliest
       SELECT p, min(id), count(DISTINCT n) - 1, max_by(id, n), to_json(collect_list(id))
       FROM (SELECT id, product_id AS p, amount AS n FROM orders WHERE amount > 0) o WHERE id > 0
       GROUP BY p HAVING max(n) > 8""",
    "INSERT INTO counted_all SELECT 'all', sum(id) FILTER (WHERE amount > 8) FROM orders",
    """INSERT INTO of_both SELECT o.id, count(*) FROM orders o
       JOIN (SELECT product_id AS p FROM products UNION ALL SELECT id FROM orders) u ON o.product_id = u.p
       GROUP BY o.id""",
)


def grouped() -> Any:
    return [rows(name) for name in ("busy", "earliest", "counted_all", "of_both")]


@step
def first_join() -> Any:
    sql("CREATE VIEW expensive AS SELECT * FROM orders WHERE amount > 100")
    sql("CREATE TABLE busy (product_id BIGINT, n STRING, PRIMARY KEY (product_id) NOT ENFORCED)")
    columns = "p BIGINT, id BIGINT, more BIGINT, dearest BIGINT, ids STRING"
    sql(f"CREATE TABLE earliest ({columns}, PRIMARY KEY (p) NOT ENFORCED)")
    sql("CREATE TABLE of_both (id BIGINT, n BIGINT, PRIMARY KEY (id) NOT ENFORCED)")
    sql("CREATE TABLE counted_all (k STRING, ids BIGINT, PRIMARY KEY (k) NOT ENFORCED)")
    as_stream(JOIN, "INSERT INTO big SELECT id, product_id, amount FROM expensive", *GROUPED, MATCHED)
    results["first_groups"] = grouped()
    results["first_matches"] = rows("sold")
    return rows("sales"), rows("big")


def by_chance() -> str:
    """The name of a function of the session that is not deterministic."""
    spark.udf.register("chosen", F.udf(lambda number: number, "bigint").asNondeterministic())
    return "chosen"


def by_clock() -> str:
    """The name of a function of the session that calls one whose text has the time."""
    sql("CREATE TEMPORARY FUNCTION present(id BIGINT) RETURNS STRING RETURN concat(id, current_timestamp())")
    sql("CREATE TEMPORARY FUNCTION seen(id BIGINT) RETURNS STRING RETURN lower(present(id))")
    return "seen"


@step
def explained() -> Any:
    """What EXPLAIN says of streams: of one with a join and a sum, of refused ones, and of one with a sink."""
    catalog.options["execution.runtime-mode"] = "streaming"
    sql("CREATE TABLE sums (name STRING, n BIGINT, PRIMARY KEY (name) NOT ENFORCED)")
    try:
        return [
            str(sql(f"EXPLAIN {text}"))
            for text in (
                """INSERT INTO sums SELECT upper(name) AS u, count(*) FROM orders
                   JOIN products USING (product_id) GROUP BY u""",
                """INSERT INTO kinds SELECT o.id, s.name FROM orders o
                   LEFT JOIN sales s ON o.amount = s.amount""",
                "INSERT INTO kinds SELECT id, first(amount) FROM orders GROUP BY id",
                f"INSERT INTO kinds SELECT {by_chance()}(id), 'x' FROM orders",
                f"INSERT INTO kinds SELECT id, {by_clock()}(id) FROM orders",
                JOIN,
                GROUPED[1],
            )
        ]
    finally:
        catalog.options["execution.runtime-mode"] = "batch"


@step
def explained_frames() -> Any:
    """What `planner.explain` says of DataFrames: one that is written as it is, a join, and a refused one."""
    changes = catalog.read_changes(spark, "orders")
    spec = DeltaJoinSpec.of("left", ORDERS, PRODUCTS)
    joined = deltajoin.read_join(spark, spec).selectExpr("t0_id AS id", "_row_kind")
    refused = changes.groupBy("product_id").count()
    frames = (changes.where("amount > 1"), joined, refused)
    return [str(planner.explain(df, sink_key=["id"])) for df in frames]


@step
def second_stream() -> Any:
    """What is said of a second stream with the checkpoint of one that runs, and whether that still runs."""
    sql("CREATE TABLE copied (id BIGINT, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.options["execution.runtime-mode"] = "streaming"
    del catalog.options["execution.trigger"]
    try:
        running = sql("INSERT INTO copied SELECT id FROM orders")
        try:
            sql("INSERT INTO copied SELECT id FROM orders WHERE id > 1")
        except upsert.errors.ConfigurationError as error:
            return str(error), running.query.isActive
        finally:
            running.query.stop()
    finally:
        catalog.options["execution.runtime-mode"] = "batch"
        catalog.options["execution.trigger"] = "available-now"


@step
def recorded() -> Any:
    """What SHOW JOBS says of a query, once it is told of its end.

    When the listener comes, the server has counts of tasks in Python that no other call has taken: rows are
    looked for in files.
    """
    sql("CREATE TABLE followed (id BIGINT, PRIMARY KEY (id) NOT ENFORCED)")
    changes = catalog.read_changes(spark, "orders")
    location = os.path.join(FOLDER, "to-followed")
    writer = catalog.write_changes(changes.select("id", "_row_kind"), "followed")
    running = writer.option("checkpointLocation", location).start()
    wait_until(lambda: rows("followed"))
    catalog.record_queries(spark)
    query = changes.writeStream.format("noop").queryName("recorded").trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    running.stop()

    def states() -> list[str]:
        return [row["status"] for row in sql("SHOW JOBS").rows.to_pylist() if row["job_id"] == query.id]

    with contextlib.suppress(AssertionError):
        wait_until(lambda: states() == ["ended"], 60)
    return states()


@step
def unproven_key() -> Any:
    """What a write of a DataFrame warns of."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UnprovenKeyWarning)
        catalog.write_changes(catalog.read_changes(spark, "orders"), "copy")
    return [str(one.message) for one in told if one.category is UnprovenKeyWarning]


JOINED = {
    "full_join": """SELECT id, p.name FROM orders o
                    FULL OUTER JOIN products AS p ON p.product_id = o.product_id""",
    "anti_join": """SELECT id, CAST(amount AS STRING) FROM orders
                    LEFT ANTI JOIN products p ON orders.product_id = p.product_id""",
    "three_tables": """SELECT a.id, concat(name, ' it''s, from a,b') AS `where` FROM products p
                       RIGHT JOIN orders a ON (p.product_id = a.product_id)
                       LEFT SEMI JOIN orders b ON b.product_id = p.product_id AND b.id = a.id
                       WHERE a.amount > 4 OR name IS NULL""",
    "by_using": "SELECT id, concat(name, product_id) FROM orders RIGHT JOIN products USING (product_id)",
    "without_on": """SELECT o.id, lower(p.name) AS n FROM orders o, products p
                     WHERE o.product_id = p.product_id AND amount > 4""",
    "named_queries": """WITH dear AS (SELECT id, product_id AS p FROM orders WHERE amount > 4),
                             named AS (SELECT product_id AS p, coalesce(name, '?') AS name
                                       FROM products WHERE product_id < 7)
                        SELECT id, name FROM dear LEFT JOIN named ON dear.p = named.p""",
    "of_a_union": """SELECT o.id, u.name FROM orders o JOIN (SELECT product_id AS p, name FROM products
                     UNION ALL SELECT product_id, concat(id, '') FROM orders WHERE amount > 4) u
                     ON o.product_id = u.p WHERE o.amount < 100""",
    "of_functions": """SELECT id, loud(turned(p.name)) FROM orders o JOIN products p
                       ON o.product_id = p.product_id WHERE loud(p.name) <> 'TEA!'""",
    "in_brackets": """SELECT id + 1, name FROM (SELECT o.id, p.name FROM orders o LEFT JOIN products p
                      ON o.product_id = p.product_id AND p.product_id <=> 1) WHERE id < 9""",
}


@long_step
def kinds_of_joins() -> Any:
    """Each as a stream, and as the batch query that it must be equal to."""
    sql("CREATE TEMPORARY FUNCTION loud(t STRING) RETURNS STRING RETURN upper(t) || '!'")
    module = "tests.upsert.catalog.run.functions_of_python"
    sql(f"CREATE TEMPORARY FUNCTION turned AS '{module}.reversed_text' LANGUAGE PYTHON")
    for name, query in JOINED.items():
        sql(f"CREATE TABLE {name} (id BIGINT, name STRING)")
        as_stream(f"INSERT INTO {name} {query}")
    streams = {name: catalog.table(name).snapshot().scan().to_pylist() for name in JOINED}
    batches = {
        name: sql(query).rows.rename_columns(["id", "name"]).to_pylist() for name, query in JOINED.items()
    }
    return [{name: sorted(map(repr, rows)) for name, rows in found.items()} for found in (streams, batches)]


@step
def next_join() -> Any:
    sql("INSERT INTO products VALUES (7, 'milk')")
    sql("DELETE FROM orders WHERE id = 1")
    sql("INSERT INTO orders VALUES (2, 2, 700.0)")
    as_stream(JOIN, *GROUPED, MATCHED)
    results["next_groups"] = grouped()
    results["next_matches"] = rows("sold")
    return rows("sales")


@long_step
def merged() -> Any:
    sql("CREATE TABLE merged (id BIGINT, amount DOUBLE, PRIMARY KEY (id) NOT ENFORCED)")
    sql("CREATE TABLE taken AS SELECT id, amount FROM orders WHERE id < 3")
    sql("INSERT INTO merged SELECT * FROM taken")
    sql("""MERGE INTO merged m USING orders o ON m.id = o.id WHEN MATCHED THEN UPDATE SET amount = 0
           WHEN NOT MATCHED THEN INSERT (id, amount) VALUES (o.id, o.amount)""")
    return sql("SELECT * FROM merged ORDER BY id").rows.to_pylist()


@step
def merged_by_spark() -> Any:
    sql("CREATE TABLE counted (id BIGINT, n BIGINT, PRIMARY KEY (id) NOT ENFORCED)")
    sql("INSERT INTO counted VALUES (1, 5)")
    done = sql("""MERGE INTO counted c USING (SELECT id, count(*) OVER () AS n FROM range(1, 3)) s
                  ON c.id = s.id
                  WHEN MATCHED THEN UPDATE SET n = s.n WHEN NOT MATCHED THEN INSERT *""")
    return [done.affected_rows, sql("SELECT * FROM counted ORDER BY id").rows.to_pylist()]


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


def arrived(*orders: tuple[int, str, int]) -> None:
    """Rows of a stream of files: id, currency and milliseconds."""
    times = pa.array([at * 1000 for *_, at in orders], pa.timestamp("us", "UTC"))
    rows = pa.table({"id": [one for one, *_ in orders], "cur": [cur for _, cur, _ in orders], "t": times})
    os.makedirs(STREAM, exist_ok=True)
    pq.write_table(rows, f"{STREAM}/{orders[0][0]}.parquet")


STREAM = os.path.join(FOLDER, "arriving")
LOOKED_UP = """SELECT a.id, w.rate * 2 AS rate, upper(n.name) AS name FROM arriving AS a
               LEFT JOIN web FOR SYSTEM_TIME AS OF a.proc AS w ON a.cur = w.cur
               LEFT JOIN names FOR SYSTEM_TIME AS OF PROCTIME() AS n ON n.cur = a.cur WHERE a.id < 4"""
VERSIONS = """INSERT INTO priced SELECT a.id, r.rate FROM arriving AS a
              LEFT JOIN rates FOR SYSTEM_TIME AS OF a.t AS r ON a.cur = r.cur"""


endpoint = BatchEndpoint()


@step
def only_looked_up() -> Any:
    """The tables of a web service and of a stream that the steps below are about."""
    url = endpoint.serve(pa.table({"cur": ["eur", "usd"], "rate": [2.0, 3.0]}), ["cur"])
    of = "proc AS PROCTIME(), WATERMARK FOR t AS t) WITH ('connector' = 'parquet', 'path' ="
    sql(f"CREATE TABLE arriving (id BIGINT, cur STRING, t TIMESTAMP, {of} '{STREAM}')")
    key = "PRIMARY KEY (cur) NOT ENFORCED)"
    sql(f"CREATE TABLE web (cur STRING, rate DOUBLE, {key} WITH ('connector' = 'http', 'url' = '{url}')")
    sql(f"CREATE TABLE names (cur STRING, name STRING, {key}")
    catalog.table("names").write(pa.table({"cur": ["eur", "chf"], "name": ["Euro", "Franken"]}))
    sql("CREATE TABLE found (id BIGINT, rate DOUBLE, name STRING, PRIMARY KEY (id) NOT ENFORCED)")
    at = "at TIMESTAMP METADATA FROM 'commit-timestamp' VIRTUAL, WATERMARK FOR at AS at"
    sql(f"CREATE TABLE rates (cur STRING, rate DOUBLE, {at}, {key}")
    arrived((1, "eur", 0), (2, "usd", 0), (3, "chf", 0), (4, "eur", 0))


@step
def looked_up() -> Any:
    """Rows that are only added, with those of a web service and of a table, as a stream."""
    as_stream(f"INSERT INTO found {LOOKED_UP}")
    catalog.options["execution.runtime-mode"] = "streaming"
    try:
        results["explained_lookups"] = str(sql(f"EXPLAIN INSERT INTO found {LOOKED_UP}"))
    finally:
        catalog.options["execution.runtime-mode"] = "batch"
    return rows("found")


@long_step
def looked_up_in_a_batch() -> Any:
    return sql(LOOKED_UP).rows.sort_by("id").to_pylist()


endpoint.stop()


@long_step
def versions() -> Any:
    """Rows with the rates of their times, which are those of commits."""
    sql("CREATE TABLE priced (id BIGINT, rate DOUBLE, PRIMARY KEY (id) NOT ENFORCED)")
    times = []
    for rate in (1.0, 2.0, 3.0):
        catalog.table("rates").write(pa.table({"cur": ["eur"], "rate": [rate]}))
        times.append(catalog.table("rates").history()[-1].time_ms)
        if rate == 1.0:
            arrived((10, "eur", times[0] - 1))
            as_stream(VERSIONS)
        while time.time_ns() // 1_000_000 <= times[-1] + 1:
            pass  # times of commits are milliseconds
    arrived(
        *((11 + number, "eur", one + number % 2) for number, one in enumerate(times)), (14, "usd", times[0])
    )
    as_stream(VERSIONS)
    return rows("priced")


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


def history(*statements: str) -> None:
    for statement in statements:
        sql(statement)


@long_step
def kept_rows() -> Any:
    """A sink whose key does not tell the rows of a join and of a union apart, through a restart."""
    sql("CREATE TABLE newest (product_id BIGINT, id BIGINT, PRIMARY KEY (product_id) NOT ENFORCED)")
    sql("CREATE TABLE both (what STRING, n BIGINT, PRIMARY KEY (what) NOT ENFORCED)")
    history(
        "CREATE TABLE l (id BIGINT, p BIGINT, half DOUBLE, PRIMARY KEY (id) NOT ENFORCED, INDEX (p))",
        "CREATE TABLE r (p BIGINT, PRIMARY KEY (p) NOT ENFORCED)",
        "INSERT INTO r VALUES (1), (2)",
        "INSERT INTO l VALUES (1, 1, 0.5), (2, 1, 1.0), (3, 2, 1.5)",
    )
    sql("CREATE TABLE means (p BIGINT, mean DOUBLE, PRIMARY KEY (p) NOT ENFORCED)")
    sql("CREATE TABLE there (p BIGINT, PRIMARY KEY (p) NOT ENFORCED)")
    sql("CREATE TABLE totals (p BIGINT, n BIGINT, ids BIGINT, half DOUBLE, PRIMARY KEY (p) NOT ENFORCED)")
    statements = (
        """INSERT INTO totals WITH j AS (SELECT l.*, 2 * half AS twice FROM l JOIN r USING (p) WHERE id < 9)
           SELECT abs(p) AS q, count(*) AS n, sum(id), sum(twice / 2) FROM j GROUP BY q""",
        "INSERT INTO means SELECT p, avg(half) FROM l GROUP BY p",
        "INSERT INTO there SELECT DISTINCT p FROM l",
        "INSERT INTO newest SELECT r.p, l.id FROM l JOIN r ON l.p = r.p WHERE l.id < 9",
        "INSERT INTO both SELECT 'l', id FROM l WHERE id < 3 UNION ALL SELECT concat('r', '(', ''), p FROM r",
    )
    as_stream(*statements)
    results["totals"] = [rows("totals")]
    results["means"] = [[rows("means"), rows("there")]]
    found = [sorted((row["product_id"], row["id"] in (1, 2)) for row in rows("newest")), rows("both")]
    given = rows("newest")[0]["id"]
    history(f"DELETE FROM l WHERE id = {given}", "DELETE FROM l WHERE id = 3", "DELETE FROM r WHERE p = 2")
    as_stream(*statements)
    results["totals"] += [given, rows("totals")]
    results["means"] += [[rows("means"), rows("there")]]
    return [*found, [row["id"] for row in rows("newest")] == [3 - given], rows("both")]


@long_step
def in_postgresql() -> Any:
    """Changes of a join, and an aggregate of them, in a database, through a restart."""
    postgres = LocalPostgres()
    postgres.start()
    try:
        postgres.run("CREATE TABLE named (id bigint PRIMARY KEY, p bigint)")
        postgres.run("CREATE TABLE summed (p bigint PRIMARY KEY, n bigint)")
        of = f"WITH ('connector' = 'postgres', 'url' = '{postgres.dsn}', 'table-name' ="
        sql(f"CREATE TABLE pg_named (id BIGINT, p BIGINT, PRIMARY KEY (id) NOT ENFORCED) {of} 'named')")
        sql(f"CREATE TABLE pg_summed (p BIGINT, n BIGINT, PRIMARY KEY (p) NOT ENFORCED) {of} 'summed')")
        history(
            "CREATE TABLE x (id BIGINT, p BIGINT, PRIMARY KEY (id) NOT ENFORCED, INDEX (p))",
            "CREATE TABLE y (p BIGINT, PRIMARY KEY (p) NOT ENFORCED)",
            "INSERT INTO y VALUES (1), (2)",
            "INSERT INTO x VALUES (1, 1), (2, 1), (3, 2)",
        )
        statements = (
            "INSERT INTO pg_named SELECT x.id, y.p FROM x JOIN y ON x.p = y.p",
            "INSERT INTO pg_summed SELECT x.p, count(*) FROM x JOIN y ON x.p = y.p GROUP BY x.p",
        )
        found = []
        for more in ((), ("DELETE FROM x WHERE id = 1", "DELETE FROM y WHERE p = 2")):
            history(*more)
            as_stream(*statements)
            found.append(
                [sorted(map(tuple, postgres.fetch(f"SELECT * FROM {t}"))) for t in ("named", "summed")]
            )
        return found
    finally:
        postgres.stop()


@long_step
def joined_by_spec() -> Any:
    changes = deltajoin.read_join(spark, DeltaJoinSpec.of("inner", ORDERS, PRODUCTS))
    return streamed(changes.selectExpr("t0_id AS id", "t1_name AS name", "_row_kind"), "kinds")


@long_step
def exposed() -> Any:
    catalog.expose(spark)
    spark.sql("INSERT INTO copy VALUES (9, 9, 9.0)")
    found = [row.asDict() for row in spark.sql("SELECT * FROM copy").collect()]
    catalog.unexpose(spark)
    return found, spark.catalog.tableExists("copy")


def changes_of(name: str) -> Any:
    return catalog.read_changes(spark, name)


def viewed_rows(df: Any) -> Any:
    """A DataFrame by the name of a temporary view."""
    df.createOrReplaceTempView("rows_of_it")
    return spark.table("rows_of_it")


def shadowed() -> str:
    """The name of a function of the session in SQL, of chance too."""
    spark.sql("CREATE OR REPLACE TEMPORARY FUNCTION thrown() RETURNS DOUBLE RETURN rand()")
    return "thrown"


KIND, NAMED = "_row_kind", ("id", "product_id", "amount", "_row_kind")

BY_ROWS: dict[str, Callable[[Any], Any]] = {
    "columns": lambda df: df.where("amount > 1").select(*NAMED).withColumn("amount", F.col("amount") * 2),
    "names": lambda df: df.selectExpr("*").alias("o").select("o.*").toDF(*NAMED).withMetadata("id", {"a": 1}),
    "its own columns": lambda df: df.select(df["id"], df.product_id, F.abs(df["amount"]), df[KIND]).toDF(
        *NAMED
    ),
    "new names": lambda df: df.withColumnRenamed("amount", "n").withColumnRenamed("n", "amount"),
    "a name of the same list": lambda df: df.select(
        "id", F.abs("id").alias("n"), (F.col("n") + 1).alias("product_id"), "amount", KIND
    ).drop("n"),
    "a function": lambda df: df.withColumn("amount", F.udf(lambda n: n, "double")("amount")),
    "an encrypted text": lambda df: df.withColumn(
        "product_id",
        F.length(F.aes_encrypt(F.col("id").cast("string"), F.lit("abcdefghijklmnop"), F.lit("ECB"))),
    ),
    "a generator": lambda df: df.selectExpr("id", "stack(2, 1L, 2L) AS product_id", "amount", KIND),
    "a generator of its own column": lambda df: df.select(
        F.explode(F.array(df["id"])).alias("id"), "product_id", "amount", KIND
    ),
    "a union": lambda df: df.where("id > 2").unionByName(df.where("NOT id > 2")),
}
"""Queries of the changes of `orders` that take each change for itself."""


@step
def by_rows() -> Any:
    for query in BY_ROWS.values():
        catalog.write_changes(query(changes_of("orders")), "copy")
    return list(BY_ROWS)


NOT_BY_ROWS: dict[str, Callable[[Any], Any]] = {
    "a view of an aggregate": lambda df: viewed_rows(df.groupBy("id").agg(F.max(KIND).alias(KIND))),
    "an aggregate of a view": lambda df: viewed_rows(df).groupBy("id").agg(F.max(KIND).alias(KIND)),
    "an aggregate in select": lambda df: df.select(F.max("id").alias("id"), F.max(KIND).alias(KIND)),
    "a window": lambda df: df.withColumn("amount", F.max("amount").over(Window.partitionBy("id"))),
    "filled values": lambda df: df.fillna(0.0),
    "a function of chance": lambda df: df.selectExpr(f"{by_chance()}(id) AS id", KIND),
    "a called function": lambda df: df.withColumn("id", F.call_function(by_chance(), "id")),
    "a function in SQL": lambda df: df.where(f"{shadowed()}() > 0.5"),
    "rows by chance": lambda df: df.selectExpr(f"stack(2, id, {by_chance()}(id)) AS id", KIND),
    "rows of its own column by chance": lambda df: df.select(
        F.explode(F.array(F.call_function(by_chance(), df["id"]))).alias("id"), KIND
    ),
    "a time of the clock": lambda df: df.where("timestamp_millis(id) < 'today'"),
    "a constant of the clock": lambda df: df.where(F.timestamp_millis("id") < F.lit("now").cast("timestamp")),
    "a subquery in a text": lambda df: df.where("id IN (SELECT 1)"),
    "a drawn vector": lambda df: df.selectExpr("aes_encrypt(string(id), 'abcdefghijklmnop') AS id", KIND),
    "a drawn vector in a call": lambda df: df.withColumn(
        "id", F.aes_encrypt(F.col("id").cast("string"), F.lit("abcdefghijklmnop"))
    ),
    "kinds in a filter": lambda df: df.where("_row_kind <> '-D'"),
    "all columns in one": lambda df: df.withColumn("id", F.struct("*")),
    "all columns in a text": lambda df: df.selectExpr("to_json(struct(*)) AS id", KIND),
    "kinds in a column": lambda df: df.withColumn("id", F.length(KIND)),
    "kinds in a text": lambda df: df.selectExpr("length(_Row_Kind) AS id", KIND),
    "other kinds": lambda df: df.withColumn(KIND, F.lit("+I")),
    "renamed kinds": lambda df: df.select("id", F.lit("+I").alias("k")).withColumnRenamed("k", KIND),
    "kinds elsewhere": lambda df: df.select(KIND, "id").toDF("id", KIND),
}


def of_times(query: str) -> Any:
    """A stream of a table with times of day."""
    spark.conf.set("spark.sql.timeType.enabled", "true")
    try:
        if "times" not in catalog.tables():
            sql("CREATE TABLE times (id BIGINT, at TIME, PRIMARY KEY (id) NOT ENFORCED)")
            sql("CREATE TABLE hours (id BIGINT, n BIGINT, PRIMARY KEY (id) NOT ENFORCED)")
            sql("INSERT INTO times VALUES (1, TIME '08:15')")
        as_stream(f"INSERT INTO hours SELECT id, {query} FROM times")
        return rows("hours")
    finally:
        spark.conf.unset("spark.sql.timeType.enabled")


@step
def hours() -> Any:
    return of_times("CAST(hour(at) + unix_seconds(TIMESTAMP '1970-01-01 00:00:01Z') AS BIGINT)")


REFUSED: dict[str, Callable[[], Any]] = {
    "a day of the clock": lambda: of_times("unix_seconds(CAST(at AS TIMESTAMP))"),
    "a day of the clock by itself": lambda: of_times("unix_seconds(date_trunc('HOUR', at))"),
    "a join of DataFrames": lambda: catalog.write_changes(
        changes_of("orders").join(changes_of("products"), "product_id"), "sales"
    ),
    **{
        name: lambda query=query: catalog.write_changes(query(changes_of("orders")), "copy")
        for name, query in NOT_BY_ROWS.items()
    },
    "a text of the clock": lambda: as_stream(
        "INSERT INTO kinds SELECT id, 'x' FROM orders WHERE timestamp_millis(id) < 'today'"
    ),
    "a text of chance": lambda: as_stream(f"INSERT INTO kinds SELECT {by_chance()}(id), 'x' FROM orders"),
    "a column called as kinds are": lambda: as_stream(
        "INSERT INTO kinds SELECT id, 'x' AS _Row_Kind FROM orders"
    ),
    "lost kinds": lambda: catalog.write_changes(changes_of("orders").drop("_row_kind"), "copy"),
    "chance": lambda: catalog.write_changes(
        changes_of("orders").selectExpr("id", "rand() AS x", "_row_kind"), "copy"
    ),
    "a view of the clock": lambda: sql("CREATE MATERIALIZED VIEW v AS SELECT id, now() AS t FROM orders"),
    "a view of a variable": lambda: (
        sql("DECLARE least INT DEFAULT 1")
        and sql("CREATE MATERIALIZED VIEW v AS SELECT id + least AS id FROM orders")
    ),
    "a view by changes": lambda: sql(
        "CREATE MATERIALIZED VIEW v WITH ('refresh' = 'incremental') AS SELECT id FROM orders"
    ),
    "a view of two rows": lambda: sql(
        "CREATE MATERIALIZED VIEW v (PRIMARY KEY (one) NOT ENFORCED) AS SELECT 1 AS one FROM products"
    ),
    "a view that is kept": lambda: as_stream("CREATE MATERIALIZED VIEW v AS SELECT id FROM orders"),
    "a join with a plain view": lambda: as_stream(
        "INSERT INTO kinds SELECT o.id, 'x' FROM orders o JOIN expensive e ON o.id = e.id"
    ),
    "a lookup for changes": lambda: as_stream(
        """INSERT INTO found SELECT o.id, w.rate, 'x' FROM orders o
           JOIN web FOR SYSTEM_TIME AS OF PROCTIME() w ON w.cur = 'eur'"""
    ),
    "a lookup by no key": lambda: as_stream(
        """INSERT INTO found SELECT a.id, w.rate, 'x' FROM arriving a
           JOIN web FOR SYSTEM_TIME AS OF PROCTIME() w ON a.id = w.rate"""
    ),
    "a right join": lambda: as_stream(
        """INSERT INTO found SELECT a.id, w.rate, 'x' FROM arriving a
           RIGHT JOIN web FOR SYSTEM_TIME AS OF PROCTIME() w ON a.cur = w.cur"""
    ),
    "all that is looked up": lambda: sql("SELECT * FROM web"),
    "two versions": lambda: as_stream(
        """INSERT INTO found SELECT a.id, r.rate, 'x' FROM arriving a
           JOIN rates FOR SYSTEM_TIME AS OF a.t r ON a.cur = r.cur
           JOIN rates FOR SYSTEM_TIME AS OF a.t q ON a.cur = q.cur"""
    ),
    "a union": lambda: as_stream(
        "INSERT INTO kinds SELECT id, 'x' FROM orders UNION SELECT id, 'y' FROM orders"
    ),
    "a union with rows that stay": lambda: as_stream(
        "INSERT INTO kinds SELECT id, 'x' FROM orders UNION ALL SELECT id, 'y' FROM arriving"
    ),
    "a subquery": lambda: as_stream(
        "INSERT INTO kinds SELECT id, 'x' FROM orders WHERE id = 1 OR id IN (SELECT product_id FROM products)"
    ),
    "an aggregate": lambda: as_stream(
        "INSERT INTO by_product SELECT product_id, first(id) FROM orders GROUP BY product_id"
    ),
    **{
        name: lambda query=query: as_stream(f"INSERT INTO by_product SELECT {query}")
        for name, query in {
            "groups without an index": "amount, max(id) FROM orders GROUP BY amount",
            "the greatest computed value": "product_id, max(id + 1) FROM orders GROUP BY product_id",
            "groups by a computed value": "product_id + 1, max(id) FROM orders GROUP BY product_id + 1",
            "the greatest of a function": "id, max(id) FROM orders WHERE sqrt(amount) > 1 GROUP BY id",
            "the greatest of a join": """o.id, max(name) FROM orders o
                                         JOIN products p ON o.product_id = p.product_id GROUP BY o.id""",
            "the greatest of all": "1, max(id) FROM orders",
            "groups of later rows": """id, count(*) FROM orders /*+ OPTIONS('scan.mode' = 'latest') */
                                       GROUP BY id""",
        }.items()
    },
    "no checkpoint": lambda: catalog.write_changes(
        changes_of("copy"), "copy", sink_materialize="force"
    ).start(),
    "groups of a condition": lambda: as_stream(
        """INSERT INTO by_product SELECT product_id, n
           FROM (SELECT product_id, count(*) AS n FROM orders GROUP BY product_id) WHERE n > 1"""
    ),
    "groups by chance": lambda: as_stream(
        f"INSERT INTO by_product SELECT {by_chance()}(id) AS c, count(*) AS n FROM orders GROUP BY c"
    ),
    "a condition of a function": lambda: as_stream(
        """INSERT INTO kinds SELECT o.id, p.name FROM orders o
           LEFT JOIN products p ON o.product_id = p.product_id AND upper(p.name) = 'TEA'"""
    ),
    "an inequality": lambda: as_stream(
        "INSERT INTO kinds SELECT o.id, p.name FROM orders o JOIN products p ON o.product_id > p.product_id"
    ),
    "an unknown column": lambda: as_stream("INSERT INTO kinds SELECT o.nope, 'x' FROM orders o"),
    "two tables of one name": lambda: as_stream(
        "INSERT INTO kinds SELECT orders.id, name FROM orders JOIN products AS orders ON id = name"
    ),
    "a column of two tables": lambda: as_stream(
        """INSERT INTO kinds SELECT product_id, name FROM orders o
           JOIN products p ON o.product_id = p.product_id"""
    ),
}
for name, refused in REFUSED.items():
    refused.__name__ = name
    refused_step(refused)


@step
def after_the_end() -> Any:
    """What is shown of a query, and SHOW JOBS, when the session that has run the query has been stopped."""
    catalog.options["execution.runtime-mode"] = "streaming"
    try:
        running = sql("INSERT INTO copied SELECT id FROM orders")
        assert running.await_termination(120)
    finally:
        spark.stop()  # or the thread of its listener would let the process never end
    jobs, until = ["running"], time.monotonic() + 60
    while "running" in jobs and time.monotonic() < until:  # a record is written when a query has ended
        jobs = sql("SHOW JOBS").rows.column("status").to_pylist()
        time.sleep(0.1)
    return str(running), jobs


print("\n" + json.dumps(results))
