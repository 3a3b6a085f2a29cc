"""A catalog whose warehouse lies in a real S3 server."""

import errno
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import planner
from tests.object_store import ObjectStore, counted
from tests.upsert.catalog.run.without_spark.beside_spark import rows_of, without
from upsert import Catalog
from upsert.catalog.connectors.definition import PlainView, define, definition_in, redefine
from upsert.catalog.namespace import Databases
from upsert.catalog.results import Running
from upsert.errors import CommitConflictError, ConfigurationError, TableExistsError, TableNotFoundError
from upsert.schema import TableSchema
from upsert.store.commit.append import LeftoverWarning
from upsert.store.files.data_file import forget_open_files
from upsert.store.metadata import table_file
from upsert.store.read import counting
from upsert.store.storage import storage_of
from upsert.store.storage.base import RefusedError
from upsert.store.storage.cache import FOLDER_VARIABLE
from upsert.store.storage.object_store import ObjectStorage
from upsert.views.view import ViewText

KEYED = "(id BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED)"


@pytest.fixture
def catalog(s3: ObjectStore) -> Catalog:
    return Catalog(s3.warehouse, optimize=planner.optimize)


def fruit(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "name": ["apple"] * len(ids)})


def test_tables_are_created_listed_and_dropped(catalog: Catalog) -> None:
    assert catalog.tables() == ()
    for name in ("fruit", "bowls"):
        catalog.sql(f"CREATE TABLE {name} {KEYED}")
    with pytest.raises(TableExistsError):
        catalog.sql(f"CREATE TABLE fruit {KEYED}")
    catalog.table("fruit").write(fruit(1, 2))
    again = Catalog(catalog.warehouse)
    assert again.tables() == ("bowls", "fruit")
    assert again.table("fruit").snapshot().scan().num_rows == 2
    catalog.sql("DROP TABLE fruit")
    assert again.tables() == ("bowls",)
    with pytest.raises(TableNotFoundError):
        again.table("fruit")
    assert list(storage_of(catalog.warehouse).walk(f"{catalog.warehouse}/fruit")) == []


def test_several_names_are_looked_at_at_once(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fruit", "bowls"):
        catalog.sql(f"CREATE TABLE {name} {KEYED}")
    both, read = threading.Barrier(2), table_file.value_in

    def value_in(path: str) -> object:
        both.wait(120)
        return read(path)

    monkeypatch.setattr(table_file, "value_in", value_in)
    assert catalog.tables() == ("bowls", "fruit")


def test_files_that_are_read_without_spark_are_fetched_several_at_once(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog.sql(f"CREATE TABLE fruit {KEYED} WITH ('bucket' = '2')")
    catalog.table("fruit").write(fruit(*range(10)))
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "cache"))
    forget_open_files()
    both, download = threading.Barrier(2), ObjectStorage._download

    def downloaded(storage: ObjectStorage, path: str, target: str) -> None:
        both.wait(120)
        download(storage, path, target)

    monkeypatch.setattr(ObjectStorage, "_download", downloaded)
    found = rows_of(without(catalog, "SELECT count(*) AS n FROM fruit WHERE name = 'apple'"))
    assert found.to_pylist() == [{"n": 10}]


def test_rows_are_not_counted_where_many_files_would_be_fetched(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog.sql(f"CREATE TABLE fruit {KEYED}")
    table = catalog.table("fruit")
    table.write(fruit(*range(8)))
    monkeypatch.setattr(counting, "MOST_FETCHED", 1)
    assert table.snapshot().counted() == 8  # as its manifest says
    table.write(fruit(7))
    assert table.snapshot().counted() is None
    monkeypatch.undo()
    assert table.snapshot().counted() == 8


def test_a_name_is_looked_up_by_one_request(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog.sql("CREATE TABLE there (id BIGINT, PRIMARY KEY (id) NOT ENFORCED)")
    there, missing = (Databases(catalog.warehouse, "main").resolve(name) for name in ("there", "missing"))
    asked = counted(monkeypatch)
    assert (there.exists, missing.exists) == (True, False)
    assert asked == {"read": 2}


def test_what_a_killed_drop_has_left_goes_with_the_next_one_and_is_never_read(catalog: Catalog) -> None:
    catalog.sql(f"CREATE TABLE fruit {KEYED}")
    old = catalog.table("fruit")
    old.write(fruit(1, 2))
    storage_of(old.path).delete(f"{old.path}/table.json")
    catalog.sql(f"CREATE TABLE fruit {KEYED}")
    assert catalog.table("fruit").snapshot().id == 0
    catalog.table("fruit").write(fruit(3))
    catalog.sql("DROP TABLE fruit")
    assert list(storage_of(old.path).walk(old.path)) == []


def test_a_table_of_which_files_cannot_be_deleted_is_dropped(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog.sql(f"CREATE TABLE fruit {KEYED}")
    path = catalog.table("fruit").path
    catalog.table("fruit").write(fruit(1))

    def refused(*_: object) -> None:
        raise RefusedError(errno.EACCES, "the server must allow what is asked", path)

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStorage, "delete_folder", refused)
        with pytest.warns(LeftoverWarning, match="fruit' could not be deleted: .* must allow what is asked"):
            catalog.sql("DROP TABLE fruit")
    assert catalog.tables() == ()
    catalog.sql(f"CREATE TABLE fruit {KEYED}")
    catalog.sql("DROP TABLE fruit")
    assert list(storage_of(path).walk(path)) == []


def test_databases_are_folders_of_their_own(catalog: Catalog) -> None:
    catalog.sql("CREATE DATABASE shop")
    catalog.sql(f"CREATE TABLE shop.fruit {KEYED}")
    assert (catalog.databases.names(), catalog.tables("shop")) == (("default", "shop"), ("fruit",))
    with pytest.raises(ConfigurationError, match="must be empty, it has fruit"):
        catalog.sql("DROP DATABASE shop")
    catalog.sql("DROP DATABASE shop CASCADE")
    assert catalog.databases.names() == ("default",)
    assert list(storage_of(catalog.warehouse).walk(catalog.warehouse)) == []


def test_a_plain_view_is_one_object_that_is_replaced_at_one_moment(catalog: Catalog) -> None:
    def view(query: str) -> PlainView:
        text = ViewText("default.v", query, "default", ("one",), ("one",))
        return PlainView(text, "main", TableSchema.of({"one": pa.int32()}))

    path = catalog.databases.resolve("v").path
    define(path, view("SELECT 1 AS one").definition)
    with pytest.raises(TableExistsError):
        define(path, view("SELECT 2 AS one").definition)
    with pytest.raises(TableExistsError, match="'v' is a view"):
        catalog.sql("CREATE TABLE v (id INT)")
    redefine(path, view("SELECT 3 AS one").definition)
    shown = [{"view": "v", "temporary": False, "query": "SELECT 3 AS one"}]
    assert Catalog(catalog.warehouse).sql("SHOW VIEWS").rows.to_pylist() == shown
    catalog.sql("DROP VIEW v")
    assert list(storage_of(path).walk(path)) == []
    with pytest.raises(CommitConflictError, match="has replaced or dropped it meanwhile"):
        redefine(path, view("SELECT 4 AS one").definition)
    with pytest.raises(ConfigurationError, match="the warehouse must be a local folder"):
        catalog.sql("CREATE TEMPORARY TABLE t (id INT)")
    assert catalog.sql("SHOW TABLES").rows.num_rows == 0


def test_a_topic_is_altered_by_one_of_two_at_a_time(catalog: Catalog) -> None:
    given = "'topic' = 't', 'properties.bootstrap.servers' = 'localhost:1', 'key.format' = 'json'"
    catalog.sql(
        f"CREATE TABLE t {KEYED} WITH ('connector' = 'upsert-kafka', {given}, 'value.format' = 'json')"
    )
    path = catalog.databases.resolve("t").path
    before = definition_in(path)
    catalog.sql("ALTER TABLE t ADD COLUMN n INT")
    assert Catalog(catalog.warehouse).schema("t").names == ("id", "name", "n")
    assert before is not None
    with pytest.raises(CommitConflictError, match="execute the statement again"):
        redefine(path, before, before)
    catalog.sql("ALTER TABLE t SET ('max-rows-per-trigger' = '7')")
    assert catalog.schema("t").names == ("id", "name", "n")
    catalog.sql("DROP TABLE t")


def test_a_table_keeps_its_name(catalog: Catalog) -> None:
    catalog.sql(f"CREATE TABLE fruit {KEYED}")
    with pytest.raises(ConfigurationError, match="keeps its name, got RENAME TO 'apples'"):
        catalog.sql("ALTER TABLE fruit RENAME TO apples")
    assert catalog.tables() == ("fruit",)


@pytest.mark.spark
@pytest.mark.long
def test_tables_are_made_from_queries_and_replaced_by_them(
    catalog: Catalog, spark: SparkSession, tmp_path: Path
) -> None:
    doubled = "SELECT id + n AS id, name FROM fruit, (SELECT explode(array(1, 2)) AS n)"
    for statement in (
        "CREATE TABLE fruit AS SELECT 1 AS id, 'apple' AS name",
        "CREATE TABLE IF NOT EXISTS fruit AS SELECT 2 AS id",
        f"CREATE OR REPLACE TABLE fruit (PRIMARY KEY (id) NOT ENFORCED) AS {doubled}",
        f"SET 'checkpoint.location' = '{tmp_path}'",
        "SET 'execution.runtime-mode' = 'streaming'",
        "SET 'execution.trigger' = 'available-now'",
    ):
        catalog.sql(statement, spark)
    stream = "CREATE TABLE copied (PRIMARY KEY (id) NOT ENFORCED) AS SELECT id, name FROM fruit"

    def streamed() -> list[int]:
        running = catalog.sql(stream, spark)
        assert isinstance(running, Running)
        assert running.query is not None
        running.query.awaitTermination()
        return sorted(catalog.table("copied").snapshot().scan()["id"].to_pylist())

    assert streamed() == [2, 3]
    catalog.table("fruit").write(pa.table({"id": pa.array([4], pa.int32()), "name": ["pear"]}))
    assert streamed() == [2, 3, 4]
    table = catalog.table("copied")
    assert (table.path, table.check()) == (f"{catalog.warehouse}/copied", ())
    for name in ("fruit", "copied"):
        catalog.sql(f"DROP TABLE {name}")
    assert list(storage_of(catalog.warehouse).walk(catalog.warehouse)) == []


@pytest.mark.spark
@pytest.mark.parametrize(
    "object_store",
    ["s3", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("gcs", "azure"))],
    indirect=True,
)
def test_a_stream_joins_tables_in_each_kind_of_store(
    object_store: ObjectStore, spark: SparkSession, tmp_path: Path
) -> None:
    """Tasks read files and look rows up, the driver commits; rows come to Spark as from a disk."""
    catalog = Catalog(object_store.warehouse, optimize=planner.optimize)
    for statement in (
        f"CREATE TABLE fruit {KEYED}",
        "CREATE TABLE prices (id BIGINT, price INT, PRIMARY KEY (id) NOT ENFORCED)",
        "CREATE TABLE priced (id BIGINT, name STRING, price INT, PRIMARY KEY (id) NOT ENFORCED)",
        "INSERT INTO fruit VALUES (1, 'apple'), (2, 'apple'), (3, 'apple')",
        f"SET 'checkpoint.location' = '{tmp_path}'",
        "SET 'execution.runtime-mode' = 'streaming'",
        "SET 'execution.trigger' = 'available-now'",
    ):
        catalog.sql(statement, spark)

    def join() -> None:
        query = "SELECT fruit.id, name, price FROM fruit JOIN prices ON fruit.id = prices.id"
        running = catalog.sql(f"INSERT INTO priced {query}", spark)
        assert isinstance(running, Running)
        assert running.query is not None
        running.query.awaitTermination()

    prices = catalog.table("prices")
    prices.write(pa.table({"id": [1, 2], "price": pa.array([10, 20], pa.int32())}))
    join()
    catalog.table("fruit").write(pa.table({"id": [1], "name": ["plum"]}))
    prices.delete([("id", "=", 2)])
    prices.write(pa.table({"id": [3], "price": pa.array([30], pa.int32())}))
    join()
    rows = {tuple(row) for row in catalog.read(spark, "priced").collect()}
    assert rows == {(1, "plum", 10), (3, "apple", 30)}
    assert catalog.table("priced").check() == ()
