"""Statements carried out: what they change, what they show, and what they refuse; without Spark."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upsert.sql.test_ddl import statements
from upsert.catalog.catalog import Catalog
from upsert.catalog.results import Result, Rows, as_text
from upsert.catalog.script import split_statements
from upsert.errors import (
    ConfigurationError,
    DatabaseExistsError,
    DatabaseNotFoundError,
    SchemaError,
    TableNotFoundError,
)
from upsert.schema import ComputedColumn, Watermark
from upsert.sql.parser import parse
from upsert.sql.show_create import create_text
from upsert.sql.statements import (
    CompactTable,
    CreateTable,
    CreateTableAs,
    DescribeTable,
    DropPartition,
    Insert,
    PublishLog,
    ResetOption,
    SetOption,
    ShowOptions,
    ShowTables,
    Statement,
    TrackPartitions,
)

DAYS = (
    "CREATE TABLE visits (day STRING, id INT, n INT, PRIMARY KEY (day, id) NOT ENFORCED) PARTITIONED BY (day)"
)


def rows(result: Result) -> list[dict[str, Any]]:
    assert isinstance(result, Rows)
    found: list[dict[str, Any]] = result.rows.to_pylist()
    return found


def visits(*values: tuple[str, int, int]) -> pa.Table:
    days, ids, numbers = zip(*values, strict=True)
    return pa.table({"day": days, "id": ids, "n": numbers})


class TestParser:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("set execution.result-mode=changelog;", SetOption("execution.result-mode", "changelog")),
            ("SET 'table-storage.bucket' = '10'", SetOption("table-storage.bucket", "10")),
            ("SET table-storage.bucket = 10;", SetOption("table-storage.bucket", "10")),
            ("SET 'a' = 'it''s; = b'", SetOption("a", "it's; = b")),
            ("-- first\nSET a.b = c d", SetOption("a.b", "c d")),
            ("SET", ShowOptions()),
            ("SET a;", ShowOptions("a")),
            ("RESET", ResetOption()),
            ("RESET 'a'", ResetOption("a")),
            ("SHOW TABLES FROM shop LIKE 'a%'", ShowTables("shop", "a%")),
            ("ALTER TABLE t COMPACT", CompactTable("t")),
            ("ALTER TABLE t PUBLISH LOG", PublishLog("t")),
            ("alter table a.t publish log accept gap", PublishLog("a.t", accept_gap=True)),
            ("alter table a.t partition (d = 'x') compact", CompactTable("a.t", {"d": "x"})),
            ("ALTER TABLE t COMPACT PARTITION (d = 'x')", CompactTable("t", {"d": "x"})),
            (
                "ALTER TABLE t DROP IF EXISTS PARTITION (n = -1)",
                DropPartition("t", {"n": -1}, if_exists=True),
            ),
            (
                "ALTER TABLE t PARTITION (d = 'x') SET ('change-tracking' = 'FALSE')",
                TrackPartitions("t", {"d": "x"}, is_tracked=False),
            ),
            ("DESCRIBE DETAIL TABLE t", DescribeTable("t", is_extended=True)),
            ("DESC TABLE EXTENDED db.t PARTITION (d = NULL)", DescribeTable("db.t", True, {"d": None})),
            ("DESCRIBE extended", DescribeTable("extended")),
        ],
    )
    def test_statement_is_read(self, text: str, expected: Statement) -> None:
        assert parse(text) == expected

    @pytest.mark.parametrize(
        ("text", "query", "columns", "partition", "options"),
        [
            ("INSERT INTO t SELECT 1", "SELECT 1", None, {}, {}),
            ("INSERT INTO TABLE a.t (x, y) VALUES (1, 2);", "VALUES (1, 2)", ("x", "y"), {}, {}),
            ("INSERT INTO t (SELECT 1)", "(SELECT 1)", None, {}, {}),
            ("INSERT INTO t (WITH w AS (SELECT 1) SELECT * FROM w)", None, None, {}, {}),
            ("INSERT INTO t (select, values) SELECT 1, 2", "SELECT 1, 2", ("select", "values"), {}, {}),
            ("INSERT INTO t PARTITION (d = 'x', e) (y) SELECT 1", "SELECT 1", ("y",), {"d": "x"}, {}),
            ("INSERT INTO t /*+ OPTIONS('a' = 'b') */ SELECT 1", "SELECT 1", None, {}, {"a": "b"}),
            ("INSERT INTO /*+ OPTIONS('a' = 'b') */ t SELECT 1", "SELECT 1", None, {}, {"a": "b"}),
            ("INSERT INTO t WITH w AS (SELECT 1) SELECT * FROM w", None, None, {}, {}),
            ("INSERT INTO t PARTITION (d = 'x') BY NAME SELECT 1", "SELECT 1", None, {"d": "x"}, {}),
        ],
    )
    def test_insert_is_read(
        self, text: str, query: str | None, columns: object, partition: object, options: object
    ) -> None:
        statement = parse(text)
        assert isinstance(statement, Insert)
        assert query is None or statement.query.text == query
        assert (statement.columns, statement.partition, statement.options) == (columns, partition, options)

    def test_create_table_as_is_a_value_with_its_query(self) -> None:
        statement = parse(
            "CREATE OR REPLACE TABLE s.t (PRIMARY KEY (id) NOT ENFORCED, INDEX (b)) COMMENT 'c' "
            "PARTITIONED BY (id) WITH ('bucket' = '2') AS SELECT id, b FROM u;"
        )
        assert isinstance(statement, CreateTableAs)
        assert statement.query.text == "SELECT id, b FROM u"
        assert [reference.name for reference in statement.query.references] == ["u"]
        assert (statement.name, statement.primary_key, statement.indexes) == ("s.t", ("id",), (("b",),))
        assert (statement.partitioned_by, statement.options) == (("id",), {"bucket": "2"})
        assert (statement.or_replace, statement.if_not_exists, statement.comment) == (True, False, "c")

    def test_computed_columns_and_the_watermark_are_no_columns_that_are_stored(self) -> None:
        statement = parse(
            "CREATE TABLE t (a INT, b AS a + f(a, `x y`) COMMENT 'sum', `x y` STRING, ts TIMESTAMP, "
            "p AS PROCTIME(), WATERMARK FOR ts AS ts - INTERVAL '1.5' SECOND)"
        )
        assert isinstance(statement, CreateTable)
        assert statement.schema.names == ("a", "x y", "ts")
        assert statement.schema.computed == (
            ComputedColumn("b", "a + f(a, `x y`)", ("a", "x y"), 1, "sum"),
            ComputedColumn("p", "PROCTIME()", (), 4),
        )
        assert statement.schema.watermark == Watermark("ts", 1500)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("SET a = ", "SET: expected a value of 'a'; RESET a gives it its default back"),
            ("SET 'a' 'b'", "SET: expected 'key' = 'value', found \"'a' 'b'\""),
            ("SET TIME ZONE 'UTC'", "a time zone is set by SET spark.sql.session.timeZone = 'UTC'"),
            ("RESET a = b", "RESET: expected a key alone, found 'a'"),
            (
                "SHOW TABLES t",
                "SHOW TABLES: expected the end of the statement, found 't' at line 1, column 13",
            ),
            ("ALTER TABLE t RENAME TO", "ALTER TABLE t: expected the name of a table"),
            ("ALTER TABLE t ADD (PRIMARY KEY (a) NOT ENFORCED)", "the primary key cannot change"),
            ("ALTER TABLE t FOO", "expected ADD, DROP COLUMN, DROP INDEX, DROP WATERMARK, RENAME COLUMN"),
            (
                "ALTER TABLE t PARTITION (a = 1) SET ('b' = '1')",
                "a partition has the option 'change-tracking' alone",
            ),
            ("ALTER TABLE t DROP PARTITION (a = b)", "expected a literal, found 'b' at line 1, column 35"),
            ("ALTER TABLE t DROP PARTITION (a = 1, a = 2)", "PARTITION names column 'a' twice"),
            ("ALTER TABLE t DROP PARTITION (a = DATE 'x')", "expected DATE 'year-month-day', found 'DATE'"),
            ("INSERT INTO t", "INSERT INTO t: expected a query, found the end of the text"),
            (
                "INSERT INTO t\nSELECT a b c FROM u",
                "INSERT INTO t: neither a query nor an expression goes",
            ),
            ("INSERT INTO t\nSELECT a b c FROM u", "found 'c' at line 2, column 12"),
            ("DELETE FROM t a", "DELETE FROM t: expected WHERE, found 'a'"),
            ("DELETE FROM t WHERE a =", "the expression is incomplete, found '=' at line 1, column 23"),
            ("DESCRIBE", "DESCRIBE: expected the name of a table, found the end of the text"),
        ],
    )
    def test_what_is_no_statement_is_refused(self, text: str, message: str) -> None:
        with pytest.raises(SchemaError) as error:
            parse(text)
        assert message in str(error.value)

    @given(st.text(max_size=30))
    def test_any_text_is_a_statement_or_refused(self, text: str) -> None:
        with suppress(SchemaError):
            parse(text)

    @pytest.mark.parametrize("text", ["SELECT\n '{}'", "SET a =\n{}", "INSERT INTO t VALUES (1,\n'{}')"])
    def test_a_letter_that_no_file_can_have_is_refused(self, text: str) -> None:
        """Python makes such ones of arguments and standard input that are no UTF-8."""
        with pytest.raises(SchemaError, match=r"text of UTF-8, found '\\udcfc' at line 2, column"):
            parse(text.format("\udcfc"))

    def test_value_of_an_option_is_not_in_the_repr(self) -> None:
        assert "pa55" not in repr(parse("SET spark.password = pa55"))


class TestScript:
    def test_statements_keep_their_places(self) -> None:
        text = "SET 'a' = ';'; -- no; statement\n\n  SELECT b c d\nFROM t;;\n/* ; */"
        first, second = split_statements(text)
        assert (first.text, first.line) == ("SET 'a' = ';'", 1)
        assert (second.text, second.line) == ("\n\n  SELECT b c d\nFROM t", 3)
        with pytest.raises(SchemaError, match="found 'd' at line 3, column 14"):
            parse(second.text)

    def test_the_mark_that_begins_a_file_is_of_no_statement(self) -> None:
        (first,) = split_statements("\ufeffSET 'a' = 'b';\r\n")
        assert (first.text, first.line) == (" SET 'a' = 'b'", 1)
        assert parse("\ufeffSET 'a' = 'b'") == parse(first.text)
        with pytest.raises(SchemaError, match="found 'd' at line 1, column 13"):
            parse("\ufeffSELECT b c d")

    @pytest.mark.parametrize(
        ("text", "where"),
        [
            ("SELECT 1;\nSELECT 'it''s", "' begins at line 2, column 8"),
            ("DROP TABLE `x; --\n", "` begins at line 1, column 12"),
            ("SELECT 1; /* */ /* 'a'", "/* begins at line 1, column 17"),
        ],
    )
    def test_open_quote_is_refused_with_its_place(self, text: str, where: str) -> None:
        with pytest.raises(SchemaError) as error:
            list(split_statements(text))
        assert str(error.value) == f"script: the text has an open quote or comment: what {where} has no end"


def test_a_result_without_what_is_asked_for_says_what_it_has(catalog: Catalog) -> None:
    done = catalog.sql(DAYS)
    with pytest.raises(
        AttributeError,
        match=r"CREATE TABLE visits: returns Done, which has affected_rows, note, statement, no 'show'",
    ):
        done.show()


class TestOptions:
    def test_options_of_new_tables_are_those_of_the_session_unless_they_say_otherwise(
        self, catalog: Catalog
    ) -> None:
        catalog.sql("SET table-storage.bucket = 4")
        catalog.sql("CREATE TABLE a (id INT, PRIMARY KEY (id) NOT ENFORCED)")
        catalog.sql("CREATE TABLE b (id INT, PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket' = '2')")
        catalog.sql("RESET 'table-storage.bucket'")
        catalog.sql("CREATE TABLE c (id INT, PRIMARY KEY (id) NOT ENFORCED)")
        assert [catalog.table(name).options.bucket for name in "abc"] == [4, 2, 1]

    def test_set_shows_what_is_set_and_masks_secrets(self, catalog: Catalog) -> None:
        catalog.options["execution.runtime-mode"] = "STREAMING"
        catalog.sql("SET spark.hadoop.secret.key = pa55")
        shown = {row["key"]: row["value"] for row in rows(catalog.sql("SET"))}
        assert shown["execution.runtime-mode"] == "STREAMING"
        assert shown["execution.result-mode"] == "changelog"
        assert shown["spark.hadoop.secret.key"] == "***"
        assert rows(catalog.sql("SET execution.runtime-mode")) == [
            {"key": "execution.runtime-mode", "value": "STREAMING"}
        ]
        assert catalog.options.is_streaming
        catalog.sql("RESET")
        assert not catalog.options.is_streaming

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("SET execution.runtime-mod = x", "unknown option 'execution.runtime-mod'; did you mean"),
            ("SET execution.runtime-mode = fast", "must be one of batch, streaming, got 'fast'"),
            ("SET table-storage.buckets = 1", "did you mean 'table-storage.bucket'"),
            ("SET table-storage.bucket = 0", "must be a positive integer, got '0'"),
            ("SET execution.trigger = soon", "must be 'available-now', or a duration like"),
            ("SET pipeline.name = ../x", "must be a name without slashes"),
            ("SET state.savepoints.dir = /tmp", "the same statement continues from its checkpoint"),
            ("SET restart-strategy.type = fixed-delay", "deltajoin run --restarts N"),
            ("RESET nonsense", "unknown option 'nonsense'"),
        ],
    )
    def test_option_that_is_not_possible_is_refused(self, catalog: Catalog, text: str, message: str) -> None:
        with pytest.raises(ConfigurationError) as error:
            catalog.sql(text)
        assert message in str(error.value)


class TestDatabases:
    def test_tables_lie_in_the_current_database_unless_they_name_another(self, catalog: Catalog) -> None:
        catalog.sql("CREATE DATABASE shop")
        catalog.sql("CREATE TABLE t (a INT)")
        catalog.sql("CREATE TABLE shop.t (b INT)")
        catalog.sql("USE shop")
        catalog.sql("CREATE TABLE u (c INT)")
        assert catalog.tables() == ("t", "u")
        assert catalog.tables("default") == ("t",)
        assert catalog.table("t").schema.names == ("b",)
        assert catalog.table("main.default.t").schema.names == ("a",)
        assert catalog.table("shop.u").path == os.path.join(catalog.warehouse, "shop.db", "u")
        assert rows(catalog.sql("SHOW TABLES FROM default")) == [{"table": "t"}]
        assert rows(catalog.sql("SHOW DATABASES")) == [{"database": "default"}, {"database": "shop"}]
        assert rows(catalog.sql("SHOW CURRENT DATABASE")) == [{"database": "shop"}]

    def test_another_catalog_of_the_warehouse_sees_them_and_begins_in_default(self, catalog: Catalog) -> None:
        catalog.sql("CREATE DATABASE shop")
        catalog.sql("USE shop")
        other = Catalog(catalog.warehouse, name="other")
        assert (other.databases.names(), other.databases.current) == (("default", "shop"), "default")
        with pytest.raises(ConfigurationError, match="catalogs are other, got 'main'"):
            other.table("main.shop.t")

    def test_database_with_tables_is_dropped_only_with_cascade(self, catalog: Catalog) -> None:
        catalog.sql("CREATE DATABASE shop")
        catalog.sql("CREATE TABLE shop.t (a INT)")
        with pytest.raises(ConfigurationError, match="database 'shop' must be empty, it has t"):
            catalog.sql("DROP DATABASE shop")
        catalog.sql("DROP DATABASE shop CASCADE")
        assert os.listdir(catalog.warehouse) == []
        with pytest.raises(DatabaseNotFoundError, match="database 'shop' does not exist"):
            catalog.sql("CREATE TABLE shop.t (a INT)")

    @pytest.mark.parametrize("drop", ["DROP DATABASE shop", "DROP DATABASE IF EXISTS shop CASCADE"])
    def test_database_of_another_system_is_not_dropped(self, catalog: Catalog, drop: str) -> None:
        """It went with its files: a folder of Spark's or Hive's warehouse has such a name too."""
        catalog.sql("CREATE DATABASE shop")
        folder = Path(catalog.warehouse) / "shop.db"
        for file in (folder / "orders" / "part-0.parquet", folder / "notes.txt"):
            file.parent.mkdir(exist_ok=True)
            file.write_text("rows")
        with pytest.raises(ConfigurationError, match=r"it has notes\.txt, orders; move"):
            catalog.sql(drop)
        assert {path.name for path in folder.rglob("*")} == {"orders", "part-0.parquet", "notes.txt"}

    def test_database_with_what_killed_statements_left_is_dropped(self, catalog: Catalog) -> None:
        catalog.sql("CREATE DATABASE shop")
        for left in ("begun/snapshot", f".dropped-{'a' * 32}/bucket-0"):
            (Path(catalog.warehouse) / "shop.db" / left).mkdir(parents=True)
        catalog.sql("DROP DATABASE shop")
        assert os.listdir(catalog.warehouse) == []

    @pytest.mark.parametrize(
        ("text", "error", "message"),
        [
            ("CREATE DATABASE `../x`", ConfigurationError, "a database's name must be 1 to 128 letters"),
            ("CREATE DATABASE default", DatabaseExistsError, "'default' exists already"),
            ("DROP DATABASE nope", DatabaseNotFoundError, "'nope' does not exist"),
            ("DROP DATABASE default CASCADE", ConfigurationError, "can be dropped; USE another one"),
            ("USE nope", DatabaseNotFoundError, "'nope' does not exist"),
            ("SHOW TABLES FROM `a/b`", ConfigurationError, "a database's name must be"),
            ("CREATE TABLE `..`.t (a INT)", SchemaError, "a name must be 1 to 128 letters"),
        ],
    )
    def test_what_is_not_possible_changes_nothing(
        self, catalog: Catalog, tmp_path: Path, text: str, error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=message):
            catalog.sql(text)
        assert [entry for _, folders, files in os.walk(tmp_path) for entry in (*folders, *files)] in (
            [],
            ["warehouse"],
        )

    def test_link_is_no_database(self, catalog: Catalog, tmp_path: Path) -> None:
        os.makedirs(catalog.warehouse)
        os.symlink(tmp_path, os.path.join(catalog.warehouse, "out.db"))
        assert catalog.databases.names() == ("default",)
        with pytest.raises(DatabaseNotFoundError):
            catalog.sql("USE out")


class TestDefinitions:
    def test_columns_are_added_renamed_widened_and_dropped(self, catalog: Catalog) -> None:
        catalog.sql("CREATE TABLE t (id INT, a INT, b STRING, PRIMARY KEY (id) NOT ENFORCED)")
        catalog.table("t").write(pa.table({"id": [1], "a": [2], "b": ["x"]}))
        for text in (
            "ADD COLUMN c DATE COMMENT 'when' AFTER id",
            "ADD (d INT, e STRING FIRST)",
            "RENAME COLUMN a TO n",
            "ALTER COLUMN n TYPE BIGINT",
            "ALTER COLUMN n COMMENT 'number'",
            "DROP COLUMNS (b, d)",
            "COMMENT 'all of them'",
        ):
            catalog.sql(f"ALTER TABLE t {text}")
        described = [(row["name"], row["type"], row["comment"]) for row in rows(catalog.sql("DESCRIBE t"))]
        assert described == [
            ("e", "STRING", None),
            ("id", "INT", None),
            ("c", "DATE", "when"),
            ("n", "BIGINT", "number"),
        ]
        assert catalog.table("t").snapshot().scan(["id", "n"]).to_pylist() == [{"id": 1, "n": 2}]
        assert catalog.table("t").schema.comment == "all of them"

    def test_options_are_set_and_reset(self, catalog: Catalog) -> None:
        catalog.sql("CREATE TABLE t (id INT) WITH ('bucket' = '2')")
        catalog.sql("ALTER TABLE t SET ('change-tracking' = 'false', 'write-only' = 'true')")
        assert not catalog.table("t").options.change_tracking
        catalog.sql("ALTER TABLE t RESET ('change-tracking')")
        assert catalog.table("t").options.change_tracking
        assert catalog.table("t").options.write_only
        catalog.sql("ALTER TABLE t SET ('bucket' = '3')")
        assert catalog.table("t").options.bucket == 3
        with pytest.raises(ConfigurationError, match="'bucket-key' cannot change"):
            catalog.sql("ALTER TABLE t SET ('bucket-key' = 'id')")

    def test_column_that_another_is_computed_from_stays(self, catalog: Catalog) -> None:
        catalog.sql("CREATE TABLE t (id INT, a INT, b AS a + 1)")
        for change in ("DROP COLUMN a", "RENAME COLUMN a TO c"):
            with pytest.raises(SchemaError, match=r"column 'b' AS a \+ 1: unknown column 'a'"):
                catalog.sql(f"ALTER TABLE t {change}")

    def test_partitions_are_shown_tracked_compacted_and_dropped(self, catalog: Catalog) -> None:
        catalog.sql(DAYS)
        table = catalog.table("visits")
        table.write(visits(("mon", 1, 1), ("tue", 1, 1)))
        table.write(visits(("mon", 1, 2)))
        catalog.sql("ALTER TABLE visits PARTITION (day = 'tue') SET ('change-tracking' = 'false')")
        catalog.sql("ALTER TABLE visits COMPACT PARTITION (day = 'mon')")
        shown = rows(catalog.sql("SHOW PARTITIONS visits"))
        assert [(row["partition"], row["change-tracking"], row["num-files"]) for row in shown] == [
            ("day=mon", True, 1),
            ("day=tue", False, 1),
        ]
        assert [row["compacted"] for row in shown] == [True, True]
        assert rows(catalog.sql("DESCRIBE visits PARTITION (day = 'tue')")) == shown[1:]
        catalog.sql("ALTER TABLE visits DROP PARTITION (day = 'mon')")
        assert table.snapshot().scan().to_pylist() == [{"day": "tue", "id": 1, "n": 1}]

    def test_delete_takes_rows_that_meet_a_condition(self, catalog: Catalog) -> None:
        catalog.sql(DAYS)
        table = catalog.table("visits")
        table.write(visits(("mon", 1, 1), ("tue", 2, 2), ("wed", 3, 3)))
        catalog.sql("DELETE FROM visits WHERE day = 'mon' OR n BETWEEN 3 AND 9")
        assert table.snapshot().scan().to_pylist() == [{"day": "tue", "id": 2, "n": 2}]
        catalog.sql("DELETE FROM visits /*+ OPTIONS('change-tracking' = 'false') */")
        assert table.snapshot().scan().num_rows == 0
        with pytest.raises(ConfigurationError, match="the one option is 'change-tracking', got a"):
            catalog.sql("DELETE FROM visits /*+ OPTIONS('a' = 'b') */")

    def test_statements_about_files_need_a_managed_table(self, catalog: Catalog) -> None:
        catalog.sql(TOPIC)
        for text in ("ALTER TABLE words COMPACT", "DELETE FROM words", "SHOW PARTITIONS words"):
            with pytest.raises(ConfigurationError, match="needs a managed table, got one with a connector"):
                catalog.sql(text)

    def test_tables_that_are_not_there_are_named(self, catalog: Catalog) -> None:
        catalog.sql("CREATE TABLE orders (a INT)")
        for text in (
            "DESCRIBE order",
            "SHOW CREATE TABLE order",
            "ALTER TABLE order COMPACT",
            "DELETE FROM order",
        ):
            with pytest.raises(TableNotFoundError, match="did you mean 'orders'"):
                catalog.sql(text)


TOPIC = """CREATE TABLE words (
    word STRING, n BIGINT, upper AS upper(word), ts TIMESTAMP METADATA FROM 'timestamp',
    PRIMARY KEY (word) NOT ENFORCED
) WITH (
    'connector' = 'upsert-kafka', 'topic' = 'words', 'key.format' = 'json', 'value.format' = 'json',
    'properties.bootstrap.servers' = 'b:9092', 'properties.sasl.password' = 'pa55'
)"""


class TestShow:
    def test_tables_are_shown_by_pattern(self, catalog: Catalog) -> None:
        for name in ("orders", "order_lines", "users"):
            catalog.sql(f"CREATE TABLE {name} (a INT)")
        assert [row["table"] for row in rows(catalog.sql("SHOW TABLES LIKE 'order%'"))] == [
            "order_lines",
            "orders",
        ]
        assert [row["table"] for row in rows(catalog.sql("SHOW TABLES LIKE 'user_'"))] == ["users"]

    def test_describe_tells_what_each_column_is(self, catalog: Catalog) -> None:
        catalog.sql(
            "CREATE TABLE t (id INT, v DOUBLE COMMENT 'value', w AS v * 2 COMMENT 'twice', ts TIMESTAMP, "
            "PRIMARY KEY (id) NOT ENFORCED, INDEX (v), WATERMARK FOR ts AS ts - INTERVAL '5' SECOND)"
        )
        assert str(catalog.sql("DESCRIBE t")).splitlines() == [
            "name | type      | null  | key     | extras   | watermark    | comment",
            "-----+-----------+-------+---------+----------+--------------+--------",
            "id   | INT       | false | PRI     | NULL     | NULL         | NULL",
            "v    | DOUBLE    | true  | INDEX_v | NULL     | NULL         | value",
            "w    | NULL      | true  | NULL    | AS v * 2 | NULL         | twice",
            "ts   | TIMESTAMP | true  | NULL    | NULL     | ts - 5000 ms | NULL",
        ]

    def test_extended_description_has_the_columns_of_flip_188(self, catalog: Catalog) -> None:
        catalog.sql("CREATE TABLE t (id INT, ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '1' SECOND)")
        catalog.table("t").write(
            pa.table({"id": [1], "ts": pa.array([5_000_000], pa.timestamp("us", "UTC"))})
        )
        (row,) = rows(catalog.sql("DESCRIBE TABLE EXTENDED t"))
        assert row.pop("last-modified").timestamp() > 0
        assert row.pop("watermark").timestamp() == 4
        assert row == {
            "name": "main.default.t",
            "log.system": "none",
            "log.kafka.bootstrap.servers": None,
            "log.retention": None,
            "file.path": catalog.table("t").path,
            "log.kafka.topic": None,
            "file.format": "arrow",
            "bucket": 1,
            "change-tracking": True,
            "compacted": True,
            "num-files": 1,
        }

    def test_extended_description_of_a_topic_says_where_it_lies(self, catalog: Catalog) -> None:
        catalog.sql(TOPIC)
        (row,) = rows(catalog.sql("DESCRIBE TABLE EXTENDED words"))
        known = {key: value for key, value in row.items() if value is not None}
        assert known == {
            "name": "main.default.words",
            "log.system": "upsert-kafka",
            "log.kafka.topic": "words",
            "log.kafka.bootstrap.servers": [("bootstrap.servers", "b:9092")],
        }

    def test_secrets_are_masked(self, catalog: Catalog) -> None:
        catalog.sql(TOPIC)
        shown = str(catalog.sql("SHOW CREATE TABLE words"))
        assert "'properties.sasl.password' = '***'" in shown
        assert "`upper` AS upper(word)" in shown
        for text in ("SHOW CREATE TABLE words", "DESCRIBE TABLE EXTENDED words", "DESCRIBE words"):
            assert "pa55" not in repr(catalog.sql(text))

    @given(statements())
    def test_shown_statement_makes_an_equal_table(self, statement: CreateTable) -> None:
        text = create_text(statement.name, statement.schema, {"a'b\\": "c''d", "e": ""})
        assert parse(text) == CreateTable(statement.name, statement.schema, {"a'b\\": "c''d", "e": ""})

    def test_shown_statement_has_computed_columns_and_watermark(self) -> None:
        text = (
            "CREATE TABLE a.t (b AS c + 1 COMMENT 'x', c INT, d AS PROCTIME(), ts TIMESTAMP_LTZ(3), "
            "WATERMARK FOR ts AS ts - INTERVAL '90' SECOND) PARTITIONED BY (c)"
        )
        statement = parse(text)
        assert isinstance(statement, CreateTable)
        assert parse(create_text(statement.name, statement.schema, {})) == statement

    def test_created_table_is_shown_as_it_was_written(self, catalog: Catalog) -> None:
        catalog.sql(DAYS + " WITH ('bucket' = '2')")
        shown = rows(catalog.sql("SHOW CREATE TABLE visits"))[0]["create table"]
        catalog.sql("CREATE DATABASE copy")
        catalog.sql("USE copy")
        catalog.sql(shown)
        one, other = catalog.table("default.visits"), catalog.table("visits")
        assert (one.schema, one.definition.given) == (other.schema, other.definition.given)


def test_long_results_are_shortened() -> None:
    shown = as_text(pa.table({"a": range(30), "b": ["x" * 60] * 30})).splitlines()
    assert (len(shown), shown[-1]) == (23, "(10 more rows)")
    assert shown[2] == f"0  | {'x' * 39}…"
    assert as_text(pa.table({"a": pa.array([], pa.int32())})).splitlines()[-1] == "(no rows)"


def test_results_do_not_command_the_terminal() -> None:
    assert as_text(pa.table({"a\x1b[2Jb": ["tea\x07\n", "x"]})).splitlines() == [
        "a\\x1b[2Jb",
        "---------",
        "tea\\x07\\n",
        "x",
    ]
    assert as_text(pa.table({"a": ["plan\n\tof \x1b[2J"]})) == "plan\n\tof \\x1b[2J"


def test_query_without_a_session_says_so(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    for text in ("SELECT 1", "CREATE TABLE t AS SELECT 1 AS a"):
        with pytest.raises(
            ConfigurationError, match=r"needs a Spark session, found none; give it as catalog.sql"
        ):
            catalog.sql(text)
