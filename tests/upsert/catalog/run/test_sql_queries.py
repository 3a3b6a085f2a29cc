"""Queries and INSERT through Spark: batch and streaming, joins, states of tables."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

import planner
from planner import PlanError
from tests.helpers import multiset
from upsert.catalog.catalog import Catalog
from upsert.catalog.results import Done, Frame, Live, Result, Rows, Running
from upsert.errors import (
    ChangelogError,
    ConfigurationError,
    DatabaseNotFoundError,
    SchemaError,
    TableNotFoundError,
)
from upsert.spark.settings import copy_of

pytestmark = pytest.mark.spark

ORDERS = (
    "CREATE TABLE orders (id BIGINT, product BIGINT, amount DOUBLE, gross AS amount * 2, "
    "PRIMARY KEY (id) NOT ENFORCED, INDEX (product))"
)
PRODUCTS = "CREATE TABLE products (product BIGINT, name STRING, PRIMARY KEY (product) NOT ENFORCED)"
SALES = "CREATE TABLE sales (id BIGINT, name STRING, amount DOUBLE, PRIMARY KEY (id) NOT ENFORCED)"


class Session:
    """A catalog and what runs its statements."""

    def __init__(self, spark: SparkSession, warehouse: Path) -> None:
        self.spark = spark
        self.catalog = Catalog(warehouse, optimize=planner.optimize)

    def __call__(self, text: str) -> Result:
        return self.catalog.sql(text, self.spark)

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        result = self(text)
        assert isinstance(result, Frame)
        return [tuple(row.values()) for row in result.rows.to_pylist()]

    def explained(self, text: str) -> list[str]:
        result = self(text)
        assert isinstance(result, Rows)
        found: list[str] = result.rows.column("plan").to_pylist()
        return found

    def ran(self, text: str) -> Running:
        """A streaming statement that has done all there is to do."""
        result = self(text)
        assert isinstance(result, Running)
        assert result.query is not None
        result.query.processAllAvailable()
        result.query.stop()
        return result

    def stored(self, name: str) -> list[tuple[Any, ...]]:
        return sorted(tuple(row.values()) for row in self.catalog.table(name).snapshot().scan().to_pylist())


@pytest.fixture
def sql(spark: SparkSession, tmp_path: Path) -> Session:
    session = Session(spark, tmp_path / "warehouse")
    for text in (ORDERS, PRODUCTS, SALES):
        session(text)
    session.catalog.table("products").write(pa.table({"product": [1, 2], "name": ["tea", "coffee"]}))
    amounts = {"id": [10, 11, 12], "product": [1, 2, 1], "amount": [1.0, 2.0, 3.0]}
    session.catalog.table("orders").write(pa.table(amounts))
    return session


class TestBatch:
    def test_query_reads_tables_of_the_catalog_views_of_spark_and_its_own_names(self, sql: Session) -> None:
        sql.spark.createDataFrame([(1, "x")], "product BIGINT, shelf STRING").createOrReplaceTempView(
            "shelves"
        )
        found = sql.rows(
            "WITH named AS (SELECT o.id, gross, name, product FROM orders o JOIN products USING (product))\n"
            "SELECT id, gross, name, shelf FROM named n LEFT JOIN shelves s USING (product) ORDER BY id"
        )
        assert found == [(10, 2.0, "tea", "x"), (11, 4.0, "coffee", None), (12, 6.0, "tea", "x")]
        assert [view for view in sql.spark.catalog.listTables() if view.name.startswith("upsert_")] == []

    def test_only_columns_and_rows_that_the_query_needs_are_read(self, sql: Session) -> None:
        result = sql("SELECT id FROM orders WHERE amount < 2.5 AND id > 10 AND upper('a') = 'A'")
        assert isinstance(result, Frame)
        assert result.df is not None
        plan = result.df._sc._jvm.PythonSQLUtils.explainString(result.df._jdf.queryExecution(), "simple")
        assert "product" not in plan
        assert [tuple(row) for row in result.df.collect()] == [(11,)]

    def test_a_result_has_the_methods_of_its_dataframe(self, sql: Session) -> None:
        result = sql("SELECT id FROM orders")
        assert result.where("id < 11").collect() == [(10,)]
        with pytest.raises(
            AttributeError, match=r"SELECT: returns Frame, which has df, rows, statement, no 'id'"
        ):
            _ = result.id

    def test_state_of_a_table_is_chosen_by_snapshot_tag_or_time(self, sql: Session) -> None:
        table = sql.catalog.table("orders")
        first = table.snapshot()
        table.tag("early", first.id)
        table.write(pa.table({"id": [13], "product": [2], "amount": [4.0]}))
        hint = "/*+ OPTIONS('scan.mode'='from-snapshot', 'scan.snapshot-id'='1') */"
        states = {
            f"FOR SYSTEM_VERSION AS OF {first.id}": 3,
            "FOR SYSTEM_VERSION AS OF 'early' AS o": 3,
            "VERSION AS OF 1": 3,
            hint: 3,
            "FOR SYSTEM_TIME AS OF TIMESTAMP '2100-01-01 00:00:00'": 4,
            "FOR SYSTEM_TIME AS OF PROCTIME()": 4,
        }
        counts = (
            f"SELECT {place} AS place, count(*) AS n FROM orders {state}"
            for place, state in enumerate(states)
        )
        found = dict(sql.rows(" UNION ALL ".join(counts)))
        assert {state: found[place] for place, state in enumerate(states)} == states

    def test_rows_go_in_by_place_and_are_cast(self, sql: Session) -> None:
        assert isinstance(sql("INSERT INTO sales SELECT 1, 5 AS other, CAST(2 AS INT)"), Done)
        sql("INSERT INTO sales (amount, id) VALUES (1.5, 2), (2.5, 3)")
        sql("INSERT INTO sales TABLE sales")
        assert sql.stored("sales") == [(1, "5", 2.0), (2, None, 1.5), (3, None, 2.5)]

    def test_rows_go_in_by_name(self, sql: Session) -> None:
        sql(
            "CREATE TABLE visits (id INT, name STRING DEFAULT 'none', n INT, day STRING, "
            "PRIMARY KEY (id, day) NOT ENFORCED) PARTITIONED BY (day)"
        )
        sql("INSERT INTO visits BY NAME SELECT 'mon' AS DAY, 7 AS n, 1 AS id")
        sql("INSERT INTO visits PARTITION (day = 'tue') BY NAME SELECT 8 AS n, 1 AS id")
        assert sql.stored("visits") == [(1, "none", 7, "mon"), (1, "none", 8, "tue")]
        sql("INSERT OVERWRITE visits PARTITION (day = 'tue') BY NAME SELECT 'a' AS name, 2 AS id")
        merging = "/*+ OPTIONS('mergeSchema' = 'true') */"
        sql(f"INSERT INTO visits {merging} BY NAME SELECT 5 AS new, 'wed' AS day, 3 AS id")
        last = [(2, "a", None, "tue", None), (3, "none", None, "wed", 5)]
        assert sql.stored("visits") == [(1, "none", 7, "mon", None), *last]
        plan = sql.explained("EXPLAIN INSERT INTO sales BY NAME SELECT amount, id FROM orders")
        assert plan[0] == "reads orders(id, amount), about 3 rows"

    def test_of_a_list_of_rows_the_last_of_each_key_goes_in(self, sql: Session) -> None:
        """A list has an order, as no other query has; a merge engine makes one row of all of them."""
        sql("INSERT INTO sales (amount, id) VALUES (1.5, 2), (2.5, 3), (3.5, 2), (0.5, 2)")
        assert sql.stored("sales") == [(2, None, 0.5), (3, None, 2.5)]
        with pytest.raises(
            (ChangelogError, PythonException), match=r"leave one value per key, .* declare 'sequence\.field'"
        ):
            sql("INSERT INTO sales SELECT 5, 'x', CAST(id AS DOUBLE) FROM orders")
        sql(
            "CREATE TABLE sums (id INT, n INT, PRIMARY KEY (id) NOT ENFORCED) "
            "WITH ('merge-engine' = 'aggregation', 'fields.n.aggregate-function' = 'sum')"
        )
        sql("INSERT INTO sums VALUES (1, 2), (1, 3)")
        assert sql.stored("sums") == [(1, 5)]
        sql(
            "CREATE TABLE newest (id INT, n INT, PRIMARY KEY (id) NOT ENFORCED) WITH ('sequence.field' = 'n')"
        )
        sql("INSERT INTO newest VALUES (1, 9), (1, 3)")
        assert sql.stored("newest") == [(1, 9)]
        sql("CREATE TABLE bag (number INT, place INT)")
        sql("INSERT INTO bag VALUES (1, 1), (1, 1)")
        assert sql.stored("bag") == [(1, 1), (1, 1)]

    def test_a_list_goes_in_without_tasks_that_write(self, sql: Session) -> None:
        """Spark computes the rows, in one job, and the driver commits them in their order."""
        sql(
            "CREATE TABLE notes (id INT, texts STRING, PRIMARY KEY (id) NOT ENFORCED) "
            "WITH ('merge-engine' = 'aggregation', 'fields.texts.aggregate-function' = 'listagg')"
        )
        scheduler = sql.spark.sparkContext._jsc.sc().dagScheduler()
        before = scheduler.numTotalJobs()
        sql("INSERT INTO notes VALUES (1, 'c'), (2, 'x'), (1, upper('a')), (1, 'b')")
        assert scheduler.numTotalJobs() - before <= 1
        assert sql.stored("notes") == [(1, "c,A,b"), (2, "x")]

    def test_overwrite_replaces_the_table_or_a_partition(self, sql: Session) -> None:
        sql(
            "CREATE TABLE visits (day DATE, id INT, n INT, PRIMARY KEY (day, id) NOT ENFORCED) "
            "PARTITIONED BY (day)"
        )
        sql("INSERT INTO visits VALUES (DATE '2020-01-01', 1, 1), (DATE '2020-01-02', 1, 1)")
        sql("INSERT OVERWRITE visits PARTITION (day = DATE '2020-01-01') SELECT 7, 7")
        assert [(str(day), *rest) for day, *rest in sql.stored("visits")] == [
            ("2020-01-01", 7, 7),
            ("2020-01-02", 1, 1),
        ]
        sql(
            "INSERT OVERWRITE visits /*+ OPTIONS('partition-overwrite-mode' = 'dynamic') */ "
            "VALUES (DATE '2020-01-02', 8, 8)"
        )
        assert [(str(day), *rest) for day, *rest in sql.stored("visits")] == [
            ("2020-01-01", 7, 7),
            ("2020-01-02", 8, 8),
        ]
        sql(
            "INSERT OVERWRITE visits SELECT v.day, v.id, v.n + w.n FROM visits v CROSS JOIN visits w "
            "WHERE w.id = 7"
        )
        assert [rest for _, *rest in sql.stored("visits")] == [[7, 14], [8, 15]]
        sql("INSERT OVERWRITE visits PARTITION (day = DATE '2020-01-01') SELECT id + 1, n FROM visits")
        assert [rest for _, *rest in sql.stored("visits")] == [[8, 14], [9, 15], [8, 15]]
        before = sql.catalog.table("visits").snapshot().id
        untracked = "/*+ OPTIONS('change-tracking' = 'false') */"
        sql(f"INSERT OVERWRITE visits {untracked} SELECT DATE '2020-01-03', 9, 9")
        assert [(str(day), *rest) for day, *rest in sql.stored("visits")] == [("2020-01-03", 9, 9)]
        assert sql.catalog.table("visits").snapshot().id == before + 1

    def test_spark_logs_no_page_beside_an_error_or_a_query_that_runs(
        self, sql: Session, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """PySpark logs each failed analysis with a page of stack, also where an EXISTS becomes a join."""
        logger = PySparkLogger.getLogger("SQLQueryContextLogger")
        monkeypatch.setattr(logger, "disabled", False)  # as a test of the command may have left it
        logger.addHandler(caplog.handler)
        try:
            for text in ("SELECT nope FROM orders", "UPDATE orders SET amount = nope", "SELECT FROM WHERE"):
                with pytest.raises(SchemaError):
                    sql(text)
            sql("SET 'execution.runtime-mode' = 'streaming'")
            sql("SELECT id FROM orders o WHERE EXISTS (SELECT 1 FROM products p WHERE p.product = o.product)")
            assert not caplog.records
            with pytest.raises(AnalysisException):
                sql.spark.sql("SELECT nope")
            assert len(caplog.records) == 1, "what is not ours is logged as before"
        finally:
            logger.removeHandler(caplog.handler)

    @pytest.mark.parametrize(
        ("text", "error", "message"),
        [
            (
                "SELECT nope\nFROM orders",
                SchemaError,
                r"query: column 'nope' is in no table of the query; there are 'id', .* at line 1, column 8$",
            ),
            (
                "SELECT o.id,\n  o.ixd FROM orders o",
                SchemaError,
                r"column 'o\.ixd' is in no table of the query; did you mean 'o\.id'\? at line 2, column 3$",
            ),
            (
                "SELECT x.id FROM orders o",
                SchemaError,
                r"column 'x\.id' is in no table of the query; (did you|there are).* '(o\.)?id'.* column 8$",
            ),
            (
                "SELECT id AS k, amount AS k FROM orders ORDER BY k",
                SchemaError,
                r"column 'k' must be known at this place, .* several times; .* at line 1, column 50$",
            ),
            (
                "SELECT id FROM orders LIMIT amount",
                SchemaError,
                r"column 'amount' must be known at this place, found it in another .* at line 1, column 29$",
            ),
            (
                "SELECT id, amount.x FROM orders",
                SchemaError,
                r'got "(BIGINT|INT|DOUBLE|STRING)" at line 1, column 12$',
            ),
            (
                "SELECT amount.x FROM orders amount",
                SchemaError,
                r"column 'amount\.x' is in no table of the query; did you mean 'amount\.id' .* column 8$",
            ),
            (
                "SELECT amount.x.y FROM orders amount",
                SchemaError,
                r"column 'amount\.x' is in no table of the query; did you mean 'amount\.id' .* column 8$",
            ),
            (
                "SELECT o.amount.x FROM orders o",
                SchemaError,
                r'extract a value from "amount".* got "(BIGINT|INT|DOUBLE|STRING)" at line 1, column 8$',
            ),
            (
                "SELECT amount.amount.x FROM orders amount",
                SchemaError,
                r'extract a value from "amount".* got "(BIGINT|INT|DOUBLE|STRING)" at line 1, column 8$',
            ),
            (
                "SELECT nope FROM sales",
                SchemaError,
                r"there are ('(id|name|amount)', ){2}'(id|name|amount)' at line 1, column 8$",
            ),
            ("SELECT id FROM\n ordr", TableNotFoundError, "did you mean 'orders'.*at line 2, column 2"),
            ("SELECT id FROM nope.t", DatabaseNotFoundError, "'nope' does not exist.*at line 1, column 16"),
            (
                "INSERT INTO sales SELECT 1",
                SchemaError,
                r"must give 3 columns \(id, name, amount\), got 1 \(1\)",
            ),
            ("INSERT INTO sales BY NAME SELECT 1 AS id, 2 AS nope", SchemaError, "unknown column 'nope'"),
            ("INSERT INTO sales BY NAME SELECT 1 AS id, 2 AS ID", SchemaError, "column 'id' is named twice"),
            ("INSERT INTO sales BY NAME (id) SELECT 1", SchemaError, "INSERT INTO sales: "),
            ("INSERT INTO sales (id, nope) SELECT 1, 2", SchemaError, "unknown column 'nope'"),
            ("INSERT INTO sales (id, id) SELECT 1, 2", SchemaError, "column 'id' is named twice"),
            (
                "INSERT INTO sales (name) SELECT 'a'",
                SchemaError,
                "column 'id' is NOT NULL, and the statement gives",
            ),
            (
                "INSERT INTO sales SELECT 'a', 'b', 1",
                SchemaError,
                "column 'id' must be BIGINT, got STRING; write CAST",
            ),
            ("INSERT INTO orders (id, gross) SELECT 1, 2", SchemaError, "'gross' is computed from others"),
            ("INSERT INTO sales PARTITION (id = 1) SELECT 1, 2", SchemaError, "partition columns are none"),
            (
                "SELECT id FROM orders FOR SYSTEM_TIME AS OF amount",
                SchemaError,
                "the column 'amount', which is no processing time, is for streams",
            ),
            (
                "SELECT id FROM orders FOR SYSTEM_TIME AS OF TIMESTAMP 'x'",
                SchemaError,
                "expected TIMESTAMP 'date time', found 'x': it is no date and time, as 2020",
            ),
            (
                "SELECT id,\n  amount, count(*) FROM orders GROUP BY id",
                SchemaError,
                r"in the GROUP BY clause\. Add the columns .* is returned$",
            ),
            (
                "SELECT id FROM orders ORDER BY id IN (SELECT 1)",
                SchemaError,
                r"and UPDATE/MERGE/DELETE commands at line 1, column \d+$",
            ),
            (
                "SELECT id FROM range(3) r JOIN shelves2 /*+ OPTIONS('a'='b') */",
                TableNotFoundError,
                "shelves2",
            ),
        ],
    )
    def test_what_is_not_possible_is_refused_with_its_place(
        self, sql: Session, text: str, error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=message):
            sql(text)
        assert sql.stored("sales") == []

    def test_files_of_spark_are_tables_that_rows_are_added_to(self, sql: Session, tmp_path: Path) -> None:
        sql.spark.createDataFrame([(1, "x", 2.0)], "id INT, name STRING, n DOUBLE").write.parquet(
            f"{tmp_path}/f"
        )
        options = f"WITH ('connector' = 'parquet', 'path' = '{tmp_path}/f')"
        sql(f"CREATE TABLE files (name STRING, id INT, twice AS id * 2) {options}")
        assert sql.rows("SELECT * FROM files WHERE id = 1") == [("x", 1, 2)]
        assert sql.rows(f"SELECT id FROM parquet.`{tmp_path}/f`") == [(1,)]
        sql(f"CREATE TABLE made (id INT, name STRING) WITH ('connector' = 'json', 'path' = '{tmp_path}/j')")
        sql("INSERT INTO made (name, id) VALUES ('y', 2)")
        sql("INSERT INTO made SELECT id, name FROM files")
        assert sorted(sql.rows("SELECT id, name FROM made")) == [(1, "x"), (2, "y")]
        options = f"WITH ('connector' = 'orc', 'path' = '{tmp_path}/o')"
        sql(f"CREATE TABLE copied {options} AS SELECT name FROM made")
        assert sorted(sql.rows("SELECT * FROM copied")) == [("x",), ("y",)]
        with pytest.raises(ConfigurationError, match="OVERWRITE needs a managed table"):
            sql("INSERT OVERWRITE made VALUES (1, 'x')")
        sql("SET 'execution.runtime-mode' = 'streaming'")
        sql(f"SET 'checkpoint.location' = '{tmp_path}/c'")
        with pytest.raises(ConfigurationError, match="are only added, got changes with updates and deletes"):
            sql("INSERT INTO made SELECT CAST(id AS INT), 'x' FROM orders")
        with pytest.raises(ConfigurationError, match=r"a stream must not write into .* which batches wrote"):
            sql("INSERT INTO made SELECT id + 10, name FROM files")
        sql(f"CREATE TABLE streamed (id INT) WITH ('connector' = 'json', 'path' = 'file:{tmp_path}/s')")
        sql.ran("INSERT INTO streamed SELECT id + 10 FROM files")
        sql("RESET")
        assert sql.rows("SELECT id FROM streamed") == [(11,)]
        with pytest.raises(ConfigurationError, match=r"a batch must not write into .* which a stream wrote"):
            sql("INSERT INTO streamed VALUES (1)")
        with pytest.raises(ConfigurationError, match="the connector 'spark' needs the option 'format'"):
            sql("CREATE TABLE other (id INT) WITH ('connector' = 'spark')")

    KEPT: tuple[tuple[Mapping[str, str], str, str], ...] = (
        ({}, "texts", "d = 1e2"),
        ({"ansi.enabled": "false"}, "texts", "f = 16777217"),
        ({}, "texts AS x (id, t, s, d, f)", "s = 'a'"),
        ({"parser.escapedStringLiterals": "true"}, "texts", r"s = 'a\nb'"),
        ({"parser.escapedStringLiterals": "true"}, "texts", r"s = 'a\'b'"),
        ({"ansi.doubleQuotedIdentifiers": "true"}, "texts", 's = "t"'),
        ({"legacy.consecutiveStringLiterals.enabled": "true"}, "texts", "s = 'a''b'"),
    )

    def test_no_row_that_spark_keeps_is_left_out(self, sql: Session, subtests: pytest.Subtests) -> None:
        """By a filter of the store; literals mean what the session says that they mean."""
        rows = pa.table(
            {
                "id": range(6),
                "s": ["a", "a\nb", "a\\nb", "a\\'b", "ab", "t"],
                "t": ["x", "a", "a\\nb", "a", "y", "z"],
                "d": pa.array(["100.00000000000000001", "100", "1", "2", "3", "4"]).cast(
                    pa.decimal128(38, 20)
                ),
                "f": pa.array([16777216.0, 1.0, 2.0, 3.0, 4.0, 5.0], pa.float32()),
            }
        )
        sql(
            "CREATE TABLE texts (id BIGINT, s STRING, t STRING, d DECIMAL(38, 20), f FLOAT, "
            "PRIMARY KEY (id) NOT ENFORCED)"
        )
        texts = sql.catalog.table("texts")
        texts.write(rows)
        for settings, table, condition in self.KEPT:
            with subtests.test(condition, settings=settings):
                session = copy_of(sql.spark, {f"spark.sql.{name}": value for name, value in settings.items()})
                session.createDataFrame(rows).createOrReplaceTempView("rows_of_texts")
                wanted = session.sql(f"SELECT id FROM rows_of_{table} WHERE {condition}").toArrow()
                found = sql.catalog.sql(f"SELECT id FROM {table} WHERE {condition}", session)
                assert isinstance(found, Frame)
                assert wanted.num_rows
                assert multiset(found.rows) == multiset(wanted)
                if table == "texts":
                    sql.catalog.sql(f"DELETE FROM texts WHERE {condition}", session)
                    left = texts.snapshot().scan(columns=["id"])
                    assert multiset(left) == multiset(rows.select(["id"])) - multiset(wanted)
                    texts.write(rows)

    def test_explain_shows_the_plan_of_a_batch(self, sql: Session) -> None:
        text = "\n".join(
            sql.explained("EXPLAIN INSERT INTO sales SELECT id, 'x', amount FROM orders WHERE id > 1")
        )
        assert text.startswith(
            "reads orders(id, amount), about 3 rows, skips files without id > 1\n== Physical Plan =="
        )
        assert "upsert-table" in text
        (line,) = sql.explained("EXPLAIN FORMAT JSON SELECT count(*) FROM orders")
        found = json.loads(line)
        assert any("HashAggregate" in one for one in found["plan"])
        assert found["reads"] == [{"table": "orders", "columns": ["id"], "where": "", "rows": 3}]
        assert sql.stored("sales") == []

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("EXPLAIN CREATE TABLE x (a INT)", "… AS, or a statement set, got CREATE TABLE; SHOW and"),
            ("EXPLAIN FORMAT XML SELECT 1", "expected TEXT or JSON, found 'XML' at line 1, column 16"),
            ("EXPLAIN", "expected a statement"),
        ],
    )
    def test_what_cannot_be_explained_is_refused(self, text: str, why: str, sql: Session) -> None:
        with pytest.raises(SchemaError, match=why):
            sql(text)

    def test_table_is_made_from_a_query(self, sql: Session) -> None:
        sql("SET table-storage.bucket = 2")
        sql(
            "CREATE TABLE named (PRIMARY KEY (id) NOT ENFORCED) AS "
            "SELECT o.id, name FROM orders o JOIN products USING (product)"
        )
        assert sql.stored("named") == [(10, "tea"), (11, "coffee"), (12, "tea")]
        assert sql.catalog.table("named").options.bucket == 2
        result = sql("CREATE TABLE IF NOT EXISTS named AS SELECT 1 AS a")
        assert "was there already" in repr(result)
        sql("CREATE OR REPLACE TABLE named AS SELECT 1 AS a")
        assert sql.stored("named") == [(1,)]


class TestStreaming:
    @pytest.fixture(autouse=True)
    def _stream(self, sql: Session) -> None:
        sql("SET 'execution.runtime-mode' = 'streaming'")

    @pytest.mark.parametrize(
        ("condition", "first", "then"),
        [
            # with EXISTS: test_exists_inside_an_or_follows_random_changes
            ("product IN (SELECT product FROM products WHERE name <> 'milk')", [10, 11, 12], [10, 12, 13]),
            pytest.param(
                "EXISTS (SELECT 1 FROM products p WHERE p.product = o.product)",
                [10, 11, 12],
                [10, 12, 13],
                marks=pytest.mark.long,
            ),
            pytest.param(
                "product IN (SELECT product FROM products WHERE name LIKE 't%')",
                [10, 12],
                [10, 12],
                marks=pytest.mark.long,
            ),
            pytest.param(
                "NOT EXISTS (SELECT * FROM products p WHERE p.product = o.product)",
                [],
                [11],
                marks=pytest.mark.long,
            ),
            pytest.param(
                "id NOT IN (SELECT product FROM products)",
                [10, 11, 12],
                [10, 11, 12, 13],
                marks=pytest.mark.long,
            ),
            pytest.param(
                "product IN (SELECT product FROM orders WHERE amount > 1.5)",
                [10, 11, 12],
                [10, 11, 12],
                marks=pytest.mark.long,
            ),
            pytest.param(
                """EXISTS (SELECT 1 FROM products p WHERE p.product = o.product
                   AND p.product IN (SELECT product FROM orders WHERE amount > 1.5))""",
                [10, 11, 12],
                [10, 12],
                marks=pytest.mark.long,
            ),
            pytest.param(
                "amount > 1.9 OR EXISTS (SELECT 1 FROM products p WHERE p.product = o.product)",
                [10, 11, 12],
                [10, 11, 12, 13],
                marks=pytest.mark.long,
            ),
            pytest.param(
                """id = 11 AND NOT EXISTS (SELECT 1 FROM products p WHERE p.product = o.product)
                   OR product IN (SELECT product FROM products WHERE name LIKE 't%')""",
                [10, 12],
                [10, 11, 12],
                marks=pytest.mark.long,
            ),
        ],
    )
    def test_subquery_over_a_stream_is_a_join(
        self, condition: str, first: list[int], then: list[int], sql: Session
    ) -> None:
        text = f"INSERT INTO sales SELECT id, 'x', amount FROM orders o WHERE {condition}"
        sql("SET 'pipeline.name' = 'sales'")
        sql.ran(text)
        assert [id for id, *_ in sql.stored("sales")] == first
        sql.catalog.table("products").write(
            pa.table({"product": [2, 3], "name": ["coffee", "cake"], "_row_kind": ["-D", "+I"]})
        )
        sql.catalog.table("orders").write(pa.table({"id": [13], "product": [3], "amount": [1.0]}))
        sql.ran(text)
        assert [id for id, *_ in sql.stored("sales")] == then

    @pytest.mark.parametrize(
        ("seed", "rounds"), [(1, 2), *(pytest.param(seed, 4, marks=pytest.mark.long) for seed in (1, 2, 3))]
    )
    def test_exists_inside_an_or_follows_random_changes(self, seed: int, rounds: int, sql: Session) -> None:
        random_ = Random(seed)
        query = """SELECT id, 'x' AS name, amount FROM orders o WHERE amount > 2.5
            OR NOT EXISTS (SELECT 1 FROM products p WHERE p.product = o.product AND name > 'm')
                AND amount < 1.5"""

        def changed(name: str, row: Callable[[int], dict[str, Any]]) -> None:
            ids = random_.sample(range(8), 5)
            kinds = [random_.choice(["+U", "+U", "-D"]) for _ in ids]
            rows = [{**row(id), "_row_kind": kind} for id, kind in zip(ids, kinds, strict=True)]
            table = sql.catalog.table(name)
            kind = pa.field("_row_kind", pa.string())
            table.write(pa.Table.from_pylist(rows, table.snapshot().scan().schema.append(kind)))

        for _ in range(rounds):
            changed(
                "products", lambda id: {"product": id, "name": random_.choice(["tea", "a", None, "cake"])}
            )
            changed(
                "orders",
                lambda id: {
                    "id": id,
                    "product": random_.choice([None, *range(8)]),
                    "amount": random_.choice([None, 1.0, 2.0, 3.0]),
                },
            )
            sql("SET 'execution.runtime-mode' = 'batch'")
            expected = sorted(sql.rows(query), key=repr)
            sql("SET 'execution.runtime-mode' = 'streaming'")
            sql("SET 'pipeline.name' = 'sales'")
            sql.ran(f"INSERT INTO sales {query}")
            assert sorted(sql.stored("sales"), key=repr) == expected

    @pytest.mark.parametrize(
        "condition",
        [
            "product NOT IN (SELECT product FROM products)",  # a product may be NULL
            "amount > (SELECT avg(product) FROM products)",
            "amount > (SELECT product FROM products WHERE name = 'tea')",
            "amount > 9 OR product IN (SELECT max(product) FROM products GROUP BY name)",
        ],
    )
    def test_what_one_query_cannot_hold_is_for_a_view(self, condition: str, sql: Session) -> None:
        with pytest.raises(PlanError, match="CREATE MATERIALIZED VIEW … AS SELECT") as told:
            sql(f"SELECT id FROM orders o WHERE {condition}")
        assert told.value.is_for_a_view

    def test_a_value_of_chance_over_a_stream_is_refused(self, sql: Session) -> None:
        """It means the same as no other value, so it was joined again and again, without end."""
        with pytest.raises(PlanError, match="cannot become a join"):
            sql("SELECT id FROM orders o WHERE amount > (SELECT max(product) + rand() FROM products)")

    def test_an_exists_that_no_row_can_meet_is_a_join_without_an_equality(self, sql: Session) -> None:
        """A column that cannot be NULL is NULL: of the condition nothing is left."""
        exists = "EXISTS (SELECT 1 FROM orders p WHERE p.id = o.id AND p.id IS NULL)"
        with pytest.raises(PlanError, match="no equality between a column of 'orders' and one of 'orders'"):
            sql(f"SELECT id FROM orders o WHERE amount > 9 OR {exists}")

    def test_subquery_over_a_stream_needs_a_planner(self, spark: SparkSession, tmp_path: Path) -> None:
        catalog = Catalog(tmp_path / "plain")
        for text in (ORDERS, PRODUCTS, "SET 'execution.runtime-mode' = 'streaming'"):
            catalog.sql(text, spark)
        with pytest.raises(SchemaError, match="write LEFT SEMI JOIN for EXISTS and IN") as told:
            catalog.sql("SELECT id FROM orders WHERE product IN (SELECT product FROM products)", spark)
        assert "\n" not in str(told.value)

    def test_a_second_stream_into_a_table_does_not_end_the_first(self, sql: Session, tmp_path: Path) -> None:
        """Spark itself would stop the first one, and give its checkpoint to the second."""
        sql(f"SET 'checkpoint.location' = '{tmp_path / 'checkpoints'}'")
        insert = "INSERT INTO sales SELECT id, 'x', amount FROM orders"
        running = sql(insert)
        assert isinstance(running, Running)
        sessions = {"": sql.spark.newSession(), "file:": sql.spark}
        try:
            for scheme, session in sessions.items():
                sql(f"SET 'checkpoint.location' = '{scheme}{tmp_path / 'checkpoints'}'")
                for second in (insert, f"{insert} WHERE id > 9"):
                    with pytest.raises(
                        ConfigurationError, match=r"one stream into it, got another .* STOP JOB"
                    ):
                        sql.catalog.sql(second, session)
            assert running.query.isActive
        finally:
            running.query.stop()
        sql.ran(insert)

    def test_failure_of_a_statement_is_the_error_that_it_is_about(self, sql: Session) -> None:
        sql("SET 'pipeline.name' = 'sales'")
        running = sql("INSERT INTO sales SELECT id, 'x', amount FROM orders")
        assert isinstance(running, Running)
        assert running.query is not None
        running.query.processAllAvailable()
        gone = Path(sql.catalog.table("orders").path)
        gone.rename(
            gone.with_name("renamed")
        )  # at once: of a folder half of which is gone another error tells
        try:
            with pytest.raises(TableNotFoundError, match="orders") as told:
                running.await_termination(60)
        finally:
            running.query.stop()
        assert "\n" not in str(told.value)

    def test_explain_says_how_a_stream_is_executed(self, sql: Session) -> None:
        join = "SELECT id, name, amount FROM orders JOIN products USING (product)"
        text = "\n".join(sql.explained(f"EXPLAIN {join}"))
        assert "inner join of orders with products" in text
        assert "form: delta join" in text
        assert "sink with" not in text
        (line,) = sql.explained(f"EXPLAIN PLAN FOR FORMAT = JSON INSERT INTO sales {join}")
        found = json.loads(line)
        assert [one["form"] for one in found["joins"]] == ["fused"]
        assert [table["name"] for table in found["joins"][0]["tables"]] == ["orders", "products"]
        assert (found["sink"]["key"], found["sink"]["form"]) == (["id"], "as it is")
        assert found["plan"][-1].strip().startswith("t1 products")
        (line,) = sql.explained(
            "EXPLAIN FORMAT JSON CREATE TABLE named (PRIMARY KEY (name) NOT ENFORCED) AS "
            "SELECT name, product FROM products"
        )
        assert json.loads(line)["sink"]["form"] == "materialized"
        (line,) = sql.explained(
            "EXPLAIN FORMAT JSON CREATE TABLE named (PRIMARY KEY (name) NOT ENFORCED) "
            "WITH ('sink.materialize' = 'none') AS SELECT name, product FROM products"
        )
        assert json.loads(line)["sink"]["form"] == "as it is"
        assert "named" not in sql.catalog.tables()
        text = "\n".join(sql.explained("EXPLAIN SELECT id FROM orders ORDER BY id LIMIT 3"))
        assert "refused: a sort over the changes of 'orders'" in text
        assert "CREATE MATERIALIZED VIEW … AS SELECT" in text
        assert sql.stored("sales") == []

    def test_explain_of_a_stream_needs_a_planner(self, spark: SparkSession, tmp_path: Path) -> None:
        catalog = Catalog(tmp_path / "plain")
        catalog.sql(PRODUCTS)
        catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
        with pytest.raises(ConfigurationError, match="EXPLAIN: a streaming query needs a catalog that plans"):
            catalog.sql("EXPLAIN SELECT name FROM products", spark)

    def test_insert_needs_a_checkpoint_and_goes_on_from_it(self, sql: Session) -> None:
        text = (
            "INSERT INTO sales SELECT id, name, amount FROM orders o JOIN products p ON o.product = p.product"
        )
        with pytest.raises(ConfigurationError, match="checkpoint, by which it continues after a stop"):
            sql(text)
        sql("SET 'pipeline.name' = 'sales'")
        first = sql.ran(text)
        assert sql.stored("sales") == [(10, "tea", 1.0), (11, "coffee", 2.0), (12, "tea", 3.0)]
        sql.catalog.table("products").write(pa.table({"product": [1], "name": ["TEA"]}))
        sql.catalog.table("orders").write(
            pa.table({"id": [11], "_row_kind": ["-D"], "product": [2], "amount": [2.0]})
        )
        second = sql.ran(text)
        assert second.checkpoint == first.checkpoint
        assert first.checkpoint.startswith(f"{sql.catalog.warehouse}/.jobs/sales/default.sales-")
        assert sql.stored("sales") == [(10, "TEA", 1.0), (12, "TEA", 3.0)]

    def test_select_gives_changes_or_the_rows_that_they_make(self, sql: Session) -> None:
        result = sql("SELECT id, name FROM orders JOIN products USING (product)")
        assert isinstance(result, Frame)
        assert result.df is not None
        assert (result.df.isStreaming, result.df.columns) == (True, ["id", "name", "_row_kind"])
        with pytest.raises(ConfigurationError, match="only a batch has rows, got a streaming query"):
            result.rows  # noqa: B018
        sql("SET 'execution.result-mode' = 'table'")
        counted = sql("SELECT name, count(*) AS n FROM orders JOIN products USING (product) GROUP BY name")
        joined = sql("SELECT name, INTERVAL '2' MONTH AS m FROM orders JOIN products USING (product)")
        assert isinstance(counted, Live)
        assert isinstance(joined, Live)
        sql.catalog.table("orders").write(pa.table({"id": [12], "product": [2], "amount": [2.0]}))
        for live in (counted, joined):
            assert live.query is not None
            live.query.processAllAvailable()
            live.query.stop()
        assert sorted(map(tuple, (row.values() for row in counted.rows.to_pylist()))) == [
            ("coffee", 2),
            ("tea", 1),
        ]
        assert sorted(joined.rows.column("name").to_pylist()) == ["coffee", "coffee", "tea"]
        assert set(joined.rows.column("m").to_pylist()) == {"INTERVAL '2' MONTH"}

    def test_a_stream_goes_into_the_columns_of_its_names(self, sql: Session) -> None:
        sql("SET 'pipeline.name' = 'named'")
        sql.ran("INSERT INTO sales BY NAME SELECT amount, name, id FROM orders JOIN products USING (product)")
        assert sql.stored("sales") == [(10, "tea", 1.0), (11, "coffee", 2.0), (12, "tea", 3.0)]

    def test_stream_cannot_overwrite(self, sql: Session) -> None:
        with pytest.raises(ConfigurationError, match="a stream cannot overwrite"):
            sql("INSERT OVERWRITE sales SELECT id, 'x', amount FROM orders")

    def test_hint_says_how_one_table_of_a_statement_is_read(self, sql: Session, tmp_path: Path) -> None:
        sql(f"SET 'checkpoint.location' = '{tmp_path}/checkpoints'")
        text = (
            "INSERT INTO sales SELECT id, 'x', amount FROM orders /*+ OPTIONS('scan.mode' = 'latest') */ AS o"
        )
        started = sql.ran(text)
        assert sql.stored("sales") == []
        sql.catalog.table("orders").write(pa.table({"id": [20], "product": [2], "amount": [9.0]}))
        assert sql.ran(text).checkpoint == started.checkpoint
        assert sql.stored("sales") == [(20, "x", 9.0)]

    def test_table_as_select_follows_its_query(self, sql: Session) -> None:
        sql("SET 'pipeline.name' = 'doubled'")
        sql("SET 'execution.trigger' = 'available-now'")
        text = "CREATE TABLE doubled (PRIMARY KEY (id) NOT ENFORCED) AS SELECT id, gross FROM orders"
        result = sql(text)
        assert isinstance(result, Running)
        assert result.query is not None
        result.query.awaitTermination()
        assert sql.stored("doubled") == [(10, 2.0), (11, 4.0), (12, 6.0)]
        sql("DROP TABLE doubled")
        with pytest.raises(
            ConfigurationError, match="is that of a dropped table, so the new one would lack its rows"
        ):
            sql(text)

    def test_rows_of_a_stream_look_a_table_up_when_they_are_processed(
        self, sql: Session, tmp_path: Path
    ) -> None:
        views = tmp_path / "views"
        sql.spark.createDataFrame([(1, "a"), (3, "b")], "product BIGINT, page STRING").write.parquet(
            str(views)
        )
        stream = sql.spark.readStream.schema("product BIGINT, page STRING").parquet(str(views))
        stream.createOrReplaceTempView("page_views")
        sql("CREATE TABLE named_views (page STRING, name STRING)")
        sql("SET 'pipeline.name' = 'views'")
        sql.ran(
            "INSERT INTO named_views SELECT v.page, p.name FROM page_views v "
            "LEFT JOIN products FOR SYSTEM_TIME AS OF PROCTIME() AS p ON v.product = p.product"
        )
        assert sorted(sql.stored("named_views"), key=str) == [("a", "tea"), ("b", None)]
