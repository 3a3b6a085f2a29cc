"""Schemas: METADATA columns, and the JSON form in which tables keep them."""

import json
from typing import Any

import pyarrow as pa
import pytest

from upsert.errors import CorruptTableError, SchemaError
from upsert.schema import Column, Index, TableSchema

SCHEMA = TableSchema(
    (
        Column("id", pa.int64()),
        Column("at", pa.timestamp("us", "UTC"), metadata="timestamp"),
        Column("name", pa.string(), comment="of the user"),
        Column("offset", pa.int64(), nullable=False, metadata="offset", virtual=True),
    ),
    ("id",),
)


def test_columns_are_physical_or_metadata() -> None:
    assert [column.name for column in SCHEMA.physical] == ["id", "name"]
    assert [column.name for column in SCHEMA.metadata] == ["at", "offset"]


def test_json_form_gives_the_schema_back() -> None:
    assert TableSchema.from_json(json.loads(json.dumps(SCHEMA.to_json()))) == SCHEMA


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("metadata", 1),
        ("virtual", "yes"),
        ("name", ["a"]),
        ("nullable", "no"),
        ("comment", {}),
        ("type", "word"),
    ],
)
def test_damaged_column_is_no_schema(key: str, value: Any) -> None:
    damaged = SCHEMA.to_json()
    damaged["columns"][1][key] = value
    with pytest.raises(CorruptTableError):
        TableSchema.from_json(damaged)


@pytest.mark.parametrize("damaged", [[], {"columns": 5}, {"columns": [[]]}, {"columns": ["name"]}])
def test_other_json_is_no_schema(damaged: Any) -> None:
    with pytest.raises(CorruptTableError):
        TableSchema.from_json(damaged)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TableSchema.of({"id": pa.int64()}, "id"), r"primary_key must be .*'id'; write \['id'\]"),
        (lambda: TableSchema.of({"id": pa.int64()}, ["id"], "id"), r"partitioned_by must be a list of names"),
        (
            lambda: TableSchema.of({"id": "BIGINT"}),
            r"its type must be .* 'BIGINT'; write pa.int64",
        ),
        (lambda: TableSchema.of([("id", pa.int64())]), r"columns must be a dict .* got list; write \{'id'"),
        (lambda: Index.over("name"), r"index must be a list of names, got 'name'; write \['name'\]"),
        (
            lambda: TableSchema.of({"cents": pa.list_(pa.decimal128(5, -3))}),
            r"column 'cents': a decimal must .* as in Spark, got DECIMAL\(5,-3\); make it DECIMAL\(8,0\)",
        ),
        (
            lambda: TableSchema.of({"part": pa.decimal128(5, 10)}),
            r"DECIMAL\(5,10\); make it DECIMAL\(10,10\)",
        ),
        (
            lambda: TableSchema.of({"part": pa.decimal128(5, 90)}),
            r"DECIMAL\(5,90\); make it DECIMAL\(38,38\)",
        ),
    ],
)
def test_what_is_given_in_a_wrong_form_is_told_with_the_right_one(make: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        make()


def test_metadata_column_identifies_no_row() -> None:
    with pytest.raises(SchemaError, match="PRIMARY KEY: column 'offset' must be a physical column"):
        TableSchema(SCHEMA.columns, ("offset",))
