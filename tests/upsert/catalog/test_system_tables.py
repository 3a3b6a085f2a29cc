"""System tables: what they say is what lies in the folder, and what the page on SQL says of them."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from upsert import Catalog, Table, Version
from upsert.catalog.results import Frame, Rows
from upsert.catalog.system_tables import SYSTEM_TABLES, read
from upsert.errors import ConfigurationError, SchemaError, TableNotFoundError, UpsertError
from upsert.types import sql_name

ORDERS = """CREATE TABLE shop.orders (id BIGINT, day STRING, n INT, PRIMARY KEY (id, day) NOT ENFORCED)
    COMMENT 'sold' PARTITIONED BY (day)
    WITH ('bucket' = '1', 'write-only' = 'true')"""


def rows(table: Table, system: str, state: int | str | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read(table, system, state).to_pylist()
    return found


def written(table: Table, id: int, day: str, n: int | None) -> None:
    row = {"id": [id], "day": [day], "n": pa.array([n], pa.int32()), "note": pa.array([None], pa.string())}
    table.write(pa.table({name: row[name] for name in table.schema.names}))


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    catalog = Catalog(tmp_path / "warehouse")
    catalog.sql("CREATE DATABASE shop")
    catalog.sql(ORDERS)
    table = catalog.table("shop.orders")
    written(table, 1, "mon", 5)
    written(table, 2, "mon", None)
    catalog.sql("ALTER TABLE shop.orders ADD (INDEX by_n (n), note STRING)")
    written(table, 3, "tue", 7)
    return catalog


@pytest.fixture
def table(catalog: Catalog) -> Table:
    return catalog.table("shop.orders")


def test_files_and_partitions_are_those_on_the_disk(table: Table) -> None:
    found = {one["file_path"]: one["file_size_in_bytes"] for one in rows(table, "files")}
    data = [path for path in Path(table.path).glob("day=*/*/*") if path.suffixes == [".arrow"]]
    assert found == {os.path.relpath(path, table.path): path.stat().st_size for path in data}
    by_partition = {one["partition"]: one for one in rows(table, "partitions")}
    assert {name: one["file_count"] for name, one in by_partition.items()} == {"day=mon": 2, "day=tue": 1}
    assert sum(one["file_size_in_bytes"] for one in by_partition.values()) == sum(found.values())
    assert [one["path"] for one in by_partition.values()] == [f"{table.path}/day={d}" for d in ("mon", "tue")]


def test_bounds_of_a_file_are_those_of_its_columns_now(catalog: Catalog, table: Table) -> None:
    """By today's names; a column that the table no longer has is left out, and so is one without a value."""
    catalog.sql("ALTER TABLE shop.orders RENAME COLUMN n TO amount")
    catalog.sql("ALTER TABLE shop.orders DROP COLUMN note")
    found = {
        one["sequence_number"]: (dict(one["min_values"]), one["schema_id"]) for one in rows(table, "files")
    }
    assert found == {
        1: ({"id": "1", "day": "mon", "amount": "5"}, 0),
        2: ({"id": "2", "day": "mon"}, 0),
        4: ({"id": "3", "day": "tue", "amount": "7"}, 1),
    }


def test_state_of_files_is_an_older_snapshot_or_a_tag(table: Table) -> None:
    table.tag("first", 1)
    table.compact()
    assert [one["sequence_number"] for one in rows(table, "files", "first")] == [1]
    assert [one["file_count"] for one in rows(table, "partitions", 2)] == [2]
    assert [one["snapshot_id"] for one in rows(table, "manifests", 2)] == [1, 2]
    with pytest.raises(ConfigurationError, match="only files, partitions, manifests can be read as of"):
        read(table, "tags", 1)


def test_snapshots_tags_and_consumers_are_what_can_be_read_and_who_holds_it(table: Table) -> None:
    table.tag("second", 2)
    table.hold("reader", Version(2, 4, (0, 7)), lease_s=60)
    columns = ("snapshot_id", "schema_id", "commit_kind", "data_version", "delta_record_count", "file_count")
    assert [tuple(one[name] for name in columns) for one in rows(table, "snapshots")] == [
        (1, 0, "append", 1, 1, 1),
        (2, 0, "append", 2, 1, 2),
        (3, 1, "alter", 2, 0, 2),
        (4, 1, "append", 4, 1, 3),
    ]
    times = [one["commit_time"] for one in rows(table, "snapshots")]
    assert times == sorted(times)
    assert abs((datetime.now(UTC) - times[-1]).total_seconds()) < 3600
    (tag,) = rows(table, "tags")
    assert (tag["tag_name"], tag["snapshot_id"], tag["record_count"]) == ("second", 3, 2)
    assert tag["commit_time"] == times[2] < tag["create_time"]  # of the newest snapshot with its rows
    (consumer,) = rows(table, "consumers")
    assert [*consumer.values()][:3] == ["reader", 2, 4]
    assert (consumer["lease_end_time"] - consumer["renew_time"]).total_seconds() == 60
    assert not consumer["lapsed"]


@pytest.mark.sidecars
def test_index_is_stored_in_the_files_that_were_written_with_it(catalog: Catalog, table: Table) -> None:
    """Also after another index has got its name."""
    primary = ("PRIMARY KEY", ["id", "day"], True, 3, 3)
    assert [tuple(one.values()) for one in rows(table, "indexes")] == [primary, ("by_n", ["n"], False, 3, 1)]
    catalog.sql("ALTER TABLE shop.orders DROP INDEX by_n")
    catalog.sql("ALTER TABLE shop.orders ADD INDEX by_n (note)")
    assert rows(table, "indexes")[1]["indexed_file_count"] == 0
    table.compact()
    counts = [(one["file_count"], one["indexed_file_count"]) for one in rows(table, "indexes")]
    assert counts == [(2, 2), (2, 2)]  # also of the partition of one file, which had nothing to merge


def test_definitions_are_kept_and_secrets_masked(catalog: Catalog, table: Table) -> None:
    first, second = rows(table, "schemas")
    assert [[one["name"] for one in each["fields"]] for each in (first, second)] == [
        ["id", "day", "n"],
        ["id", "day", "n", "note"],
    ]
    assert first["fields"][0] == {"id": 1, "name": "id", "type": "BIGINT", "nullable": False, "comment": None}
    assert (first["primary_key"], first["partition_keys"]) == (["id", "day"], ["day"])
    assert (first["indexes"], second["indexes"]) == ([], ["INDEX by_n (n)"])
    assert (first["comment"], dict(first["options"])["bucket"]) == ("sold", "1")
    catalog.sql("ALTER TABLE shop.orders SET ('log.kafka.sasl.password' = 'pa55')")
    for found in (rows(table, "options"), rows(table, "schemas")):
        assert "pa55" not in repr(found)
        assert "***" in repr(found)


def test_empty_table_has_its_columns_and_no_rows(catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE lines (word STRING)")
    for name, declared in SYSTEM_TABLES.items():
        found = read(catalog.table("lines"), name)
        assert dict(zip(found.column_names, found.schema.types, strict=True)) == declared.columns
        assert found.num_rows == (name == "schemas")


@pytest.mark.parametrize("name", SYSTEM_TABLES)
def test_page_on_sql_says_what_a_system_table_has(name: str) -> None:
    one = SYSTEM_TABLES[name]
    columns = ", ".join(f"`{column} {sql_name(of)}`" for column, of in one.columns.items())
    page = (Path(__file__).parents[3] / "docs" / "sql.md").read_text()
    assert f"| `${name}` | {one.about} | {columns} |\n" in page


def test_description_of_a_system_table_has_its_columns(catalog: Catalog) -> None:
    for text in ("DESCRIBE shop.orders$files", "DESC TABLE EXTENDED `shop`.`orders$files`"):
        found = catalog.sql(text)
        assert isinstance(found, Rows)
        assert found.rows.column("name").to_pylist() == [*SYSTEM_TABLES["files"].columns]
    with pytest.raises(TableNotFoundError, match=r"no system table 'fil'; did you mean 'files'\?"):
        catalog.sql("DESCRIBE shop.orders$fil")
    with pytest.raises(ConfigurationError, match=r"letters .* digits and _, .* got 'shop.orders\$files'"):
        catalog.sql("INSERT INTO shop.orders$files VALUES (1)")


def test_a_system_table_is_no_table_object(catalog: Catalog) -> None:
    with pytest.raises(
        ConfigurationError, match=r"system table of 'shop.orders'; read it with SELECT \* FROM"
    ):
        catalog.table("shop.orders$files")


@pytest.mark.spark
def test_queries_read_system_tables_as_any_other(spark: SparkSession, catalog: Catalog, table: Table) -> None:
    def values(text: str) -> list[tuple[Any, ...]]:
        result = catalog.sql(text, spark)
        assert isinstance(result, Frame)
        return [tuple(row.values()) for row in result.rows.to_pylist()]

    one_query = """SELECT s.snapshot_id, f.bounds, `orders$options`.value FROM shop.orders$snapshots AS s
        JOIN (SELECT sequence_number AS id, min_values['n'] AS bounds FROM `shop`.`orders$files`) f
        ON f.id = s.snapshot_id JOIN main.shop.orders$options ON key = 'bucket'
        WHERE s.commit_time < now() ORDER BY ALL"""
    assert values(one_query) == [(1, "5", "1"), (2, None, "1"), (4, "7", "1")]
    catalog.sql("USE shop")
    assert values("SELECT count(*) FROM orders$files FOR SYSTEM_VERSION AS OF 2") == [(2,)]
    names = {name: f"SELECT '{name}', count(*) FROM orders${name}" for name in SYSTEM_TABLES}
    counts = {name: read(table, name).num_rows for name in SYSTEM_TABLES}
    assert dict(values(" UNION ALL ".join(names.values()))) == counts
    keys = [row["key"] for row in catalog.read(spark, "orders$options").collect()]
    assert keys == ["bucket", "write-only"]
    assert catalog.read(spark, "orders$files", 1).count() == 1
    catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
    assert values("SELECT partition FROM orders$partitions ORDER BY 1") == [("day=mon",), ("day=tue",)]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (
            "SELECT * FROM shop.orders$audit_log",
            TableNotFoundError,
            "no system table 'audit_log'; read table_changes(t, from [, to])",
        ),
        (
            "SELECT * FROM shop.orders$fils",
            TableNotFoundError,
            "query: table 'orders' has no system table 'fils'; did you mean 'files'? at line 1, column 15",
        ),
        ("SELECT * FROM oders$files", TableNotFoundError, "table 'oders' does not exist"),
        ("SELECT * FROM topic$options", SchemaError, "a table with a connector has no system tables"),
        (
            "SELECT * FROM table_changes(shop.orders$files, 1)",
            SchemaError,
            "leave out OPTIONS, table_changes",
        ),
        ("SELECT * FROM shop.orders$tags FOR SYSTEM_VERSION AS OF 1", ConfigurationError, "can be read as"),
        ("CREATE MATERIALIZED VIEW v AS SELECT key FROM shop.orders$options", SchemaError, "has no versions"),
        ("SELECT a$files FROM shop.orders", SchemaError, "near '$' at line 1, column 9"),
    ],
)
def test_system_table_that_is_not_there_is_refused(
    spark: SparkSession, catalog: Catalog, text: str, error: type[UpsertError], message: str
) -> None:
    catalog.sql("CREATE TABLE topic (id BIGINT) WITH ('connector' = 'parquet', 'path' = '/none')")
    with pytest.raises(error) as caught:
        catalog.sql(text, spark)
    assert message in str(caught.value)
