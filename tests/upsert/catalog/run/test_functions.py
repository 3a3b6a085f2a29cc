"""``CREATE TEMPORARY FUNCTION``: functions of the session in queries, streams and views."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import planner
from upsert.catalog.catalog import Catalog
from upsert.catalog.results import Done, Rows
from upsert.errors import ConfigurationError, SchemaError
from upsert.sql import statements as s
from upsert.sql.parser import parse

MODULE = "tests.upsert.catalog.run.functions_of_python"


def test_words_of_a_function_are_read() -> None:
    assert parse("CREATE TEMPORARY FUNCTION net(a INT DEFAULT 1) RETURNS INT RETURN a * 2 ; ") == (
        s.CreateFunction("net", "(a INT DEFAULT 1) RETURNS INT RETURN a * 2")
    )
    assert parse("CREATE OR REPLACE TEMPORARY SYSTEM FUNCTION `f` AS 'a.b.c' LANGUAGE PYTHON") == (
        s.CreateFunction("f", "a.b.c", is_python=True, or_replace=True)
    )
    assert parse("CREATE TEMPORARY FUNCTION IF NOT EXISTS f AS 'a.B' LANGUAGE JAVA USING JAR 'x.jar'") == (
        s.CreateFunction("f", "AS 'a.B' USING JAR 'x.jar'", if_not_exists=True)
    )
    assert parse("CREATE TEMP FUNCTION f() RETURN 1") == s.CreateFunction("f", "() RETURN 1")
    assert parse("DROP TEMPORARY FUNCTION IF EXISTS f") == parse("DROP TEMP FUNCTION IF EXISTS f")
    assert parse("DROP TEMPORARY FUNCTION IF EXISTS f") == s.DropFunction("f", True)
    assert parse("SHOW USER FUNCTIONS LIKE 'a%'") == s.ShowFunctions("USER", "a%")
    assert parse("SHOW FUNCTIONS") == s.ShowFunctions("ALL", None)
    assert parse("DESC FUNCTION EXTENDED f") == s.DescribeFunction("f", True)
    assert parse("DESCRIBE FUNCTION extended") == s.DescribeFunction("extended", False)
    assert parse("DESCRIBE function") == s.DescribeTable("function", False, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("DECLARE x INT DEFAULT (1) ;", s.ChangeVariable("DECLARE", "DECLARE x INT DEFAULT (1)")),
        ("SET /* a */ VAR x = 'a;b'", s.ChangeVariable("SET VAR", "SET /* a */ VAR x = 'a;b'")),
        ("set variable x=1", s.ChangeVariable("SET VARIABLE", "set variable x=1")),
        ("SET variable = 1", s.SetOption("variable", "1")),
        ("SET variable", s.ShowOptions("variable")),
        ("SET var.x = 1", s.SetOption("var.x", "1")),
        (
            "DROP TEMPORARY VARIABLE x",
            s.ChangeVariable("DROP TEMPORARY VARIABLE", "DROP TEMPORARY VARIABLE x"),
        ),
        ("DROP TEMP VAR x", s.ChangeVariable("DROP TEMP VAR", "DROP TEMP VAR x")),
    ],
)
def test_words_of_a_variable_are_read(text: str, expected: s.Statement) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CREATE TEMPORARY FUNCTION", "expected the name of a function, found the end"),
        ("CREATE TEMPORARY FUNCTION `a b`(x INT) RETURN x", "1 to 128 letters .*, found 'a b'"),
        ("CREATE TEMPORARY FUNCTION f", r"function 'f': expected \(name type, …\) RETURNS type RETURN .*"),
        ("CREATE TEMPORARY FUNCTION db.f(x INT) RETURN x", r"function 'db': expected .*, found '.'"),
        ("CREATE TEMPORARY FUNCTION f AS g", "AS 'module.function' LANGUAGE PYTHON, found 'g'"),
        ("CREATE TEMPORARY FUNCTION f AS 'a.b' LANGUAGE R", "expected one of PYTHON, JAVA, SCALA, found 'R'"),
        (
            "CREATE TEMPORARY FUNCTION f AS 'a.b' LANGUAGE PYTHON USING JAR 'x'",
            "expected the end of the",
        ),
        ("CREATE OR REPLACE TEMPORARY FUNCTION IF NOT EXISTS f AS 'a.b'", "either OR REPLACE or IF NOT EXI"),
        ("CREATE FUNCTION f(x INT) RETURN x", "CREATE FUNCTION is not supported; write CREATE TEMPORARY FUN"),
        ("DROP FUNCTION f", "DROP FUNCTION is not supported; write DROP TEMPORARY FUNCTION"),
    ],
)
def test_a_function_that_is_none_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        parse(text)


@pytest.fixture
def catalog(tmp_path: Path, spark: SparkSession) -> Iterator[Catalog]:
    """Two tables, and afterwards a session without functions."""
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    catalog.sql("CREATE TABLE a (id INT, k INT, v STRING, PRIMARY KEY (id) NOT ENFORCED, INDEX (k))")
    catalog.sql("CREATE TABLE b (k INT, w INT, PRIMARY KEY (k) NOT ENFORCED)")
    catalog.sql("INSERT INTO a VALUES (1, 1, 'ab'), (2, 2, 'cd'), (3, 1, NULL)")
    catalog.sql("INSERT INTO b VALUES (1, 100), (2, 200)")
    yield catalog
    for row in spark.sql("SHOW USER FUNCTIONS").collect():
        spark.sql(f"DROP TEMPORARY FUNCTION {row[0]}")


def rows(catalog: Catalog, text: str, spark: SparkSession) -> list[tuple[Any, ...]]:
    found = catalog.sql(text, spark).rows
    return sorted(tuple(row.values()) for row in found.to_pylist())


def test_functions_of_sql_and_python_in_queries_streams_and_views(
    catalog: Catalog, spark: SparkSession, tmp_path: Path
) -> None:
    created = [
        catalog.sql(f"CREATE TEMPORARY FUNCTION {text}", spark)
        for text in (
            "twice(x INT) RETURNS INT RETURN x * 2",
            f"turned AS '{MODULE}.reversed_text' LANGUAGE PYTHON",
            f"numbers AS '{MODULE}.Numbers' LANGUAGE PYTHON",
        )
    ]
    assert created[1] == Done("CREATE TEMPORARY FUNCTION turned", "created")
    assert rows(catalog, "SELECT id, n.number FROM a, LATERAL numbers(a.id) n", spark) == (
        [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)]
    )
    query = (
        "SELECT id, turned(v) AS v, twice(w) AS w FROM a JOIN b USING (k) WHERE twice(w) > 200 OR v = 'ab'"
    )
    assert rows(catalog, query, spark) == [(1, "ba", 200), (2, "dc", 400)]
    catalog.sql("CREATE TABLE joined (id INT, v STRING, w INT, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.sql(f"CREATE MATERIALIZED VIEW kept PRIMARY KEY (id) AS {query}", spark)
    for _ in range(2):
        catalog.options["execution.runtime-mode"] = "streaming"
        catalog.options["checkpoint.location"] = str(tmp_path / "checkpoint")
        running = catalog.sql(f"INSERT INTO joined {query}", spark)
        running.query.processAllAvailable()
        running.query.stop()
        catalog.options.clear()
        catalog.sql("REFRESH MATERIALIZED VIEW kept", spark)
        expected = rows(catalog, query, spark)
        assert rows(catalog, "SELECT * FROM joined", spark) == expected
        assert rows(catalog, "SELECT * FROM kept", spark) == expected
        catalog.sql("UPDATE b SET w = w + 1")
        catalog.sql("UPDATE a SET v = 'xyz' WHERE id = 3")


def test_a_function_is_created_replaced_shown_and_dropped(catalog: Catalog, spark: SparkSession) -> None:
    def done(text: str) -> str:
        found = catalog.sql(text, spark)
        assert isinstance(found, Done)
        return found.note

    def one() -> list[tuple[Any, ...]]:
        return rows(catalog, "SELECT f(1)", spark)

    def shown(text: str) -> list[str]:
        found = catalog.sql(text, spark)
        assert isinstance(found, Rows)
        return found.rows.column(0).to_pylist()

    assert done("CREATE OR REPLACE TEMPORARY FUNCTION f(x INT) RETURNS INT RETURN x + 1") == "created"
    assert done("CREATE TEMPORARY FUNCTION IF NOT EXISTS F(x INT) RETURNS INT RETURN 9") == "is there already"
    assert one() == [(2,)]
    assert done("CREATE OR REPLACE TEMPORARY FUNCTION f(x INT) RETURNS INT RETURN x + 2") == "replaced"
    assert one() == [(3,)]
    assert shown("SHOW USER FUNCTIONS") == ["f"]
    assert shown("SHOW FUNCTIONS LIKE 'upp%'") == ["upper"]
    assert shown("DESCRIBE FUNCTION f") == [
        *("Function: f", "Type:     SCALAR", "Input:    x INT", "Returns:  INT")
    ]
    assert done("DROP TEMPORARY FUNCTION f") == "dropped"
    assert done("DROP TEMPORARY FUNCTION IF EXISTS f") == "there was none"
    assert shown("SHOW USER FUNCTIONS") == []


def test_a_view_is_not_refreshed_by_another_function(
    catalog: Catalog, spark: SparkSession, tmp_path: Path
) -> None:
    """Neither where a plain view calls it, by another function; rows of both would stand in the view."""
    catalog.sql("CREATE TEMPORARY FUNCTION step(x INT) RETURNS INT RETURN x + 1", spark)
    catalog.sql("CREATE TEMPORARY FUNCTION next(x INT) RETURNS INT RETURN step(x)", spark)
    catalog.sql("CREATE VIEW numbered AS SELECT id, next(k) AS k FROM a", spark)
    catalog.sql("CREATE MATERIALIZED VIEW kept PRIMARY KEY (id) AS SELECT * FROM numbered", spark)
    other = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    catalog.sql("INSERT INTO a VALUES (4, 7, 'ef')")
    for text, found in (
        ("CREATE OR REPLACE TEMPORARY FUNCTION step(x INT) RETURNS INT RETURN x + 2", "another one"),
        ("DROP TEMPORARY FUNCTION step", "none"),
    ):
        catalog.sql(text, spark)
        with pytest.raises(SchemaError, match=f"must have the function 'step' with .* got {found}; CREATE"):
            other.sql("REFRESH MATERIALIZED VIEW kept", spark)
    catalog.sql(
        "CREATE TEMPORARY FUNCTION step(x INT) RETURNS BIGINT RETURN (SELECT max(id) FROM range(5))", spark
    )
    with pytest.raises(SchemaError, match="its query depends on the query within the function 'step', so"):
        other.sql("CREATE MATERIALIZED VIEW reading AS SELECT * FROM numbered", spark)
    catalog.sql("CREATE OR REPLACE TEMPORARY FUNCTION step(x INT) RETURNS INT RETURN x + 1", spark)
    other.sql("REFRESH MATERIALIZED VIEW kept", spark)
    assert rows(catalog, "SELECT * FROM kept", spark) == [(1, 2), (2, 3), (3, 2), (4, 8)]


def test_a_variable_is_read_by_queries_and_by_no_view(catalog: Catalog, spark: SparkSession) -> None:
    read = "SELECT id, w + least AS w FROM a JOIN b USING (k) WHERE k >= least"
    catalog.sql("DECLARE OR REPLACE VARIABLE least INT DEFAULT 1", spark)
    assert rows(catalog, read, spark) == [(1, 101), (2, 201), (3, 101)]
    catalog.sql("SET VARIABLE least = least + 1", spark)
    assert rows(catalog, read, spark) == [(2, 202)]
    with pytest.raises(SchemaError, match="column 'least' is in no table of the query"):
        catalog.sql(f"CREATE MATERIALIZED VIEW kept PRIMARY KEY (id) AS {read}", spark)
    catalog.sql("DROP TEMPORARY VARIABLE least", spark)
    with pytest.raises(Exception, match="'least'"):
        catalog.sql(read, spark)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CREATE TEMPORARY FUNCTION Upper(x STRING) RETURN x", "Spark has a function of this name"),
        (
            "CREATE TEMPORARY FUNCTION net(x INT) RETURN x",
            "net: the session has one of this",
        ),
        ("DROP TEMPORARY FUNCTION nett", "the session has no such function; did you mean 'net'?"),
        ("CREATE TEMPORARY FUNCTION f AS 'f' LANGUAGE PYTHON", "expected 'module.function', found 'f'"),
        ("CREATE TEMPORARY FUNCTION f AS 'no.f' LANGUAGE PYTHON", "finds no module 'no'; PYTHONPATH"),
        (f"CREATE TEMPORARY FUNCTION f AS '{MODULE}.Number' LANGUAGE PYTHON", "did you mean 'Numbers'?"),
        (
            f"CREATE TEMPORARY FUNCTION f AS '{MODULE}.without_type' LANGUAGE PYTHON",
            "found a function",
        ),
        ("CREATE TEMPORARY FUNCTION f AS 'json.dumps' LANGUAGE PYTHON", "json.dumps must be a function of"),
    ],
)
def test_a_function_that_cannot_be_is_refused(
    text: str, message: str, catalog: Catalog, spark: SparkSession
) -> None:
    catalog.sql("CREATE TEMPORARY FUNCTION net(x INT) RETURNS INT RETURN x", spark)
    with pytest.raises(ConfigurationError, match=message):
        catalog.sql(text, spark)
    assert "json" not in cloudpickle.list_registry_pickle_by_value()  # else tasks would get copies of it
