"""Tables of a catalog in plain Spark SQL, beside `catalog.sql`."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

import planner
from tests.helpers import run_spark_script
from upsert import Catalog
from upsert.errors import ConfigurationError
from upsert.spark import formats

pytestmark = pytest.mark.spark


@pytest.fixture
def catalog(tmp_path: Path, spark: SparkSession) -> Iterator[Catalog]:
    made = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    made.sql("CREATE TABLE pears (id INT, size DOUBLE, PRIMARY KEY (id) NOT ENFORCED)")
    made.sql("CREATE TABLE notes (note STRING)")
    made.sql("CREATE DATABASE farm")
    made.sql("CREATE TABLE farm.trees (tree INT, pear INT, PRIMARY KEY (tree) NOT ENFORCED, INDEX (pear))")
    yield made
    made.unexpose(spark)
    assert not spark.catalog.tableExists("pears")
    assert "pears" in made.tables()
    spark.sql("DROP DATABASE IF EXISTS farm CASCADE")


def rows(spark: SparkSession, query: str) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in spark.sql(query).collect())


def test_plain_sql_reads_and_writes_tables(catalog: Catalog, spark: SparkSession, tmp_path: Path) -> None:
    assert catalog.expose(spark) == ("default.notes", "default.pears", "farm.trees")
    spark.sql("INSERT INTO pears VALUES (1, 5.0), (2, 6.0)")
    spark.sql("INSERT INTO farm.trees SELECT id + 10, id FROM pears")
    spark.sql("INSERT INTO notes VALUES ('a'), ('a')")
    assert rows(spark, "SELECT * FROM notes") == [("a",), ("a",)]
    catalog.sql("UPDATE pears SET size = 7 WHERE id = 2", spark)
    query = "SELECT tree, size FROM farm.trees JOIN pears ON pear = id WHERE size > 6"
    assert rows(spark, query) == [(12, 7.0)]
    spark.sql("INSERT OVERWRITE pears SELECT 3, 1.0")
    assert catalog.table("pears").snapshot().scan().to_pylist() == [{"id": 3, "size": 1.0}]
    assert spark.table("pears").schema == spark.sql("SELECT id, size FROM pears").schema
    changes = spark.readStream.table("pears__changes")
    assert changes.columns == ["id", "size", "_row_kind"]
    query_ = (
        changes.where("_row_kind <> '-D'")
        .select("id", "size")
        .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .toTable("pears")
    )
    query_.awaitTermination()
    assert rows(spark, "SELECT id, size FROM pears") == [(3, 1.0)]


def test_new_altered_and_dropped_tables_are_followed(catalog: Catalog, spark: SparkSession) -> None:
    catalog.expose(spark)
    catalog.sql("CREATE TABLE plums (id INT, PRIMARY KEY (id) NOT ENFORCED)")
    spark.sql("INSERT INTO plums VALUES (1)")
    catalog.sql("ALTER TABLE plums ADD (colour STRING)")
    spark.sql("INSERT INTO plums VALUES (2, 'blue')")
    assert rows(spark, "SELECT id, coalesce(colour, '') FROM plums") == [(1, ""), (2, "blue")]
    catalog.sql("ALTER TABLE plums RENAME TO damsons")
    assert not spark.catalog.tableExists("plums")
    assert rows(spark, "SELECT id FROM damsons") == [(1,), (2,)]
    catalog.create_view("blue", "SELECT id FROM damsons WHERE colour = 'blue'", spark=spark)
    assert rows(spark, "SELECT * FROM blue") == [(2,)]
    with pytest.raises(PySparkException, match="'blue' is a materialized view, whose rows"):
        spark.sql("INSERT INTO blue VALUES (7)")
    catalog.sql("DROP MATERIALIZED VIEW blue")
    catalog.sql("DROP TABLE damsons")
    for name in ("blue", "blue__changes", "damsons", "damsons__changes"):
        assert not spark.catalog.tableExists(name)
    Catalog(catalog.warehouse).sql("CREATE TABLE figs (id INT, PRIMARY KEY (id) NOT ENFORCED)")
    assert not spark.catalog.tableExists("figs")  # made by another process
    assert "default.figs" in catalog.expose(spark)
    spark.sql("DROP TABLE figs")
    assert "figs" in catalog.tables()  # the name alone was Spark's


def test_a_database_of_sparks_own_may_be_called_by_digits(catalog: Catalog, spark: SparkSession) -> None:
    spark.sql("CREATE DATABASE `2026`")
    try:
        assert "default.pears" in catalog.expose(spark)
    finally:
        spark.sql("DROP DATABASE `2026`")


def test_a_session_may_have_another_current_catalog_and_another_one_ends_it(
    catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = spark.newSession()
    other = "spark.sql.catalog.other"
    session.conf.set(other, "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog")
    session.conf.set(f"{other}.url", "jdbc:derby:memory:other;create=true")
    session.conf.set(f"{other}.driver", "org.apache.derby.iapi.jdbc.AutoloadedDriver")
    session.sql("USE other")
    assert catalog.expose(session) == ("default.notes", "default.pears", "farm.trees")
    assert catalog.expose(session) == ("default.notes", "default.pears", "farm.trees")
    assert rows(session, "SELECT count(*) FROM spark_catalog.default.pears") == [(0,)]
    monkeypatch.setattr(formats, "_formats", {})  # as in another process
    catalog.unexpose(spark)
    assert not spark.catalog.tableExists("pears")


def test_sessions_of_one_spark_expose_at_the_same_time(catalog: Catalog, spark: SparkSession) -> None:
    """They share its catalog, in which each finds what the others have created and not yet dropped."""
    both = Barrier(2)

    def exposed(session: SparkSession) -> list[tuple[str, ...]]:
        found = []
        try:
            for _ in range(2):
                both.wait()
                found.append(catalog.expose(session))
                both.wait()
                catalog.unexpose(session)
        except BaseException:
            both.abort()
            raise
        return found

    with ThreadPoolExecutor(2) as pool:
        found = [*pool.map(exposed, (spark.newSession(), spark.newSession()))]
    assert found == [[("default.notes", "default.pears", "farm.trees")] * 2] * 2


def test_what_cannot_be_is_told(catalog: Catalog, spark: SparkSession) -> None:
    catalog.expose(spark)
    with pytest.raises(PySparkException, match=r"read them with readStream.table\('pears__changes'\)"):
        (spark.readStream.table("pears").writeStream.format("noop").start().processAllAvailable())
    with pytest.raises(PySparkException, match="write into '"):
        spark.sql("INSERT INTO pears__changes VALUES (1, 1.0, '+I')")
    with pytest.raises((AnalysisException, PySparkException)):
        spark.sql("DELETE FROM pears WHERE id = 1")
    spark.sql("CREATE TABLE theirs (id INT) USING parquet")
    try:
        with pytest.raises(ConfigurationError, match="has the name of another table of Spark"):
            catalog.sql("CREATE TABLE theirs (id INT, PRIMARY KEY (id) NOT ENFORCED)")
    finally:
        spark.sql("DROP TABLE theirs")


def test_other_columns_in_sparks_catalog_are_told_with_what_brings_the_right_ones(
    catalog: Catalog, spark: SparkSession
) -> None:
    """By an ALTER TABLE of Spark's own, which this format cannot follow, or of another process."""
    told = "Spark's catalog must have its columns.*catalog.unexpose.*ALTER TABLE needs catalog.sql"
    catalog.expose(spark)
    spark.sql("ALTER TABLE notes ADD COLUMN colour STRING")
    Catalog(catalog.warehouse).sql("ALTER TABLE pears RENAME COLUMN size TO weight")
    for table in ("notes", "pears"):
        for statement in (f"SELECT * FROM {table}", f"INSERT INTO {table} TABLE {table}"):
            with pytest.raises(PySparkException, match=told):
                spark.sql(statement).collect()
    catalog.unexpose(spark)
    catalog.expose(spark)
    assert spark.table("notes").columns == ["note"]
    spark.sql("INSERT INTO pears VALUES (1, 5.0)")
    assert rows(spark, "SELECT id, weight FROM pears") == [(1, 5.0)]


@pytest.mark.long
def test_a_client_of_a_thrift_server_reads_and_writes_tables(tmp_path: Path) -> None:
    """With a Hive Metastore, over JDBC, by Spark's own client."""
    output = run_spark_script(Path(__file__).parent / "thrift_server.py", tmp_path)
    assert "client: ['1,5.0', '2,6.0', '3,20.0']" in output
