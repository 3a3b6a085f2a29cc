"""Names in statements that change rows: columns in any case, words that are functions, session variables.

Spark's own tables are the oracle; it has none for MERGE, whose clauses mean what their rows have.
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tests.upsert.catalog.queried import rows
from upsert.catalog.catalog import Catalog
from upsert.catalog.results import PlanText
from upsert.catalog.run.assignments import assigned
from upsert.errors import SchemaError
from upsert.schema import Column
from upsert.spark.settings import copy_of
from upsert.spark.version import PYSPARK

pytestmark = pytest.mark.spark


@pytest.fixture
def theirs(spark: SparkSession, tmp_path: Path) -> Iterator[None]:
    """Spark's own table ``theirs`` of the columns of ``t``."""
    spark.sql(
        f"CREATE TABLE theirs (id INT, v STRING, n INT DEFAULT 7, Day STRING) USING parquet "
        f"PARTITIONED BY (Day) LOCATION '{tmp_path}/theirs'"
    )
    yield
    spark.sql("DROP TABLE theirs")


INSERTS = (
    "INTO {} (ID, V, DAY) VALUES (1, 'a', 'mon')",
    "INTO {} (`Id`, N, day, V) SELECT 2, 9, 'tue', 'b'",
    "INTO {} PARTITION (DAY = 'wed') (V, Id) VALUES ('c', 3)",
    "OVERWRITE {} PARTITION (day = 'wed') (V, Id) VALUES ('d', 4)",
    "INTO {} BY NAME SELECT 'e' AS V, 'thu' AS DAY, 5 AS Id",
)


def test_insert_names_columns_in_any_case(spark: SparkSession, catalog: Catalog, theirs: None) -> None:
    catalog.sql(
        "CREATE TABLE t (id INT, v STRING, n INT DEFAULT 7, Day STRING, "
        "PRIMARY KEY (id, Day) NOT ENFORCED) PARTITIONED BY (Day)"
    )
    for insert in INSERTS:
        catalog.sql(f"INSERT {insert.format('t')}", spark)
        spark.sql(f"INSERT {insert.format('theirs')}")
    wanted = sorted(map(tuple, spark.sql("SELECT id, v, n, Day FROM theirs").collect()))
    assert len(wanted) == 4
    assert rows(catalog, spark, "SELECT id, v, n, Day FROM t") == wanted
    assert isinstance(catalog.sql("EXPLAIN INSERT INTO t (ID, DAY) VALUES (1, 'mon')", spark), PlanText)
    with pytest.raises(SchemaError, match="PARTITION names column 'Day' twice"):
        catalog.sql("INSERT INTO t PARTITION (day = 'a', DAY) SELECT 1, 'v', 2", spark)


def test_update_and_merge_name_columns_in_any_case(spark: SparkSession, catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE t (id INT, v STRING, n INT DEFAULT 7, PRIMARY KEY (id) NOT ENFORCED)")
    written = {
        "id": pa.array([1, 2, 4], pa.int32()),
        "v": ["a", "b", "d"],
        "n": pa.array([1, 2, 4], pa.int32()),
    }
    catalog.table("t").write(pa.table(written))
    catalog.sql("UPDATE t AS x SET x.V = upper(V), X.N = DEFAULT WHERE ID = 1", spark)
    catalog.sql(
        "MERGE INTO t USING (SELECT 2 AS id, 'B' AS v UNION ALL SELECT 3, 'C') AS s ON t.ID = s.Id "
        "WHEN MATCHED THEN UPDATE SET V = s.v, T.ID = s.id, N = DEFAULT "
        "WHEN NOT MATCHED THEN INSERT (V, Id, N) VALUES (V, ID, DEFAULT) "
        "WHEN NOT MATCHED BY SOURCE AND ID = 4 THEN UPDATE SET N = n * 10",
        spark,
    )
    assert rows(catalog, spark, "SELECT * FROM t") == [(1, "A", 7), (2, "B", 7), (3, "C", 7), (4, "d", 40)]


def test_columns_that_case_alone_tells_apart_are_told_apart(spark: SparkSession, catalog: Catalog) -> None:
    session = copy_of(spark, {"spark.sql.caseSensitive": "true"})
    catalog.sql("CREATE TABLE t (id INT, v STRING, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.table("t").write(pa.table({"id": pa.array([1], pa.int32()), "v": ["a"]}))
    for statement in (
        "INSERT INTO t (ID, v) VALUES (1, 'b')",
        "UPDATE t SET V = 'b'",
        "MERGE INTO t USING (SELECT 1 AS id) AS s ON t.id = s.id WHEN MATCHED THEN UPDATE SET V = 'b'",
    ):
        with pytest.raises(SchemaError, match=r"unknown column '(ID|V)'"):
            catalog.sql(statement, session)
    assert rows(catalog, session, "SELECT * FROM t") == [(1, "a")]


def test_a_word_in_a_clause_for_one_row_is_a_column_only_if_the_row_has_it(
    spark: SparkSession, catalog: Catalog
) -> None:
    """Else it is the function, also where the other table has a column that is called so."""
    time = "current_time" if PYSPARK == "4.2" else "localtime"  # which 4.2 has not
    words = {"t": ("current_date", "user"), "s": (time, "user")}
    for name, key in (("t", 1), ("s", 2)):
        own = "".join(f", `{word}` STRING" for word in words[name])
        catalog.sql(
            f"CREATE TABLE {name} (id INT, a STRING, b STRING, c STRING, d STRING{own}, "
            "PRIMARY KEY (id) NOT ENFORCED)"
        )
        table = catalog.table(name)
        own_row = dict(zip(table.schema.arrow.names, (key, *[""] * 4, "own", "own"), strict=True))
        table.write(pa.Table.from_pylist([own_row], schema=table.schema.arrow))
    catalog.sql(
        "MERGE INTO t USING s ON t.id = s.id WHEN NOT MATCHED AND current_date > '2020' AND user = 'own' "
        f"THEN INSERT (id, a, b, c, d) VALUES (id, current_date, user, {time}, current_timestamp) "
        "WHEN NOT MATCHED BY SOURCE AND CURRENT_DATE = 'own' AND USER = 'own' "
        f"THEN UPDATE SET a = Current_Date, b = User, c = {time.title()}, d = Current_Timestamp",
        spark,
    )
    merged = rows(catalog, spark, "SELECT * FROM t")
    found = {row[0]: [value == "own" for value in row[1:]] for row in merged}
    assert {key: values[:4] for key, values in found.items()} == {
        1: [True, True, False, False],
        2: [False, True, True, False],
    }
    assert all(all(row[:5]) for row in merged)


def test_a_session_variable_is_one_in_all_statements(spark: SparkSession, catalog: Catalog) -> None:
    """A column of the row comes first."""
    session = copy_of(spark, {})
    session.sql("DECLARE VARIABLE least INT DEFAULT 2")
    session.sql("DECLARE VARIABLE v STRING DEFAULT 'variable'")
    for name in ("t", "s"):
        catalog.sql(f"CREATE TABLE {name} (id INT, v STRING, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.sql("INSERT INTO t SELECT least, v", session)
    catalog.sql("INSERT INTO t VALUES (least + 1, session.v), (least - 1, system.session.v)", session)
    assert rows(catalog, spark, "SELECT * FROM t") == [(n, "variable") for n in (1, 2, 3)]
    catalog.sql("UPDATE t SET v = concat(v, least) WHERE id >= least", session)
    catalog.sql("DELETE FROM t WHERE id = least", session)
    assert rows(catalog, spark, "SELECT * FROM t") == [(1, "variable"), (3, "variable2")]
    catalog.table("s").write(pa.table({"id": pa.array([3, 4, 5], pa.int32()), "v": ["s"] * 3}))
    catalog.sql(
        "MERGE INTO t USING s ON t.id = s.id AND t.id > least "
        "WHEN MATCHED AND s.id > least THEN UPDATE SET v = concat(s.v, least) "
        "WHEN NOT MATCHED AND id > least + 2 THEN INSERT (id, v) VALUES (id, concat(v, least, session.v)) "
        "WHEN NOT MATCHED THEN INSERT (id, v) VALUES (id + least * 10, system.session.v) "
        "WHEN NOT MATCHED BY SOURCE AND id < least THEN UPDATE SET v = concat(v, least)",
        session,
    )
    assert rows(catalog, spark, "SELECT * FROM t") == [
        (1, "variable2"),
        (24, "variable"),
        (3, "s2"),
        (5, "s2variable"),
    ]


def test_a_column_of_the_other_row_is_no_variable(spark: SparkSession, catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE t (id INT, v STRING, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.sql("CREATE TABLE s (id INT, w STRING, PRIMARY KEY (id) NOT ENFORCED)")
    for clause in (
        "WHEN NOT MATCHED THEN INSERT (id, v) VALUES (id, v)",
        "WHEN NOT MATCHED BY SOURCE THEN UPDATE SET v = w",
    ):
        with pytest.raises(SchemaError, match="is in no table of the query"):
            catalog.sql(f"MERGE INTO t USING s ON t.id = s.id {clause}", spark)


@pytest.mark.parametrize("is_ansi", ["true", pytest.param("false", marks=pytest.mark.long)])
def test_fields_have_names_in_any_case_and_numbers_that_fit(
    spark: SparkSession, catalog: Catalog, tmp_path: Path, is_ansi: str
) -> None:
    session = copy_of(spark, {"spark.sql.ansi.enabled": is_ansi})
    columns = "id INT, s STRUCT<a: INT, b: ARRAY<STRUCT<c: STRING>>>, m MAP<SMALLINT, INT>"
    catalog.sql(f"CREATE TABLE t ({columns}, PRIMARY KEY (id) NOT ENFORCED)")
    session.sql(f"CREATE TABLE nested ({columns}) USING parquet LOCATION '{tmp_path}/nested'")
    try:
        for values in (
            "1, named_struct('A', 5L, 'B', array(named_struct('C', 'x'), NULL)), map(1, 2L)",
            "2, named_struct('a', NULL, 'b', NULL), map(3L, NULL)",
            "3, NULL, NULL",
            "5, struct(6L, array(struct('y'), NULL)), NULL",
        ):
            catalog.sql(f"INSERT INTO t SELECT {values}", session)
            session.sql(f"INSERT INTO nested SELECT {values}")
        for values in ("4, named_struct('a', 1L << 40, 'b', NULL), NULL", "4, NULL, map(70000, 1)"):
            with pytest.raises(PySparkException):
                session.sql(f"INSERT INTO nested SELECT {values}")
            refusal = r"^INSERT INTO t: column '[sm]' must be .*, which cannot hold (1099511627776|70000)$"
            with pytest.raises(SchemaError, match=refusal):
                catalog.sql(f"INSERT INTO t SELECT {values}", session)
        text = "SELECT id, CAST(s AS STRING), CAST(m AS STRING) FROM {}"
        wanted = sorted(map(tuple, session.sql(text.format("nested")).collect()), key=repr)
        assert len(wanted) == 4
        assert rows(catalog, session, text.format("t")) == wanted
        for other in ("named_struct('b', NULL, 'a', 1)", "named_struct('a', 1)", "struct(1)"):
            with pytest.raises(SchemaError, match=r"'s' must be STRUCT.*; write named_struct"):
                catalog.sql(f"UPDATE t SET s = {other}", session)
    finally:
        session.sql("DROP TABLE nested")


@pytest.mark.usefixtures("spark")
def test_nested_values_of_which_all_fit_are_only_cast() -> None:
    """To look at each element takes Spark far longer, which nothing but a narrower number needs."""
    column = Column("c", pa.list_(pa.struct([("a", pa.int32()), ("m", pa.map_(pa.string(), pa.float64()))])))
    for a, is_looked_at in (("INT", False), ("SMALLINT", False), ("BIGINT", True)):
        given = StructType.fromDDL(f"c ARRAY<STRUCT<A: {a}, m: MAP<STRING, INT>>>")["c"].dataType
        value = str(assigned(F.col("c"), given, column, "t"))
        assert ("transform" in value) == is_looked_at
        assert "CAST(" in value
