"""A folder of tables by name."""

import copy
import errno
import os
import pickle
import shutil
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from datetime import date
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import planner
from tests.forked_python import forked_program
from tests.helpers import multiset
from upsert.catalog.catalog import Catalog
from upsert.catalog.results import Frame
from upsert.errors import ConfigurationError, SchemaError, TableExistsError, TableNotFoundError
from upsert.materializer.choice import UnprovenKeyWarning
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import TableSchema
from upsert.store.commit.append import LeftoverWarning

ORDERS = "CREATE TABLE orders (id BIGINT, product STRING, PRIMARY KEY (id) NOT ENFORCED, INDEX (product))"


def rows(**columns: list[object]) -> pa.Table:
    return pa.table(columns)


def test_new_catalog_has_no_tables_and_makes_no_folder(catalog: Catalog) -> None:
    assert catalog.tables() == ()
    assert not os.path.exists(catalog.warehouse)


def test_created_table_has_the_schema_and_options_of_its_statement(catalog: Catalog) -> None:
    catalog.sql(ORDERS + " COMMENT 'all' WITH ('bucket' = '3', 'change-tracking' = 'false')")
    table = catalog.table("orders")
    schema = TableSchema.of({"id": pa.int64(), "product": pa.string()}, primary_key=["id"]).index("product")
    assert (table.schema.columns, table.schema.indexes) == (schema.columns, schema.indexes)
    assert (table.schema.comment, table.options.bucket, table.options.change_tracking) == ("all", 3, False)
    assert table.path == os.path.join(catalog.warehouse, "orders")


def test_rows_are_found_by_key_and_by_index(catalog: Catalog) -> None:
    catalog.sql(ORDERS)
    catalog.table("orders").write(rows(id=[1, 2, 3], product=["pen", "ink", "pen"]))
    snapshot = catalog.table("orders").snapshot()
    assert snapshot.lookup(["id"], rows(id=[2])).to_pylist() == [{"id": 2, "product": "ink"}]
    assert multiset(snapshot.lookup(["product"], rows(product=["pen"]))) == {(1, "pen"): 1, (3, "pen"): 1}


def test_two_catalogs_of_one_folder_see_the_same_tables(catalog: Catalog) -> None:
    catalog.sql(ORDERS)
    catalog.sql("CREATE TABLE customers (id BIGINT)")
    assert Catalog(f"file://{catalog.warehouse}").tables() == ("customers", "orders")


def test_a_catalog_is_not_sent_to_another_process_and_says_what_is(catalog: Catalog) -> None:
    for send in (pickle.dumps, copy.copy):
        with pytest.raises(ConfigurationError) as caught:
            send(catalog)
        assert str(caught.value) == (
            f"catalog of '{catalog.warehouse}': is a session of its process, it cannot be pickled or copied; "
            "make one in the other process, Catalog(warehouse), or send tables, catalog.table(name)"
        )


def test_existing_table_is_not_created_again(catalog: Catalog) -> None:
    catalog.sql(ORDERS)
    uuid = catalog.table("orders").uuid
    with pytest.raises(TableExistsError, match="orders"):
        catalog.sql("CREATE TABLE orders (other INT)")
    catalog.sql("CREATE TABLE IF NOT EXISTS orders (other INT)")
    assert catalog.table("orders").uuid == uuid


def test_dropped_table_is_gone_with_its_files(catalog: Catalog) -> None:
    catalog.sql(ORDERS)
    catalog.table("orders").write(rows(id=[1], product=["pen"]))
    catalog.sql("DROP TABLE orders")
    assert catalog.tables() == ()
    assert os.listdir(catalog.warehouse) == []
    with pytest.raises(TableNotFoundError):
        catalog.table("orders")


def test_dropped_name_can_be_used_again(catalog: Catalog) -> None:
    catalog.sql(ORDERS)
    catalog.table("orders").write(rows(id=[1], product=["pen"]))
    catalog.sql("DROP TABLE orders")
    catalog.sql("CREATE TABLE orders (id INT)")
    assert catalog.table("orders").snapshot().scan().num_rows == 0


def test_drop_of_a_missing_table_fails_unless_if_exists(catalog: Catalog) -> None:
    catalog.sql("DROP TABLE IF EXISTS orders")
    with pytest.raises(TableNotFoundError, match="'orders' does not exist"):
        catalog.sql("DROP TABLE orders")


def test_drop_finishes_what_a_killed_drop_left(catalog: Catalog) -> None:
    """A drop is killed after the rename: the table is gone, its files go with the next drop."""
    catalog.sql(ORDERS)
    catalog.sql("CREATE TABLE other (id INT)")
    script = (
        "import os, shutil, signal, sys\n"
        "from upsert.catalog.catalog import Catalog\n"
        "shutil.rmtree = lambda path: os.kill(os.getpid(), signal.SIGKILL)\n"
        "Catalog(sys.argv[1]).sql('DROP TABLE orders')\n"
    )
    killed = subprocess.run(forked_program("-c", script, catalog.warehouse), check=False)
    assert killed.returncode == -9
    assert catalog.tables() == ("other",)
    assert len(os.listdir(catalog.warehouse)) == 2
    catalog.sql("DROP TABLE other")
    assert os.listdir(catalog.warehouse) == []


def test_a_table_of_which_files_cannot_be_deleted_is_dropped_and_holds_no_other_one_up(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a process of another user has dropped a table, and was killed."""
    for name in ("one", "other"):
        catalog.sql(f"CREATE TABLE {name} (id INT)")

    def refused(path: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", refused)
        with pytest.warns(
            LeftoverWarning, match=r"'.*/\.dropped-.*' could not be deleted: .*Permission denied"
        ):
            catalog.sql("DROP TABLE one")
        with pytest.warns(LeftoverWarning, match="or delete it yourself"):
            catalog.sql("DROP TABLE other")
    assert catalog.tables() == ()
    assert len(os.listdir(catalog.warehouse)) == 2
    catalog.sql("CREATE TABLE next (id INT)")
    catalog.sql("DROP TABLE next")
    assert os.listdir(catalog.warehouse) == []


def test_folder_that_is_no_table_is_never_dropped(catalog: Catalog) -> None:
    notes = Path(catalog.warehouse) / "notes"
    notes.mkdir(parents=True)
    (notes / "keep.txt").write_text("me")
    with pytest.raises(TableNotFoundError):
        catalog.sql("DROP TABLE notes")
    assert (notes / "keep.txt").exists()
    assert catalog.tables() == ()


@pytest.mark.parametrize(
    "name", ["../escape", "..", ".", "a/b", "/tmp/x", "", "1st", "a b", ".hidden", "a" * 129, "Ünï"]
)
def test_name_that_could_leave_the_warehouse_is_refused(catalog: Catalog, tmp_path: Path, name: str) -> None:
    quoted = f"`{name}`"
    for act in (lambda: catalog.table(name), lambda: catalog.sql(f"CREATE TABLE {quoted} (a INT)")):
        with pytest.raises((ConfigurationError, SchemaError), match="name"):
            act()
    with pytest.raises((ConfigurationError, SchemaError), match="name"):
        catalog.sql(f"DROP TABLE IF EXISTS {quoted}")
    assert list(tmp_path.iterdir()) == []


def test_link_out_of_the_warehouse_is_no_table(catalog: Catalog, tmp_path: Path) -> None:
    outside = Catalog(tmp_path / "outside")
    outside.sql(ORDERS)
    os.makedirs(catalog.warehouse)
    os.symlink(outside.table("orders").path, os.path.join(catalog.warehouse, "orders"))
    assert catalog.tables() == ()
    for statement in ("DROP TABLE orders", "CREATE TABLE IF NOT EXISTS orders (a INT)"):
        with pytest.raises(ConfigurationError, match="table 'orders' must lie in the warehouse"):
            catalog.sql(statement)
    with pytest.raises(ConfigurationError, match="table 'orders' must lie in the warehouse"):
        catalog.table("orders")
    assert outside.tables() == ("orders",)


def test_file_where_the_table_should_be_is_left_alone(catalog: Catalog) -> None:
    os.makedirs(catalog.warehouse)
    path = Path(catalog.warehouse) / "orders"
    path.write_text("notes")
    with pytest.raises(TableExistsError, match="is a file; choose another name"):
        catalog.sql(ORDERS)
    assert path.read_text() == "notes"


@pytest.mark.parametrize("connector", ["", " WITH ('connector' = 'delta', 'path' = '/data/o')"])
def test_folder_with_files_of_a_user_becomes_no_table(catalog: Catalog, connector: str) -> None:
    """DROP TABLE deleted them with the table."""
    files = [Path(catalog.warehouse) / "orders" / name for name in ("0.parquet", "1.parquet", "x/y")]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("rows")
    for begin in ("CREATE TABLE", "CREATE TABLE IF NOT EXISTS"):
        with pytest.raises(ConfigurationError, match=r"one with '0\.parquet' and 2 more; move them away"):
            catalog.sql(f"{begin} orders (id INT){connector}")
    assert {path for path in Path(catalog.warehouse).rglob("*") if path.is_file()} == set(files)
    assert catalog.tables() == ()


@pytest.mark.parametrize(
    "left",
    [
        f".table.json-{'a' * 32}.tmp",
        f"snapshot/.x-{'a' * 32}.tmp",
        f"day=1/bucket-0/{7:020d}-{'a' * 32}.arrow",
        f"manifest/{7:020d}-{'a' * 32}.arrow",
        "compaction.lock",
    ],
)
def test_folder_that_a_killed_create_or_writer_left_becomes_a_table(catalog: Catalog, left: str) -> None:
    """A writer may be killed after its table was dropped."""
    file = Path(catalog.warehouse) / "orders" / left
    file.parent.mkdir(parents=True)
    file.write_text("{")
    catalog.sql(ORDERS)
    assert catalog.tables() == ("orders",)
    table = catalog.table("orders")
    table.write(rows(id=[1], product=["tea"]))
    assert table.snapshot().scan().num_rows == 1


@pytest.mark.parametrize(
    "found", [".DS_Store", "._.DS_Store", ".nfs0000000002d94ea00000001", "snapshot/.DS_Store"]
)
def test_file_that_a_system_makes_is_in_the_way_of_no_table(catalog: Catalog, found: str) -> None:
    """A folder that Finder has shown could become no table."""
    file = Path(catalog.warehouse) / "orders" / found
    file.parent.mkdir(parents=True)
    file.write_text("shown")
    catalog.sql(ORDERS)
    catalog.table("orders").write(rows(id=[1], product=["tea"]))
    assert (file.read_text(), catalog.table("orders").check()) == ("shown", ())
    catalog.sql("DROP TABLE orders")
    assert os.listdir(catalog.warehouse) == []


@pytest.mark.parametrize("found", [".DS_Store/notes.txt", "lost+found/#1234", ".nfs-notes"])
def test_user_s_file_is_in_the_way_of_a_table_also_below_a_system_s_name(
    catalog: Catalog, found: str
) -> None:
    file = Path(catalog.warehouse) / "orders" / found
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("notes")
    with pytest.raises(ConfigurationError, match="move them away"):
        catalog.sql(ORDERS)


def test_create_if_not_exists_looks_at_no_file_of_the_table_that_is_there(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It walked through all of them, of which there may be millions."""
    catalog.sql(ORDERS)
    catalog.table("orders").write(rows(id=[1], product=["tea"]))
    monkeypatch.setattr(os, "scandir", pytest.fail)
    catalog.sql(ORDERS.replace("TABLE", "TABLE IF NOT EXISTS"))


def test_remains_of_a_table_without_its_definition_become_no_other_table(catalog: Catalog) -> None:
    """Its snapshots were taken for those of the new one."""
    catalog.sql(ORDERS)
    table = catalog.table("orders")
    table.write(rows(id=[1], product=["tea"]))
    (Path(table.path) / "table.json").unlink()
    with pytest.raises(ConfigurationError, match="must be a folder that is empty or not there yet"):
        catalog.sql(ORDERS)


def test_missing_table_is_told_with_a_suggestion(catalog: Catalog) -> None:
    with pytest.raises(TableNotFoundError, match="which is no folder yet; CREATE TABLE makes it, or correct"):
        catalog.table("orders")
    os.makedirs(catalog.warehouse)
    with pytest.raises(TableNotFoundError, match="it has no tables yet"):
        catalog.table("orders")
    catalog.sql(ORDERS)
    for name in ("order", "ORDERS"):
        with pytest.raises(TableNotFoundError, match="did you mean 'orders'"):
            catalog.table(name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("'buckets' = '2'", "unknown option 'buckets'; did you mean 'bucket'"),
        ("'bucket' = '0'", "option 'bucket' must be a positive integer, got '0'"),
        ("'connector' = 'kafk'", "table 'orders': unknown connector 'kafk'; did you mean 'kafka'"),
    ],
)
def test_option_that_is_not_possible_leaves_nothing(catalog: Catalog, options: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        catalog.sql(f"{ORDERS} WITH ({options})")
    assert not os.path.exists(catalog.warehouse)


def test_metadata_that_a_managed_table_has_not_leaves_nothing(catalog: Catalog) -> None:
    with pytest.raises(SchemaError, match="table 't': column 'o': unknown metadata key 'offset'"):
        catalog.sql("CREATE TABLE t (a INT, o BIGINT METADATA FROM 'offset' VIRTUAL)")
    assert not os.path.exists(catalog.warehouse)


def test_other_statement_changes_nothing(catalog: Catalog) -> None:
    catalog.sql(ORDERS)
    with pytest.raises(SchemaError, match="CREATE INDEX is not supported"):
        catalog.sql("CREATE INDEX i ON orders (product)")
    assert catalog.table("orders").schema.names == ("id", "product")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda catalog: catalog.sql(None), "must be a text of SQL, got NoneType"),
        (
            lambda catalog: catalog.sql("SELECT :x", {"x": 1}),
            "argument must be a Spark session, got dict",
        ),
        (lambda catalog: Catalog(catalog.warehouse, optimize=planner), "got module; give planner.optimize"),
        (
            lambda catalog: catalog.create_view("v", "SELECT 1 AS id", primary_key="id"),
            r"primary_key must be a list of names, got 'id'; write \['id'\]",
        ),
        (
            lambda catalog: catalog.create_table_as("t", None, partitioned_by="day"),
            r"partitioned_by must be a list of names, got 'day'; write \['day'\]",
        ),
        (
            lambda catalog: catalog.write_changes(Frame("SELECT", None), "t"),
            "write_changes into 't': needs a DataFrame, got Frame; give its df",
        ),
        (
            lambda catalog: catalog.create_table_as("t", "SELECT 1"),
            "needs a DataFrame, got str; catalog",
        ),
        (lambda _: planner.explain("SELECT 1"), "explain: needs a DataFrame, got str"),
        (lambda _: planner.optimize(None), "optimize: needs a DataFrame, got NoneType"),
    ],
)
def test_what_is_given_in_a_wrong_form_is_told_with_the_right_one(
    call: Callable[[Catalog], object], message: str, catalog: Catalog
) -> None:
    with pytest.raises((ConfigurationError, SchemaError), match=message):
        call(catalog)
    assert not os.path.exists(catalog.warehouse)


@pytest.mark.spark
def test_a_session_that_was_stopped_is_told_as_such(
    catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark spoke of a format that is not registered, and of what its inside lacks then."""
    catalog.sql(ORDERS)
    changes = catalog.read_changes(spark, "orders")
    view = catalog.create_view("v", "SELECT id FROM orders", spark=spark)
    found = catalog.sql("SELECT rand() AS r FROM orders", spark)
    uses: list[Callable[[], object]] = [
        lambda: catalog.sql("SELECT id FROM orders", spark),
        lambda: catalog.read(spark, "orders"),
        lambda: catalog.read_changes(spark, "orders"),
        lambda: planner.explain(changes),
        lambda: view.refresh(),
        lambda: found.rows,
    ]
    monkeypatch.setattr(spark.sparkContext, "_jsc", None)
    for use in uses:
        with pytest.raises(ConfigurationError, match="the Spark session must run, got one that was stopped"):
            use()


def test_a_table_is_read_in_a_session(catalog: Catalog) -> None:
    catalog.sql(ORDERS)
    with pytest.raises(ConfigurationError, match=r"Spark session, got NoneType; write read\(spark, name\)"):
        catalog.read(None, "orders")
    with pytest.raises(ConfigurationError, match=r"got str; write read_changes\(spark, name\)"):
        catalog.read_changes("main", "orders")


def test_a_warehouse_in_a_place_that_cannot_publish_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="oss:"):
        Catalog("oss://bucket/warehouse")


@pytest.mark.spark
def test_changes_stream_from_one_table_into_another(
    spark: SparkSession, catalog: Catalog, tmp_path: Path
) -> None:
    catalog.sql(ORDERS)
    catalog.sql(ORDERS.replace("orders", "copy"))
    source = catalog.table("orders")
    source.write(rows(id=[1, 2], product=["pen", "ink"]))

    def run(name: str) -> None:
        changes = catalog.read_changes(spark, "orders", max_rows_per_trigger=1)
        writer = catalog.write_changes(changes, name, sink_materialize="none")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query.start().awaitTermination()

    run("copy")
    source.write(rows(id=[1, 2], product=["pencil", None], _row_kind=["+U", "-D"]))
    run("copy")
    expected = [(1, "pencil")]
    assert [tuple(row) for row in catalog.read(spark, "copy").collect()] == expected
    assert [tuple(row.values()) for row in catalog.table("copy").snapshot().scan().to_pylist()] == expected
    assert catalog.read_changes(spark, "copy").columns == ["id", "product", ROW_KIND_COLUMN]


@pytest.mark.spark
def test_optimize_that_was_handed_in_sees_what_is_written(
    spark: SparkSession, catalog: Catalog, tmp_path: Path
) -> None:
    seen: list[DataFrame] = []

    def optimize(df: DataFrame) -> DataFrame:
        seen.append(df)
        return df.where("id > 1")

    catalog.sql(ORDERS)
    catalog.sql(ORDERS.replace("orders", "copy"))
    catalog.table("orders").write(rows(id=[1, 2], product=["pen", "ink"]))
    changes = catalog.read_changes(spark, "orders")
    own = Catalog(catalog.warehouse, optimize=optimize)
    with pytest.warns(UnprovenKeyWarning, match=r"PRIMARY KEY \(id\).*optimize=planner\.optimize"):
        writer = own.write_changes(changes, "copy")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    writer.start().awaitTermination()
    assert seen == [changes]
    assert catalog.table("copy").snapshot().scan().to_pylist() == [{"id": 2, "product": "ink"}]


@pytest.mark.spark
def test_optimize_with_a_parameter_for_it_is_told_the_key_of_the_table(
    spark: SparkSession, catalog: Catalog
) -> None:
    told: list[tuple[str, ...] | None] = []

    def optimize(df: DataFrame, sink_key: tuple[str, ...] | None = None) -> DataFrame:
        told.append(sink_key)
        return df

    catalog.sql(ORDERS)
    catalog.sql("CREATE TABLE log (id BIGINT, product STRING)")
    changes = catalog.read_changes(spark, "orders")
    for name in ("orders", "log"):
        with pytest.warns(UnprovenKeyWarning) if name == "orders" else nullcontext():
            Catalog(catalog.warehouse, optimize=optimize).write_changes(changes, name)
    assert told == [("id",), ()]


@pytest.mark.spark
def test_stream_without_kinds_needs_somebody_who_can_read_its_plan(
    spark: SparkSession, catalog: Catalog
) -> None:
    catalog.sql(ORDERS)
    changes = catalog.read_changes(spark, "orders").select("id", "product")
    with pytest.raises(
        ConfigurationError, match=r"must have the column '_row_kind'.*optimize=planner\.optimize"
    ):
        catalog.write_changes(changes, "orders")
    Catalog(catalog.warehouse, optimize=lambda df: df).write_changes(changes, "orders")


@pytest.mark.spark
def test_read_gives_the_columns_and_rows_asked_for(spark: SparkSession, catalog: Catalog) -> None:
    catalog.sql(
        "CREATE TABLE sales (id BIGINT, day DATE, n INT, twice AS n * 2, "
        "state BIGINT METADATA FROM 'snapshot-id', PRIMARY KEY (id) NOT ENFORCED)"
    )
    days = [date(2024, 1, number) for number in (1, 2, 3)]
    catalog.table("sales").write(
        pa.table({"id": [1, 2, 3], "day": days, "n": pa.array([5, None, 7], pa.int32())})
    )
    read = partial(catalog.read, spark, "sales")
    some = read(columns=["twice", "day"], where=[("day", ">", days[0])])
    assert some.columns == ["twice", "day"]
    assert sorted(some.collect(), key=repr) == [(14, days[2]), (None, days[1])]
    assert read(columns=["state"]).distinct().collect() == [(1,)]
    assert [row.id for row in read(where=[[("n", "=", 5)], [("id", "=", 3)]]).sort("id").collect()] == [1, 3]
    assert read(0, columns=["id"]).collect() == []
    for wrong in ({"columns": ["x"]}, {"columns": []}, {"columns": "id"}, {"where": [("twice", "=", 1)]}):
        with pytest.raises(SchemaError, match=r"columns are|one or more different names|twice"):
            read(**wrong)


@pytest.mark.spark
def test_missing_table_is_no_source_and_no_sink(spark: SparkSession, catalog: Catalog) -> None:
    for act in (
        lambda: catalog.read(spark, "orders"),
        lambda: catalog.read_changes(spark, "orders"),
        lambda: catalog.write_changes(spark.range(1), "orders"),
    ):
        with pytest.raises(TableNotFoundError, match="'orders' does not exist"):
            act()
