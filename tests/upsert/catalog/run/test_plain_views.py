"""``CREATE VIEW``: names for queries, kept or temporary, in batches, streams and materialized views."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import planner
from upsert.catalog.catalog import Catalog
from upsert.catalog.results import Frame, Rows
from upsert.errors import (
    ConfigurationError,
    CorruptTableError,
    SchemaError,
    TableExistsError,
    TableNotFoundError,
    UpsertError,
)
from upsert.sql import statements as s
from upsert.sql.parser import parse


def test_words_of_a_view_are_read() -> None:
    found = parse("CREATE OR REPLACE TEMPORARY VIEW db.v (a, `b c`) COMMENT 'x' AS SELECT 1, 2")
    assert isinstance(found, s.CreatePlainView)
    assert (found.name, found.columns, found.comment, found.query.text) == (
        "db.v",
        ("a", "b c"),
        "x",
        "SELECT 1, 2",
    )
    assert (found.is_temporary, found.or_replace, found.if_not_exists) == (True, True, False)
    assert parse("DROP TEMP VIEW IF EXISTS v") == s.DropPlainView("v", True, must_be_temporary=True)
    assert parse("SHOW VIEWS FROM a LIKE 'v%'") == s.ShowPlainViews("a", "v%")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CREATE VIEW v", "view 'v': expected AS and a query, found the end of the text"),
        ("CREATE VIEW v (a INT) AS SELECT 1", r"expected , or \), found 'INT' at line 1, column 18"),
        ("CREATE VIEW v (a, a) AS SELECT 1, 2", "column 'a' is named twice"),
        ("CREATE VIEW v AS DROP TABLE t", "view 'v': expected a query, found 'DROP TABLE t'"),
        ("CREATE VIEW v AS SELECT a FROM t WHERE b = :b", "must have no parameters, got :b; write the value"),
        (
            "CREATE OR REPLACE VIEW IF NOT EXISTS v AS SELECT 1",
            "either OR REPLACE or IF NOT EXISTS, not both",
        ),
        ("CREATE GLOBAL VIEW v AS SELECT 1", "CREATE GLOBAL VIEW is not supported"),
        ("DROP VIEW", "expected the name of a table, found the end"),
    ],
)
def test_a_view_that_is_none_is_refused_with_its_place(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=message):
        Catalog(tmp_path).sql(text)


class Session:
    """A catalog and what runs its statements."""

    def __init__(self, spark: SparkSession, warehouse: Path) -> None:
        self.spark = spark
        self.warehouse = warehouse
        self.catalog = Catalog(warehouse, optimize=planner.optimize)

    def __call__(self, text: str) -> Any:
        return self.catalog.sql(text, self.spark)

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        result = self(text)
        assert isinstance(result, Frame | Rows)
        return sorted((tuple(row.values()) for row in result.rows.to_pylist()), key=str)

    def refuses(self, text: str, error: type[UpsertError], message: str) -> None:
        with pytest.raises(error, match=message):
            self(text)


@pytest.fixture
def session(spark: SparkSession, ended_queries: None, tmp_path: Path) -> Session:
    session = Session(spark, tmp_path / "w")
    session("CREATE TABLE items (id BIGINT, shop STRING, n INT, PRIMARY KEY (id) NOT ENFORCED, INDEX (shop))")
    session("CREATE TABLE shops (shop STRING, city STRING, PRIMARY KEY (shop) NOT ENFORCED)")
    session.catalog.table("items").write(pa.table({"id": [1, 2, 3], "shop": ["a", "a", "b"], "n": [5, 7, 1]}))
    session.catalog.table("shops").write(pa.table({"shop": ["a", "b"], "city": ["Rome", "Oslo"]}))
    return session


pytestmark = pytest.mark.spark


def test_a_view_is_its_query_wherever_it_is_read(session: Session) -> None:
    session("CREATE DATABASE other")
    session("CREATE VIEW large COMMENT 'above 2' AS SELECT * FROM items WHERE n > 2")
    session("USE other")
    session(
        "CREATE VIEW per_city (city, total) AS SELECT city, sum(n) FROM default.large JOIN default.shops "
        "USING (shop) GROUP BY city"
    )
    session("CREATE TABLE items (wrong INT)")  # of another database than the views mean
    session("USE default")
    assert session.rows("SELECT * FROM other.per_city") == [("Rome", 12)]
    assert session.rows("WITH large AS (SELECT 1 AS one) SELECT * FROM large") == [(1,)]
    assert session.rows(
        "SELECT l.id, per_city.total FROM main.default.large l, other.per_city ORDER BY 1"
    ) == [
        (1, 12),
        (2, 12),
    ]
    session.catalog.table("items").write(pa.table({"id": [4], "shop": ["b"], "n": pa.array([9], pa.int32())}))
    assert session.rows("SELECT * FROM other.per_city") == [("Oslo", 9), ("Rome", 12)]
    session("ALTER TABLE items ADD COLUMN more INT")
    assert session("SELECT * FROM large").df.columns == ["id", "shop", "n"], "as when it was created"
    again = Session(session.spark, session.warehouse)
    assert again.rows("SHOW VIEWS") == [("large", False, "SELECT * FROM items WHERE n > 2")]
    assert again.rows("SHOW TABLES") == [("items",), ("large",), ("shops",)]
    assert [row[:2] for row in again.rows("DESCRIBE large")] == [
        ("id", "BIGINT"),
        ("n", "INT"),
        ("shop", "STRING"),
    ]
    (text,) = again.rows("SHOW CREATE VIEW other.per_city")[0]
    again("DROP VIEW other.per_city")
    again("USE other")
    again(text.replace("`other`.", ""))
    assert again.rows("SELECT * FROM per_city") == [("Oslo", 9), ("Rome", 12)]
    assert again.rows("SHOW VIEWS LIKE 'x%'") == []


def test_a_temporary_view_is_of_its_session(session: Session) -> None:
    session("CREATE TEMPORARY VIEW few AS SELECT id FROM items LIMIT 0")
    session("CREATE OR REPLACE TEMP VIEW few (x) AS SELECT id FROM items WHERE id < 2")
    assert session.rows("SELECT x FROM few") == [(1,)]
    assert session.rows("SHOW VIEWS") == [("few", True, "SELECT id FROM items WHERE id < 2")]
    assert ("few",) in session.rows("SHOW TABLES")
    assert session.rows("DESCRIBE few")[0][:2] == ("x", "BIGINT")
    assert "CREATE TEMPORARY VIEW `few` (" in session.rows("SHOW CREATE VIEW few")[0][0]
    session(f"CREATE CATALOG c2 WITH ('warehouse' = '{session.warehouse}2')")
    session("CREATE TEMPORARY VIEW c2.default.there AS SELECT max(id) AS n FROM items")
    session("USE CATALOG c2")
    assert session.rows("SELECT n FROM there, main.default.few") == [(3,)]
    session.refuses(
        "CREATE VIEW v AS SELECT id FROM main.default.items",
        SchemaError,
        "must lie in the catalog of the view",
    )
    session("USE CATALOG main")
    other = Session(session.spark, session.warehouse)
    other.refuses("SELECT * FROM few", TableNotFoundError, "table 'few' does not exist")
    session.refuses(
        "CREATE VIEW kept AS SELECT * FROM few", SchemaError, "is temporary, and only this session has it"
    )
    session.refuses(
        "CREATE MATERIALIZED VIEW m AS SELECT * FROM few",
        SchemaError,
        "is temporary, and only this session has it",
    )
    session.refuses(
        "INSERT INTO few VALUES (1)", ConfigurationError, "'few' is a view, .* which only queries read"
    )
    for text in (
        "CREATE TABLE few (id INT)",
        "CREATE TABLE IF NOT EXISTS few AS SELECT 1 AS one",
        "CREATE MATERIALIZED VIEW few AS SELECT * FROM items",
        "ALTER TABLE shops RENAME TO few",
    ):
        session.refuses(
            text, TableExistsError, "'few' is a view; choose another name, or write DROP TEMPORARY"
        )
    session.refuses(
        "CREATE VIEW few AS SELECT * FROM items", TableExistsError, "there is a temporary view of this"
    )
    other("CREATE TABLE few (id INT)")
    session.refuses(
        "SELECT * FROM few", ConfigurationError, "is a temporary view of this session, and also in the"
    )
    session("DROP VIEW few")
    assert session.rows("SELECT * FROM few") == []
    session.refuses("DROP TEMPORARY VIEW few", ConfigurationError, "'few' is a table; write DROP TABLE")
    session.refuses(
        "CREATE TEMPORARY VIEW few AS SELECT 1 AS a", TableExistsError, "there is a table of this name"
    )


def test_no_name_is_that_of_two_things_and_no_view_is_changed_as_a_table(session: Session) -> None:
    session("CREATE VIEW v AS SELECT id, n FROM items")
    session.refuses("CREATE VIEW v AS SELECT 1 AS one", TableExistsError, "OR REPLACE or IF NOT EXISTS")
    same = repr(session("CREATE VIEW IF NOT EXISTS v AS SELECT id,\n n FROM items"))
    assert same.endswith("was there already>")
    other = repr(session("CREATE VIEW IF NOT EXISTS v AS SELECT 1 AS one"))
    assert "its query is another one; CREATE OR REPLACE VIEW takes this one" in other
    session.refuses("CREATE VIEW items AS SELECT 1 AS one", TableExistsError, "there is a table of this name")
    session.refuses(
        "CREATE OR REPLACE VIEW items AS SELECT 1 AS one", TableExistsError, "there is a table of this"
    )
    for text, error, message in (
        (
            "CREATE TABLE IF NOT EXISTS v (id INT)",
            TableExistsError,
            "'v' is a view; choose another name, or write",
        ),
        ("CREATE OR REPLACE TABLE v AS SELECT 1 AS one", TableExistsError, "'v' is a view"),
        ("CREATE TABLE t WITH ('connector' = 'view') AS SELECT 1 AS one", UpsertError, "view"),
        ("CREATE TABLE t (id INT) WITH ('connector' = 'View')", ConfigurationError, "write CREATE VIEW"),
        ("CREATE TABLE t LIKE v", ConfigurationError, "'v' is a view, .* only queries read"),
        ("INSERT INTO v VALUES (1, 2)", ConfigurationError, "'v' is a view, .* only queries read"),
        ("DELETE FROM v WHERE id = 1", ConfigurationError, "'v' is a view"),
        ("UPDATE v SET n = 1", ConfigurationError, "'v' is a view"),
        ("ALTER TABLE v ADD COLUMN x INT", ConfigurationError, "'v' is a view"),
        ("ALTER TABLE v RENAME TO w", ConfigurationError, "'v' is a view"),
        ("DROP TABLE v", ConfigurationError, "'v' is a view; write DROP VIEW"),
        ("DROP VIEW items", ConfigurationError, "'items' is a table; write DROP TABLE"),
        ("DROP VIEW nothing", TableNotFoundError, "no view of this name; see SHOW VIEWS"),
        ("DROP TEMPORARY VIEW v", ConfigurationError, "is a view of the catalog"),
        ("SHOW CREATE VIEW items", ConfigurationError, "'items' is no view"),
        ("SELECT * FROM v$files", ConfigurationError, "'v' is a view"),
        (
            "SELECT * FROM v FOR SYSTEM_VERSION AS OF 1",
            SchemaError,
            "view 'v' at line 1, column 15 is read as its",
        ),
        (
            "SELECT * FROM table_changes(v, 0)",
            SchemaError,
            "leave out FOR SYSTEM_…, OPTIONS and table_changes",
        ),
        ("SELECT nope FROM v", SchemaError, "column 'nope' is in no table of the query.*line 1, column 8"),
        (
            "CREATE VIEW w (a) AS SELECT 1 AS x, 2 AS y",
            SchemaError,
            r"must give 1 columns \(a\), got 2 \(x, y\)",
        ),
        ("CREATE VIEW w AS SELECT 1 AS x, 2 AS x", SchemaError, "two columns 'x'"),
        (
            "CREATE VIEW w AS SELECT * FROM table_changes(items, 0)",
            SchemaError,
            "view 'w': column name '_row_kind' is reserved .* name the columns after the view",
        ),
        (
            "CREATE VIEW w AS SELECT nope FROM items",
            SchemaError,
            "column 'nope' is in no .* line 1, column 25",
        ),
        (
            "CREATE VIEW w AS SELECT * FROM nothing",
            SchemaError,
            "'nothing' at line 1, column 32 must be one of the",
        ),
    ):
        session.refuses(text, error, message)
    session("CREATE VIEW w AS SELECT * FROM v")
    session.refuses(
        "CREATE OR REPLACE VIEW v AS SELECT * FROM w", SchemaError, "reads itself, main.default.v → main.d"
    )
    session("CREATE OR REPLACE VIEW v AS SELECT n, id, shop FROM items WHERE id = 3")
    assert session.rows("SELECT * FROM w") == [(3, 1)]
    session("CREATE OR REPLACE VIEW v AS SELECT id FROM items")
    session.refuses(
        "SELECT * FROM w", SchemaError, "view 'w' at line 1, column 15 needs the column 'n' of its query"
    )
    session("DROP VIEW v")
    session.refuses(
        "SELECT * FROM w", TableNotFoundError, "table 'main.default.v' does not exist|table 'v' does not"
    )
    assert "was not there" in repr(session("DROP VIEW IF EXISTS v"))


def test_a_changed_byte_in_the_file_of_a_view_is_damage(session: Session) -> None:
    session("CREATE VIEW v AS SELECT id FROM items")
    file = session.warehouse / "v" / "table.json"
    assert [path.name for path in file.parent.iterdir()] == ["table.json"]
    file.write_text(file.read_text().replace("SELECT id", "SELECT no"))
    session.refuses("SELECT * FROM v", CorruptTableError, "table.json")
    assert "damaged" in session.rows("SHOW VIEWS")[0][2]
    session("DROP TABLE v")
    assert session.rows("SHOW VIEWS") == []


@pytest.mark.long
def test_streams_over_views_are_those_of_their_queries(session: Session) -> None:
    session("CREATE VIEW large AS SELECT * FROM items WHERE n > 2")
    session("CREATE VIEW named (id, place) AS SELECT id, city FROM large JOIN shops USING (shop)")
    session("CREATE VIEW roman AS SELECT shop FROM shops WHERE city = 'Rome'")
    session("CREATE TABLE places (id BIGINT, place STRING, PRIMARY KEY (id) NOT ENFORCED)")
    session("CREATE TABLE open (id BIGINT, shop STRING, n INT, PRIMARY KEY (id) NOT ENFORCED)")
    session("SET 'execution.runtime-mode' = 'streaming'")
    session("SET 'pipeline.name' = 'views'")
    running = session(
        """EXECUTE STATEMENT SET BEGIN
        INSERT INTO places SELECT * FROM named;
        INSERT INTO open SELECT * FROM large WHERE EXISTS (SELECT 1 FROM roman WHERE roman.shop = large.shop);
        END"""
    )
    for _ in range(2):
        for run in running.runs:
            run.query.processAllAvailable()
        session("SET 'execution.runtime-mode' = 'batch'")
        expected = session.rows("SELECT * FROM named")
        assert session.rows("SELECT * FROM places") == expected
        assert session.rows("SELECT * FROM open") == session.rows(
            "SELECT * FROM items WHERE n > 2 AND shop IN (SELECT shop FROM shops WHERE city = 'Rome')"
        )
        session.catalog.table("items").write(pa.table({"id": [1, 3], "shop": ["b", "b"], "n": [1, 8]}))
    running.stop()
    assert expected == [(2, "Rome"), (3, "Oslo")]


BY_PLACE = {
    "both": "SELECT * FROM items UNION ALL SELECT * FROM later",
    "named": "SELECT * FROM (SELECT * FROM items) AS q (a, b, c)",
    "within": "SELECT a, c FROM named",
    "common": "SELECT * FROM items NATURAL JOIN later",
    "before": "SELECT * FROM items FOR SYSTEM_VERSION AS OF 1",
    "changed (a, b, c, kind)": "SELECT * FROM table_changes(items, 0, 1)",
    "large": "SELECT id, twice FROM (SELECT *, n * 2 AS twice FROM items) WHERE twice > 2",
}
"""Queries that mean columns by their places, or by all that there are."""


def test_a_view_sees_the_columns_of_its_tables_in_their_places_of_then(session: Session) -> None:
    """One of Spark's, whose text is read anew, would have the rows of a UNION under other names."""
    session("CREATE TABLE later (id BIGINT, shop STRING, n INT, PRIMARY KEY (id) NOT ENFORCED)")
    session("INSERT INTO later VALUES (3, 'b', 1), (9, 'c', 4)")
    for named, query in BY_PLACE.items():
        session(f"CREATE VIEW {named} AS {query}")
    expected = {name: session.rows(f"SELECT * FROM {name}") for name in (one.split()[0] for one in BY_PLACE)}
    assert all(expected.values())
    for change in ("ALTER COLUMN n FIRST", "ADD COLUMN m INT DEFAULT 1 AFTER n", "ADD k AS n + 1"):
        session(f"ALTER TABLE items {change}")
        for name in expected:
            assert session.rows(f"SELECT * FROM {name}") == expected[name], (name, change)
    session("ALTER TABLE later ADD COLUMN m INT DEFAULT 1 AFTER id")
    session("CREATE MATERIALIZED VIEW m AS SELECT * FROM both")
    assert session.rows("SELECT id, shop, n FROM m") == expected["both"]
    session("CREATE OR REPLACE VIEW common AS SELECT * FROM items NATURAL JOIN later")
    assert session("SELECT * FROM common").df.columns == ["n", "m", "id", "shop", "k"]


def test_a_stream_over_a_view_goes_on_when_the_columns_of_its_tables_have_other_places(
    session: Session,
) -> None:
    session("CREATE VIEW named AS SELECT id, city FROM items JOIN shops USING (shop)")
    session("CREATE VIEW all_of AS SELECT * FROM items")
    session("CREATE TABLE places (id BIGINT, city STRING, PRIMARY KEY (id) NOT ENFORCED)")
    session("CREATE TABLE copies LIKE items")
    session("SET 'execution.runtime-mode' = 'streaming'")

    def follow() -> None:
        for sink, view in (("places", "named"), ("copies", "all_of")):
            session(f"SET 'pipeline.name' = '{sink}'")
            running = session(f"INSERT INTO {sink} SELECT * FROM {view}")
            running.query.processAllAvailable()
            running.query.stop()

    follow()
    session("ALTER TABLE items ALTER COLUMN n FIRST")
    session("ALTER TABLE shops ADD COLUMN country STRING DEFAULT 'it' FIRST")
    session("SET 'execution.runtime-mode' = 'batch'")
    session("INSERT INTO items VALUES (8, 2, 'b'), (9, 4, 'b')")
    session("DELETE FROM items WHERE id = 1")
    session("SET 'execution.runtime-mode' = 'streaming'")
    follow()
    session("SET 'execution.runtime-mode' = 'batch'")
    assert session.rows("SELECT * FROM places") == [(2, "Oslo"), (3, "Oslo"), (4, "Oslo")]
    assert session.rows("SELECT * FROM copies") == session.rows("SELECT id, shop, n FROM items")


def test_a_stream_over_a_view_is_planned_as_its_query(session: Session) -> None:
    session("CREATE VIEW named (id, place) AS SELECT id, city FROM items JOIN shops USING (shop)")
    session("CREATE TABLE places (id BIGINT, place STRING, PRIMARY KEY (id) NOT ENFORCED)")
    session("SET 'execution.runtime-mode' = 'streaming'")

    def join(query: str) -> list[str]:
        """What is said of the join, without the ids of columns and the projections below it."""
        lines = session(f"EXPLAIN INSERT INTO places {query}").rows.column(0).to_pylist()
        plan = next(number for number, line in enumerate(lines) if "Project" in line)
        return [re.sub(r"#\d+", "", line) for line in lines[:plan]]

    told = join("SELECT * FROM named")
    assert told == join("SELECT id, city AS place FROM items JOIN shops USING (shop)")
    assert told[0] == "inner join of items with shops on (shop = shop)"


def test_a_slip_in_a_view_is_told_of_its_rows_in_streaming_mode_too(session: Session) -> None:
    """A view that a batch can read is no query of changes, which have one column more."""
    view = "CREATE VIEW v AS SELECT nix FROM items"
    session("SET 'execution.runtime-mode' = 'streaming'")
    with pytest.raises(SchemaError, match="column 'nix' is in no table of the query") as refused:
        session(view)
    assert "_row_kind" not in str(refused.value)
    with pytest.raises(SchemaError, match="'_row_kind' is in no table of the query"):
        session("CREATE VIEW v AS SELECT id, _row_kind FROM items")


def test_metadata_of_changes_is_not_hidden_by_a_view(session: Session) -> None:
    session(
        "CREATE TABLE stamped (id BIGINT, at BIGINT METADATA FROM 'snapshot-id', "
        "PRIMARY KEY (id) NOT ENFORCED)"
    )
    session("CREATE VIEW v AS SELECT id, at FROM stamped")
    session("CREATE TABLE copies (id BIGINT, at BIGINT)")
    session("SET 'execution.runtime-mode' = 'streaming'")
    session("SET 'pipeline.name' = 'stamps'")
    session.refuses(
        "INSERT INTO copies SELECT * FROM v", SchemaError, "column 'at' holds metadata of a change"
    )


def test_a_materialized_view_keeps_the_views_that_it_was_created_with(session: Session) -> None:
    session("CREATE VIEW large AS SELECT * FROM items WHERE n > 2")
    session("CREATE VIEW named (id, place) AS SELECT id, city FROM large JOIN shops USING (shop)")
    session(
        "CREATE MATERIALIZED VIEW places PRIMARY KEY (place) AS "
        "SELECT place, count(*) AS n FROM named GROUP BY place"
    )
    assert session.rows("SELECT * FROM places") == [("Rome", 2)]
    definition = json.loads((session.warehouse / "places" / "table.json").read_text())
    assert '"large"' not in str(definition["schema"])
    session("CREATE OR REPLACE VIEW large AS SELECT * FROM items WHERE n > 6")
    session("DROP VIEW named")
    session.catalog.table("items").write(pa.table({"id": [3], "shop": ["b"], "n": [3]}))
    session("REFRESH MATERIALIZED VIEW places")
    assert session.rows("SELECT * FROM places") == [("Oslo", 1), ("Rome", 2)]
    view = session.catalog.view("places", session.spark)
    assert sorted(view.bases) == ["default.items", "default.shops"]
    assert view.is_current
    session.refuses(
        "CREATE MATERIALIZED VIEW m AS SELECT one FROM v",
        SchemaError,
        "'v' at line 1, column 47 must be a table of",
    )


def test_what_spark_alone_has_is_told_from_what_is_nowhere(session: Session) -> None:
    """A temporary view of the session can be queried, so its name is no mistake."""
    session.spark.range(2).createOrReplaceTempView("item")  # as items, which would be suggested
    try:
        assert session.rows("SELECT * FROM item") == [(0,), (1,)]
        told = "'item' is of the Spark session alone; CREATE TABLE … AS SELECT"
        for kind in ("VIEW", "TEMPORARY VIEW", "MATERIALIZED VIEW"):
            session.refuses(f"CREATE {kind} v AS SELECT * FROM item", SchemaError, told)
    finally:
        session.spark.catalog.dropTempView("item")
    session.refuses("CREATE VIEW v AS SELECT * FROM item", SchemaError, "did you mean 'items'.*; create it")
