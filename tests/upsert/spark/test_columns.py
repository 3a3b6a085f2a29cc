"""Spark's columns and the table's: what is the same, what fits, what is refused."""

import re

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType, _parse_datatype_json_value

from upsert.errors import SchemaError
from upsert.schema import Column, TableSchema
from upsert.spark.batches import arrow_schema
from upsert.spark.columns import check_fits, check_spark_has, read_columns, spark_schema

TABLE = TableSchema(
    (
        Column("id", pa.int64(), comment="the key"),
        Column("n", pa.int32(), nullable=False),
        Column("at", pa.timestamp("us", "UTC")),
        Column("tags", pa.map_(pa.string(), pa.list_(pa.struct({"x": pa.decimal128(20, 3)})))),
    ),
    primary_key=("id",),
)


def struct(*fields: tuple[str, object, bool]) -> StructType:
    parts = [{"name": n, "type": t, "nullable": null, "metadata": {}} for n, t, null in fields]
    found = _parse_datatype_json_value({"type": "struct", "fields": parts})
    assert isinstance(found, StructType)
    return found


def test_columns_keep_order_nullability_and_comments() -> None:
    found = spark_schema(TABLE, row_kind=True)
    assert found.names == ["id", "n", "at", "tags", "_row_kind"]
    assert [field.nullable for field in found] == [False, False, True, True, False]
    assert found["id"].metadata == {"comment": "the key"}


def test_arrow_schema_that_spark_demands_is_the_tables() -> None:
    assert arrow_schema(spark_schema(TABLE, row_kind=False)) == TABLE.arrow


@pytest.mark.parametrize("name", ["at", "all"])
def test_a_type_that_an_earlier_spark_lacks_is_told_with_its_column(name: str) -> None:
    nanos = pa.time64("ns")
    table = TableSchema.of({"id": pa.int64(), "at": nanos, "all": pa.list_(nanos), "us": pa.time64("us")})
    columns = spark_schema(table, row_kind=True)
    check_spark_has(columns, "4.3")
    check_spark_has(StructType([columns["id"], columns["us"], columns["_row_kind"]]), "4.2")
    type_ = {"at": "TIME(9)", "all": "ARRAY<TIME(9)>"}[name]
    message = (
        f"column '{name}': a TIME in Spark 4.2 has at most 6 digits of a second, got {type_}; "
        "leave the column out, or take PySpark 4.3"
    )
    with pytest.raises(SchemaError, match=f"^{re.escape(message)}$"):
        check_spark_has(StructType([columns[name]]), "4.2")


def test_read_may_ask_for_some_columns_in_any_order() -> None:
    asked = struct(("at", "timestamp", True), ("_row_kind", "string", True), ("id", "long", True))
    assert read_columns(asked, TABLE, of="table 't'") == ("at", "id")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (struct(("idd", "long", True)), "table 't': unknown column 'idd' in .schema"),
        (struct(("id", "long", True), ("id", "long", True)), "names column 'id' twice"),
        (struct(("id", "integer", True)), "column 'id' is BIGINT NOT NULL, .schema.* says INT;"),
        (struct(("at", "timestamp", False)), "column 'at' is TIMESTAMP, .schema.* says TIMESTAMP NOT NULL"),
        (struct(("_row_kind", "string", False)), "must name at least one column"),
    ],
)
def test_read_of_other_columns_is_refused(asked: StructType, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        read_columns(asked, TABLE, of="table 't'")


SMALL = TableSchema.of({"id": pa.int64(), "name": pa.string()}, primary_key=["id"])


def test_query_may_have_its_columns_in_any_order_and_narrower() -> None:
    check_fits(
        struct(("name", "void", True), ("_row_kind", "string", True), ("id", "short", True)), SMALL, of="t"
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (struct(("id", "long", False)), "the query lacks column.s. name"),
        (
            struct(("ID", "long", False), ("name", "string", True)),
            "column 'ID' must be written as that of the table, 'id'; rename it",
        ),
        (
            struct(("id", "long", False), ("name", "string", True), ("x", "long", True)),
            "column.s. x that the",
        ),
        (
            struct(("id", "string", False), ("name", "string", True)),
            r"'id' must be BIGINT.*CAST\(id AS BIGINT\)",
        ),
        (struct(("id", "long", False), ("name", "interval", True)), "'name' must be STRING, got INTERVAL"),
        (struct(("id", "long", False), ("id", "long", False), ("name", "string", True)), "a column twice"),
        (
            struct(("id", "long", False), ("name", "string", True), ("_row_kind", "long", True)),
            "'_row_kind' must be STRING, got BIGINT",
        ),
    ],
)
def test_query_that_does_not_fit_is_refused(given: StructType, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        check_fits(given, SMALL, of="table 't'")
