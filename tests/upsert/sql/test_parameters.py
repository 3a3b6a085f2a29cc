"""Parameters of statements: which have values, how they reach Spark, the store, and conditions on files."""

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import planner
from tests.upsert.catalog.run.without_spark.beside_spark import UTC_SESSION, without
from upsert.catalog.catalog import Catalog
from upsert.errors import ConfigurationError, SchemaError
from upsert.sql.parameters import bound, parameters, written
from upsert.sql.parser import parse

MERGE = (
    "MERGE INTO t USING (SELECT ? AS id, CASE WHEN ? THEN 2 END AS v) s ON t.id = s.id "
    "WHEN MATCHED AND s.v > ? THEN UPDATE SET v = ? WHEN NOT MATCHED THEN INSERT (id, v) VALUES (id, ?)"
)


@pytest.mark.parametrize(
    ("text", "args", "marks", "values"),
    [
        (
            "SELECT a FROM t WHERE b > ? AND c IN (?, 'a ? b') LIMIT ?",
            [1, "x", 2],
            "> c IN LIMIT",
            [1, "x", 2],
        ),
        ("SELECT a FROM t WHERE b = :b -- :c\nOR c = :b", {"b": 1}, "= =", [1]),
        ("INSERT INTO t VALUES (?, CAST(NULL AS STRUCT<a: INT>), ?)", (1, None), "VALUES ,", [1, None]),
        ("UPDATE t SET a = ?, b = upper(?) WHERE c = ?", [1, 2, 3], "", [1, 2, 3]),
        ("DELETE FROM t WHERE length(a) > ?", [1], "", [1]),
        (MERGE, [1, 2, 3, 4, 5], "", [1, 2, 3, 4, 5]),
        ("EXPLAIN INSERT INTO t SELECT a FROM u WHERE c = ?", [1], "", [1]),
        ("CREATE TABLE t AS SELECT a, :x AS x FROM u", {"x": 1}, "", [1]),
        (
            "SELECT :case AS c FROM t WHERE b BETWEEN :from AND :to",
            {"case": 1, "from": 2, "to": 3},
            "",
            [1, 2, 3],
        ),
        (
            "UPDATE t SET a = :values, b = :from + 1 WHERE c < :limit",
            {"values": 1, "from": 2, "limit": 3},
            "",
            [1, 2, 3],
        ),
    ],
)
def test_values_are_bound_in_the_order_of_their_marks(
    text: str, args: Any, marks: str, values: list[Any]
) -> None:
    statement: Any = bound(parse(text), args)
    statement = getattr(statement, "statement", statement)
    query = getattr(statement, "query", None) or statement.rows
    sent = query.over([None] * len(query.references)).text
    assert list(query.args.values()) == values
    assert "?" not in sent.replace("'a ? b'", "")
    places = [sent.index(f":{name}") for name in query.args]
    assert places == sorted(places)


def test_numbers_of_numpy_are_those_of_python() -> None:
    """They were refused, with a literal of Spark's as the remedy, or needed a session."""
    given = [
        np.int64(7),
        np.uint8(7),
        np.float32(0.5),
        np.float64(0.1),
        np.bool_(True),
        np.timedelta64(1, "s"),
    ]
    names = [f"v{number}" for number in range(len(given))]
    for text, args in (("?", given), ("v", dict(zip(names, given, strict=True)))):
        marks = ", ".join(f":{name}" if text == "v" else "?" for name in names)
        statement: Any = bound(parse(f"SELECT a FROM t WHERE b IN ({marks})"), args)
        found = list(statement.query.args.values())
        assert found == [7, 7, 0.5, 0.1, True, given[-1]]
        assert [type(value) for value in found] == [int, int, float, float, bool, np.timedelta64]


def test_conditions_on_values_are_those_on_literals() -> None:
    """So files are left out, and the store deletes, as if the values had been written."""
    at = datetime(2020, 10, 1, 8, 0, 0, 5, timezone(timedelta(hours=2)))
    values = {"i": -3, "d": Decimal(f"-{'9' * 38}"), "s": "it's", "day": date(2020, 10, 1), "yes": True}
    values |= {"x": -1e22, "y": 0.1, "at": at}
    written = f"a = -3 AND b > -{'9' * 38}. AND c = 'it''s' AND e < DATE '2020-10-01' AND f = TRUE"
    written += " AND g > -1e22 AND h > 0.1e0 AND i < TIMESTAMP '2020-10-01 06:00:00.000005Z'"
    marked = "a = :i AND b > :d AND c = :s AND e < :day AND f = :yes AND g > :x AND h > :y AND i < :at"
    for head in ("SELECT * FROM t", "DELETE FROM t"):
        given: Any = bound(parse(f"{head} WHERE {marked}"), values)
        alike: Any = parse(f"{head} WHERE {written}")
        queries = [getattr(one, "query", None) or one.rows for one in (given, alike)]
        wheres = [[repr(one) for one in query.references[0].where] for query in queries]
        assert wheres[0] == wheres[1]
        if head.startswith("DELETE"):
            assert given.condition == alike.condition
    no_literals = {"now": at.replace(tzinfo=None), "old": at.replace(year=1582), "nan": float("nan")}
    marks: Any = bound(parse("SELECT * FROM t WHERE a < :now AND b > :old AND c = :nan"), no_literals)
    assert marks.query.references[0].where == ()


class Colour(str, Enum):  # noqa: UP042  (the text of a StrEnum is its value)
    RED = "red"


class Size(int, Enum):
    SMALL = 1


def test_values_need_no_spark(tmp_path: Path) -> None:
    """Members of an enum have their name as their text."""
    catalog = Catalog(tmp_path)
    catalog.context.settings = UTC_SESSION
    types = "s STRING, i INT, d DOUBLE, at TIMESTAMP, PRIMARY KEY (id) NOT ENFORCED"
    catalog.sql(f"CREATE TABLE t (id INT, {types})")
    values = [7, Colour.RED, Size.SMALL, -2.5e-7, datetime(2020, 10, 1, 8, tzinfo=UTC)]
    without(catalog, "INSERT INTO t VALUES (?, ?, ?, ?, ?)", values)
    found: Any = without(catalog, "SELECT * FROM t WHERE s = ? AND i = ? AND d = ? AND at = ?", values[1:])
    assert found.rows.to_pylist() == [dict(zip(("id", "s", "i", "d", "at"), values, strict=True))]


def test_names_of_parameters() -> None:
    assert parameters(parse("EXPLAIN SELECT :b + :a, :b FROM t")) == ("a", "b")
    assert parameters(parse("UPDATE t SET a = ?")) == ()
    assert parameters(parse("SHOW TABLES")) == ()


@pytest.mark.parametrize(
    ("text", "args", "error", "message"),
    [
        (
            "SELECT :a",
            None,
            SchemaError,
            "parameter :a must have a value, args has none; give args={'a': …}, on the command",
        ),
        ("SELECT :a", {"b": 1}, SchemaError, "parameter :a must have a value, args has :b"),
        (
            "SELECT :a",
            {"a": 1, "b": 2},
            ConfigurationError,
            "belong to a parameter, got :b; parameters are :a",
        ),
        ("SELECT 1", {"b": 1}, ConfigurationError, "got :b; parameters are none"),
        ("SELECT 1", ["secret"], ConfigurationError, "got 1 values; parameters are none"),
        ("SELECT :a", [1], ConfigurationError, "parameters are :a, so args must be a dict, got a list"),
        ("SELECT ?", {"a": 1}, ConfigurationError, "parameters are ?, so args must be a list, got a dict"),
        ("SELECT ?", None, SchemaError, "the 1 parameters ? must have a value each, args has 0"),
        ("SELECT ?", [1, 2], SchemaError, "the 1 parameters ? must have a value each, args has 2"),
        ("SELECT ?, :a", [1], SchemaError, "parameters must be all ? or all :name, got both"),
        (
            "SELECT ?",
            "x",
            ConfigurationError,
            "args must be a dict of values by name, or a list for each ?, got str",
        ),
        ("SHOW TABLES", {"a": 1}, ConfigurationError, "got 1 values for another statement"),
        ("DELETE FROM t", [1], ConfigurationError, "got 1 values for another statement"),
        (
            "CREATE MATERIALIZED VIEW v AS SELECT a FROM t WHERE b = :b",
            {"b": 1},
            SchemaError,
            "a view keeps the text of its query, which must have no parameters, got :b; write the value",
        ),
        ("SHOW PARTITIONS t PARTITION (a = ?)", [1], SchemaError, "expected a literal, found '?'"),
    ],
)
def test_missing_and_superfluous_values_are_refused(
    text: str, args: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as raised:
        bound(parse(text), args)
    assert message in str(raised.value)


@pytest.mark.spark
def test_spark_gets_literals_of_the_values_types(spark: SparkSession, tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    types = "v STRING, n DOUBLE, PRIMARY KEY (id) NOT ENFORCED"
    catalog.sql(f"CREATE TABLE t (id INT, {types})")
    text = "x'; DROP TABLE t \\ \\' \" \n :id ? é"
    values = {
        "text": text,
        "n": 1.5,
        "none": None,
        "day": date(2020, 10, 1),
        "time": datetime(2020, 10, 1, 8, tzinfo=UTC),
        "bytes": b"\x00'",
        "list": [1, 2],
        "span": timedelta(days=1),
        "exact": Decimal("1.10"),
    }
    marks = ", ".join(f":{name} AS `{name}`" for name in values)
    (row,) = catalog.sql(f"SELECT {marks}", spark, args=values).rows.to_pylist()
    assert row == values
    catalog.table("t").write(pa.table({"id": pa.array([1, 2], pa.int32()), "v": ["a", "b"], "n": [1.0, 2.0]}))
    catalog.sql(
        "UPDATE t SET v = :v, n = n * :f WHERE length(v) = :one AND id = 2",
        spark,
        args={"v": text, "f": 2, "one": 1},
    )
    found = catalog.sql("SELECT id FROM t WHERE v = ? AND n > ? LIMIT ?", spark, args=[text, 3.5, 5]).rows
    assert found.to_pylist() == [{"id": 2}]
    between = "SELECT id FROM t WHERE n BETWEEN :from AND :like"
    assert catalog.sql(between, spark, args={"from": 3.5, "like": 9}).rows.to_pylist() == [{"id": 2}]
    no_literals = [object(), {"a": 1}, (1, 2), {1}, [1, "a"], 2**63, Decimal("NaN"), Decimal("1E-40")]
    for value in no_literals:
        expected = f"parameter :a must be a literal of Spark SQL, got {type(value).__name__}"
        with pytest.raises(ConfigurationError, match=expected):
            catalog.sql("SELECT :a", spark, args={"a": value})
    with pytest.raises(SchemaError, match=r"'nix' is in no table of the query; .* at line 2$"):
        catalog.sql("SELECT id FROM t\nWHERE id > :long AND nix = 1", spark, args={"long": 123_456})
    catalog.sql(f"CREATE TABLE u (id INT, {types})")
    catalog.options.update({"execution.runtime-mode": "streaming", "pipeline.name": "p"})
    query = catalog.sql(
        "INSERT INTO u SELECT id, :v, n + :add FROM t WHERE n > :least",
        spark,
        args={"v": "x", "add": 0.5, "least": 1},
    ).query
    query.processAllAvailable()
    query.stop()
    assert catalog.table("u").snapshot().scan().to_pylist() == [{"id": 2, "v": "x", "n": 4.5}]


def test_a_number_that_no_double_holds_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"value '-1e400': .* is a DOUBLE, of at most 1.8e308"):
        written("-1e400")
    assert written("'1e400'") == "1e400"
