"""ALTER TABLE of fields of structs in SQL: reads, batches that merge schemas, views, running streams."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import planner
from upsert import Catalog
from upsert.catalog.results import Frame
from upsert.errors import SchemaError

pytestmark = pytest.mark.spark

STOPS = """CREATE TABLE stops (id BIGINT, at STRUCT<lat: INT, lon: INT>,
    tags ARRAY<STRUCT<k: STRING, n: INT>>, props MAP<STRING, STRUCT<v: INT>>,
    PRIMARY KEY (id) NOT ENFORCED)"""


@pytest.fixture
def catalog(tmp_path: Path, spark: SparkSession) -> Catalog:
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    catalog.sql(STOPS)
    insert(
        catalog,
        spark,
        f"1L, {at('lat', 10, 'lon', 20)}, {tags('k', 'a', 'n', 1)}, {props('v', 5)}",
    )
    return catalog


def insert(catalog: Catalog, spark: SparkSession, values: str, hint: str = "") -> None:
    catalog.sql(f"INSERT INTO stops {hint} SELECT {values}", spark)


def at(*fields: object) -> str:
    """SQL of a struct, from names and values."""
    return f"named_struct({', '.join(map(repr, fields))})"


def tags(*fields: object) -> str:
    return f"array({at(*fields)})"


def props(*fields: object) -> str:
    return f"map('p', {at(*fields)})"


def queried(catalog: Catalog, spark: SparkSession, text: str) -> list[tuple[Any, ...]]:
    result = catalog.sql(text, spark)
    assert isinstance(result, Frame)
    return sorted(tuple(row.values()) for row in result.rows.to_pylist())


def test_statements_and_reads(catalog: Catalog, spark: SparkSession) -> None:
    catalog.sql("ALTER TABLE stops RENAME COLUMN at.lat TO north")
    catalog.sql("ALTER TABLE stops ALTER COLUMN tags.element.n TYPE BIGINT")
    catalog.sql("ALTER TABLE stops DROP COLUMN tags.element.k")
    catalog.sql("ALTER TABLE stops ADD COLUMN props.value.w STRING")
    catalog.sql("ALTER TABLE stops RENAME COLUMN props.value.v TO u")
    insert(
        catalog,
        spark,
        f"2L, {at('north', 1, 'lon', 2)}, {tags('n', 5_000_000_000)}, {props('u', 6, 'w', 'x')}",
    )
    text = "SELECT id, at.north, tags[0].n, props['p'].u, props['p'].w FROM stops"
    assert queried(catalog, spark, text) == [(1, 10, 1, 5, None), (2, 1, 5_000_000_000, 6, "x")]
    old = "SELECT id, at.north, at.lon FROM stops FOR SYSTEM_VERSION AS OF 1"
    assert queried(catalog, spark, old) == [(1, 10, 20)]
    shown = str(catalog.table("stops").schema.column("tags").sql_type)
    assert shown == "ARRAY<STRUCT<n: BIGINT>>"
    with pytest.raises(SchemaError, match="only field; drop the column"):
        catalog.sql("ALTER TABLE stops DROP COLUMN tags.element.n")


def test_batch_adds_and_widens_fields(catalog: Catalog, spark: SparkSession) -> None:
    merge = "/*+ OPTIONS('mergeSchema' = 'true') */"
    place, tag = at("lat", 1, "lon", 1 << 40, "name", "x"), tags("k", "b", "n", 2, "ok", True)
    insert(catalog, spark, f"2L, {place}, {tag}, {props('v', 1 << 40, 'w', 7)}", merge)
    types = [column.sql_type for column in catalog.table("stops").schema.columns[1:]]
    assert types == [
        "STRUCT<lat: INT,lon: BIGINT,name: STRING>",
        "ARRAY<STRUCT<k: STRING,n: INT,ok: BOOLEAN>>",
        "MAP<STRING,STRUCT<v: BIGINT,w: INT>>",
    ]
    found = queried(catalog, spark, "SELECT id, at.name, tags[0].ok, props['p'].v FROM stops")
    assert found == [(1, None, None, 5), (2, "x", True, 1 << 40)]
    with pytest.raises(SchemaError, match="column 'at' must be STRUCT"):
        insert(catalog, spark, f"3L, {at('lat', 1)}, {tags('k', 'b', 'n', 2)}, {props('v', 1)}", merge)


def test_view_goes_on_where_its_query_still_means_something(catalog: Catalog, spark: SparkSession) -> None:
    catalog.sql(
        "CREATE MATERIALIZED VIEW norths AS SELECT at.lat AS lat, count(*) AS n FROM stops GROUP BY at.lat",
        spark,
    )
    catalog.sql("ALTER TABLE stops RENAME COLUMN at.lon TO east")
    catalog.sql("ALTER TABLE stops DROP COLUMN tags.element.n")
    catalog.sql("ALTER TABLE stops ADD COLUMN at.up INT")
    insert(
        catalog,
        spark,
        f"2L, {at('lat', 10, 'east', 2, 'up', 3)}, {tags('k', 'a')}, {props('v', 5)}",
    )
    catalog.sql("REFRESH MATERIALIZED VIEW norths", spark)
    assert queried(catalog, spark, "SELECT lat, n FROM norths") == [(10, 2)]
    catalog.sql("ALTER TABLE stops RENAME COLUMN at.lat TO north")
    insert(catalog, spark, f"3L, {at('north', 10, 'east', 2, 'up', 3)}, {tags('k', 'a')}, {props('v', 5)}")
    with pytest.raises(Exception, match="lat"):
        catalog.sql("REFRESH MATERIALIZED VIEW norths", spark)
    assert queried(catalog, spark, "SELECT lat, n FROM norths") == [(10, 2)]


def test_running_join_goes_on(catalog: Catalog, spark: SparkSession, tmp_path: Path) -> None:
    catalog.sql("CREATE TABLE names (id BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.sql("CREATE TABLE named (id BIGINT, lat INT, name STRING, PRIMARY KEY (id) NOT ENFORCED)")
    names = catalog.table("names")
    names.write(pa.table({"id": [1], "name": ["a"]}))
    stops, found = catalog.read_changes(spark, "stops"), catalog.read_changes(spark, "names")
    joined = planner.optimize(stops.join(found, "id").select("id", "at.lat", "name"))
    writer = catalog.write_changes(joined, "named")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        catalog.sql("ALTER TABLE stops RENAME COLUMN at.lat TO north")
        names.write(pa.table({"id": [1], "name": ["b"]}))
        query.processAllAvailable()
        assert queried(catalog, spark, "SELECT id, lat, name FROM named") == [(1, 10, "b")]
    finally:
        query.stop()
