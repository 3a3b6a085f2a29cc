"""Names that mean several things: tables of one name in two databases, and columns called as made-up ones.

Spark is the oracle: its own databases have the same tables.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import planner
from upsert.catalog.catalog import Catalog
from upsert.catalog.results import Frame, Live
from upsert.errors import SchemaError
from upsert.spark.settings import copy_of
from upsert.spark.version import PYSPARK

pytestmark = pytest.mark.spark


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(tmp_path / "warehouse", optimize=planner.optimize)


def in_order(df: DataFrame) -> list[tuple[Any, ...]]:
    """Its rows, which may have two columns of one name."""
    return sorted(map(tuple, df.collect()), key=repr)


def rows(catalog: Catalog, spark: SparkSession, query: str) -> list[tuple[Any, ...]]:
    return in_order(frame(catalog, spark, query))


def frame(catalog: Catalog, spark: SparkSession, query: str) -> DataFrame:
    found = catalog.sql(query, spark)
    assert isinstance(found, Frame)
    assert found.df is not None
    return found.df


def write(catalog: Catalog, name: str, *written: Mapping[str, Any]) -> None:
    """As INSERT does, without Spark."""
    table = catalog.table(name)
    table.write(pa.Table.from_pylist(list(written), schema=table.schema.arrow))


def assert_same_rows(
    spark: SparkSession, catalog: Catalog, queries: Sequence[str], subtests: pytest.Subtests
) -> None:
    """Each query has the columns and rows that Spark gives; all of them are computed together."""
    frames: list[DataFrame] = []

    def numbered(query: str, df: DataFrame, of: str) -> DataFrame:
        # two columns may have one name
        places = df.toDF(*(f"c{place}" for place in range(len(df.columns))))
        row = F.to_json(F.struct("*"), {"ignoreNullFields": "false"})
        return places.select(F.lit(query).alias("query"), F.lit(of).alias("of"), row.alias("row"))

    for query in queries:
        with subtests.test(query):
            found, wanted = frame(catalog, spark, query), spark.sql(query)
            assert found.columns == wanted.columns
            frames += numbered(query, found, "found"), numbered(query, wanted, "wanted")
    given: dict[tuple[str, str], list[str]] = {}
    for row in reduce(DataFrame.unionAll, frames).collect():
        given.setdefault((row.query, row.of), []).append(row.row)
    for query in queries:
        with subtests.test(query):
            assert sorted(given[query, "found"]) == sorted(given[query, "wanted"])


COLUMNS = "id INT, v STRING, t STRUCT<id: INT>"


@pytest.fixture(scope="module")
def two_databases(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    """Tables ``t`` in ``default`` and ``t`` and ``u`` in ``d2``, and views of Spark's with the same rows."""
    folder = tmp_path_factory.mktemp("two-databases")
    catalog = Catalog(folder / "warehouse", optimize=planner.optimize)
    catalog.sql("CREATE DATABASE d2")
    spark.sql(f"CREATE DATABASE d2 LOCATION '{folder}/d2'")
    for name, value in (("default.t", "one"), ("d2.t", "two"), ("d2.u", "three")):
        own = f"(2, '{value}', named_struct('id', 7)), (3, '{value}', NULL)"
        first = f"({10 + len(value)}, 'first of {name}', NULL)"
        catalog.sql(f"CREATE TABLE {name} ({COLUMNS}, PRIMARY KEY (id) NOT ENFORCED)")
        write(
            catalog,
            name,
            {"id": 10 + len(value), "v": f"first of {name}", "t": None},
            {"id": 2, "v": value, "t": {"id": 7}},
            {"id": 3, "v": value, "t": None},
        )
        spark.sql(f"CREATE VIEW {name} AS SELECT * FROM VALUES {first}, {own} AS rows(id, v, t)")
    yield catalog
    spark.sql("DROP VIEW default.t")
    spark.sql("DROP DATABASE d2 CASCADE")


OF_TWO_DATABASES = (
    "SELECT default.t.v, d2.t.v FROM default.t JOIN d2.t ON default.t.id = d2.t.id",
    "SELECT default.t.v, d2.t.v FROM t JOIN d2.t ON default.t.id = d2.t.id WHERE d2.t.id = 2",
    "SELECT DEFAULT.T.v, d2.t.t.id FROM t JOIN D2.T ON default.t.id = d2.T.id",
    "SELECT d2.t.* FROM default.t LEFT JOIN d2.t ON default.t.id = d2.t.id AND d2.t.v = 'two'",
    "SELECT t.v, t.t.id FROM d2.t WHERE EXISTS (SELECT 1 FROM default.t WHERE t.id = d2.t.id)",
    "SELECT v FROM d2.t WHERE id NOT IN (SELECT t.id FROM t WHERE default.t.id > 2)",
    "SELECT d2.t.id, x.id FROM d2.t JOIN (SELECT t.id FROM default.t WHERE t.id < 3) x ON d2.t.id = x.id",
    "WITH t AS (SELECT 3 AS id) SELECT d2.t.v FROM t JOIN d2.t ON d2.t.id = 3 WHERE d2.t.id < 9",
    "SELECT d2.t.v, w.v FROM d2.u AS w JOIN d2.t ON d2.t.id = w.id WHERE d2.t.id = 3",
    "SELECT d2.t.id FROM d2.u AS t JOIN d2.t ON d2.t.v = 'two' WHERE d2.t.id = 3",
    "SELECT default.t.v FROM t WHERE default.t.t.id = 7",
    "SELECT t.v FROM t UNION ALL SELECT t.v FROM d2.t WHERE t.id = 3",
)


def test_a_column_with_its_database_is_the_one_that_spark_takes(
    spark: SparkSession, two_databases: Catalog, subtests: pytest.Subtests
) -> None:
    assert_same_rows(spark, two_databases, OF_TWO_DATABASES, subtests)


OF_FIELDS = (
    "SELECT d3.t.zz, d3.t.id FROM d3.t",
    "SELECT id FROM d3.t WHERE d3.t.zz = 4",
    "SELECT d3.t.d3.t.zz, d3.t.t.id FROM d3.t",
    "SELECT d3.t.* FROM d3.t",
    "SELECT d3.t.zz FROM d3.u",
)


def test_a_name_with_dots_may_be_a_field_of_a_column_that_is_called_as_the_database(
    spark: SparkSession, catalog: Catalog, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    columns = "id INT, d3 STRUCT<t: STRUCT<zz: INT>>, t STRUCT<id: INT>"
    fields = "(1, named_struct('t', named_struct('zz', 4)), named_struct('id', 7)), (2, NULL, NULL)"
    catalog.sql("CREATE DATABASE d3")
    spark.sql(f"CREATE DATABASE d3 LOCATION '{tmp_path}/d3'")
    try:
        for name in ("d3.t", "d3.u"):
            catalog.sql(f"CREATE TABLE {name} ({columns}, PRIMARY KEY (id) NOT ENFORCED)")
            first = {"id": 1, "d3": {"t": {"zz": 4}}, "t": {"id": 7}}
            write(catalog, name, first, {"id": 2, "d3": None, "t": None})
            spark.sql(f"CREATE VIEW {name} AS SELECT * FROM VALUES {fields} AS rows(id, d3, t)")
        assert_same_rows(spark, catalog, OF_FIELDS, subtests)
    finally:
        spark.sql("DROP DATABASE d3 CASCADE")


def test_a_column_that_may_be_of_either_table_is_refused(spark: SparkSession, two_databases: Catalog) -> None:
    for column in ("v", "t.v"):
        query = f"SELECT {column} FROM default.t JOIN d2.t ON default.t.id = d2.t.id"
        with pytest.raises(AnalysisException):
            spark.sql(query)
        with pytest.raises(SchemaError):
            two_databases.sql(query, spark)


def test_target_and_source_of_a_merge_need_two_names(spark: SparkSession, catalog: Catalog) -> None:
    catalog.sql("CREATE DATABASE d2")
    for name in ("t", "d2.t"):
        catalog.sql(f"CREATE TABLE {name} (id INT, PRIMARY KEY (id) NOT ENFORCED)")
        write(catalog, name, {"id": 2}, {"id": 3})
    merge = "MERGE INTO default.t USING d2.t{} ON {}.id = 3 AND default.t.id = {}.id WHEN MATCHED THEN DELETE"
    with pytest.raises(SchemaError, match=r"different names, got 't' at .* for both; give one .* an alias"):
        catalog.sql(merge.format("", "d2.t", "d2.t"), spark)
    catalog.sql(merge.format(" AS s", "s", "s"), spark)
    assert catalog.table("t").snapshot().scan().to_pylist() == [{"id": 2}]
    assert catalog.table("d2.t").snapshot().scan().num_rows == 2


MADE_UP = (
    *("_merge_0", "_merge_0_0", "_merge_in_target", "_merge_target", "_merge_row", "_merge_updated"),
    *("_new_value_0", "_window", "_hop", "_row", "_rows", "number", "rank"),
)
"""Names of columns that statements have made up, now or before."""


def test_columns_may_be_called_as_those_that_statements_make_up(
    spark: SparkSession, catalog: Catalog
) -> None:
    columns = ", ".join(f"{name} INT" for name in MADE_UP)
    for table in ("t", "s"):
        catalog.sql(f"CREATE TABLE {table} (id INT, at TIMESTAMP, {columns}, PRIMARY KEY (id) NOT ENFORCED)")

    def row(key: int, value: int) -> str:
        return f"({key}, TIMESTAMP '2020-01-01 00:00:00', {', '.join([str(value)] * len(MADE_UP))})"

    catalog.sql(f"INSERT INTO t VALUES {row(1, 9)}, {row(1, 1)}, {row(2, 2)}", spark)
    catalog.sql(f"INSERT INTO s VALUES {row(2, 5)}, {row(3, 6)}", spark)
    sets = ", ".join(f"{name} = {name} + 10" for name in MADE_UP)
    catalog.sql(f"UPDATE t SET {sets} WHERE _merge_0 + _row = 2", spark)
    assert rows(catalog, spark, f"SELECT {', '.join(MADE_UP)} FROM t WHERE id = 1") == [(11,) * len(MADE_UP)]
    merged = ", ".join(f"{name} = s.{name} + t.{name}" for name in MADE_UP)
    catalog.sql(
        f"MERGE INTO t USING s ON t.id = s.id WHEN MATCHED AND t._merge_0 = 2 THEN UPDATE SET {merged} "
        "WHEN NOT MATCHED AND _merge_0 = 6 THEN INSERT *",
        spark,
    )
    expected = [(11,) * len(MADE_UP), (7,) * len(MADE_UP), (6,) * len(MADE_UP)]
    expected.sort(key=repr)
    assert rows(catalog, spark, f"SELECT {', '.join(MADE_UP)} FROM t") == expected
    windows = (
        "TUMBLE(TABLE t, DESCRIPTOR(at), INTERVAL '5' MINUTE)",
        "CUMULATE(TABLE t, DESCRIPTOR(at), INTERVAL '5' MINUTE, INTERVAL '5' MINUTE)",
        "SESSION(TABLE t, DESCRIPTOR(at), INTERVAL '5' MINUTE)",
    )
    of_each = (f"SELECT {place}, {', '.join(MADE_UP)} FROM TABLE({one})" for place, one in enumerate(windows))
    found = rows(catalog, spark, " UNION ALL ".join(of_each))
    assert found == [(place, *row) for place in range(len(windows)) for row in expected]


PAIRS = {
    "p": "id INT, k INT, val INT, `current_date` INT, `session_user` STRING, address STRUCT<id: INT>",
    "q": "id INT, k INT, n INT",
}


@pytest.mark.parametrize("name", ["a.b", "c`d", "e f", "😀"])
def test_tasks_write_columns_with_any_names(spark: SparkSession, catalog: Catalog, name: str) -> None:
    quoted = f"`{name.replace('`', '``')}`"
    catalog.sql(f"CREATE TABLE t (id BIGINT, {quoted} INT, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.sql(f"INSERT INTO t (id, {quoted}) SELECT id * 2, 5 FROM range(3)", spark)
    catalog.sql(
        f"MERGE INTO t USING (SELECT id, 7 AS {quoted} FROM range(3)) s ON t.id = s.id "
        f"WHEN MATCHED THEN UPDATE SET {quoted} = s.{quoted} WHEN NOT MATCHED THEN INSERT *",
        spark,
    )
    found = catalog.table("t").snapshot().scan().sort_by("id").to_pydict()
    assert found == {"id": [0, 1, 2, 4], name: [7, 7, 7, 5]}


@pytest.fixture(scope="module")
def two_tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    """Tables ``p`` and ``q`` of several files, and temporary views of Spark's with the same rows."""
    catalog = Catalog(tmp_path_factory.mktemp("two-tables"), optimize=planner.optimize)
    for name, columns in PAIRS.items():
        catalog.sql(f"CREATE TABLE {name} ({columns}, PRIMARY KEY (id) NOT ENFORCED)")
        written = []
        for ids in (range(3), range(3, 6)):
            if name == "p":
                own = (f"({i}, {i % 2}, {i * 10}, {9 - i}, 's{i}', named_struct('id', {5 - i}))" for i in ids)
                more = [{"val": i * 10, "current_date": 9 - i, "session_user": f"s{i}"} for i in ids]
                stored = [{**one, "address": {"id": 5 - i}} for i, one in zip(ids, more, strict=True)]
            else:
                own = (f"({i}, {i % 2}, {i % 3})" for i in ids)
                stored = [{"n": i % 3} for i in ids]
            written.append(", ".join(own))
            write(catalog, name, *({"id": i, "k": i % 2, **one} for i, one in zip(ids, stored, strict=True)))
        names = ", ".join(column.split(" ")[0] for column in columns.split(", "))
        view = f"SELECT * FROM VALUES {', '.join(written)} AS rows({names})"
        spark.sql(f"CREATE TEMPORARY VIEW {name} AS {view}")
    yield catalog
    for name in PAIRS:
        spark.catalog.dropTempView(name)


OF_TWO_TABLES = (
    # words that are functions only where no column is called so
    "SELECT id, current_date, session_user FROM p",
    "SELECT id FROM p WHERE current_date = 6",
    # a star of a table that stands in a query within
    "SELECT x.* FROM p AS o, LATERAL (SELECT o.*, o.id + 1 AS j) AS x",
    # a unit that is a column, and names that are made of texts
    "SELECT id, date_trunc(session_user, TIMESTAMP '2026-01-02 03:04:05') AS at FROM p",
    "SELECT id FROM q WHERE EXISTS (SELECT 1 FROM p WHERE identifier('val') = n * 10)",
    "SELECT identifier('p.k') AS id FROM p WHERE identifier('id') = 1",
    # Spark 4.3 has a shorter sign for steps
    *(() if PYSPARK == "4.2" else ("FROM p | WHERE id > 1 | SET k = id | 8 | SELECT k, val | 1 AS v",)),
    # a comment goes on behind a backslash
    "SELECT id FROM p WHERE k = 1 -- \\\n AND val = 0",
    # a path into a VARIANT
    """SELECT parse_json('{"a": [{"b c": 7}]}'):a[0].`b c`::INT + id AS n FROM p""",
    # all columns are compared, grouped by or renamed
    "SELECT val FROM (p NATURAL JOIN q)",
    "SELECT `0` FROM p JOIN (SELECT 1 AS one) PIVOT (sum(val) FOR k IN (0, 1))",
    "SELECT b FROM p AS x(b, a, c, d, e, f) WHERE a = 1",
    "SELECT val FROM q AS x(val, id, k) WHERE val = 1",
    # brackets with a name
    "SELECT x.* FROM (p AS a JOIN (SELECT n FROM q) AS b ON a.id = b.n) AS x",
    # steps have an order
    "FROM p |> ORDER BY id |> LIMIT 3 |> WHERE id > 1",
    "FROM p |> SELECT k AS id, id AS k |> WHERE id = 1",
    "SELECT id FROM p |> ORDER BY id |> LIMIT 1 + 1",
    "FROM p |> SELECT id |> UNION ALL SELECT k AS id FROM q |> WHERE id > 0",
    "FROM p |> SET k = (SELECT max(n) FROM q), val = 1 |> DROP `current_date` |> SORT BY id |> OFFSET 2",
    "VALUES (7) AS v(id) |> WHERE EXISTS (TABLE q |> WHERE n > 0) |> UNION ALL SELECT id FROM p",
    "SELECT * FROM (TABLE q) UNION TABLE q",
    # functions that take more than they used to
    "SELECT any_value(val, true) AS v, corr(DISTINCT id, k) AS c, max(id >>> 1) AS m FROM p WHERE id = 1",
    # a field of a column, and a table whose name ends so
    "SELECT id FROM p AS `x.address` WHERE address.id = 4",
    "SELECT id FROM p AS `address` WHERE address.id = 4",
)


def test_names_mean_what_they_mean_to_spark(
    spark: SparkSession, two_tables: Catalog, subtests: pytest.Subtests
) -> None:
    assert_same_rows(spark, two_tables, OF_TWO_TABLES, subtests)


def test_a_session_that_tells_names_apart_by_case_reads_a_field_for_a_column(
    spark: SparkSession, catalog: Catalog
) -> None:
    catalog.sql("CREATE TABLE t (id INT, T STRUCT<id: INT>, PRIMARY KEY (id) NOT ENFORCED)")
    write(catalog, "t", {"id": 1, "T": {"id": 7}}, {"id": 7, "T": {"id": 1}})
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        assert rows(catalog, spark, "SELECT id FROM t WHERE T.id = 7") == [(1,)]
        catalog.sql("DELETE FROM t WHERE T.id = 7", spark)
        assert catalog.table("t").snapshot().scan().column("id").to_pylist() == [7]
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_a_clause_for_one_row_takes_its_fields_and_the_parameters_of_lambdas(
    spark: SparkSession, catalog: Catalog
) -> None:
    columns = "id INT, x INT, xs ARRAY<INT>, a STRUCT<b: STRUCT<id: INT>>"
    values = {"t": (1, 2), "s": (2, 3)}
    for name, keys in values.items():
        catalog.sql(f"CREATE TABLE {name} ({columns}, PRIMARY KEY (id) NOT ENFORCED)")
        write(catalog, name, *({"id": i, "x": 100, "xs": [i], "a": {"b": {"id": i * 10}}} for i in keys))
    catalog.sql(
        "MERGE INTO t USING s ON t.id = s.id "
        "WHEN NOT MATCHED THEN INSERT (id, x, xs) VALUES (id, a.b.id, transform(xs, X -> x + 1)) "
        "WHEN NOT MATCHED BY SOURCE AND a.b.id = 10 "
        "THEN UPDATE SET x = aggregate(xs, a.b.id, (X, Y) -> x + y)",
        spark,
    )
    assert rows(catalog, spark, "SELECT id, x, xs FROM t") == [(1, 11, [1]), (2, 100, [2]), (3, 30, [4])]


@pytest.mark.parametrize(
    "query",
    [
        "FROM p |> WHERE id > 1 |> AS o |> JOIN q USING (id) |> WHERE o.k = 1 |> SELECT id AS val, n AS id",
        "SELECT x.c AS k, y.c FROM q AS x(id, c, n) JOIN q y(a, b, c) ON x.id = y.c WHERE y.c > 0",
    ],
)
def test_a_stream_has_the_names_of_a_batch(spark: SparkSession, two_tables: Catalog, query: str) -> None:
    """In the steps of a pipe, and in a list of all columns, where its kind of change does not count."""
    wanted = sorted(map(tuple, spark.sql(query).collect()))
    assert wanted
    streaming = Catalog(two_tables.warehouse, optimize=planner.optimize)
    streaming.sql("SET 'execution.runtime-mode' = 'streaming'")
    streaming.sql("SET 'execution.result-mode' = 'table'")
    found = streaming.sql(query, spark)
    assert isinstance(found, Live)
    assert found.query is not None
    try:
        found.query.processAllAvailable()
        assert sorted(tuple(row.values()) for row in found.rows.to_pylist()) == wanted
    finally:
        found.query.stop()


def test_a_session_whose_names_in_backquotes_are_patterns_has_all_columns(
    spark: SparkSession, two_tables: Catalog
) -> None:
    session = copy_of(spark, {"spark.sql.parser.quotedRegexColumnNames": "true"})
    for query in ("SELECT `(k|v.*|id)` FROM p", "SELECT q.`(id)?+.+` FROM q WHERE `n` = 1"):
        found, wanted = frame(two_tables, session, query), session.sql(query)
        assert found.columns == wanted.columns
        assert in_order(found) == in_order(wanted)
