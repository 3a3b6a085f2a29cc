"""What PostgreSQL reads of the text that columns become is what they hold."""

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.local_postgres import LocalPostgres, sql_type
from upsert import types
from upsert.postgres.connection import run
from upsert.postgres.sink import copy_text
from upsert.postgres.table import PostgresTable
from upsert.postgres.types import quoted
from upsert.schema import TableSchema

VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [True, False]),
    "tiny": (pa.int8(), [-128, 127]),
    "small": (pa.int16(), [-(2**15)]),
    "whole": (pa.int32(), [2**31 - 1]),
    "big": (pa.int64(), [-(2**63), 2**63 - 1]),
    "single": (pa.float32(), [0.1, -0.0, math.inf, 3.4e38]),
    "double": (pa.float64(), [0.1, 1e-300, -math.inf, 1.7976931348623157e308]),
    "exact": (pa.decimal128(38, 18), [Decimal("-12345678901234567890.123456789012345678"), Decimal("1E-18")]),
    "text": (pa.string(), ["", "\\N", "\\.", "a\tb\nc\rd\\", "\\x41", "ä😀", "NULL"]),
    "bytes": (pa.binary(), [b"", b"\x00\xff\\\n"]),
    "day": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)]),
    "moment": (types.TIMESTAMP, [datetime(2013, 3, 31, 1, 30, 0, 1, tzinfo=UTC)]),
    "local": (types.TIMESTAMP_NTZ, [datetime(2013, 3, 31, 2, 30, 0, 999_999)]),
}


def declared(postgres: LocalPostgres, columns: dict[str, pa.DataType]) -> PostgresTable:
    schema = TableSchema.of(columns, primary_key=[next(iter(columns))])
    return PostgresTable.of("t", schema, {"url": postgres.dsn, "table-name": "t"})


def read_back(postgres: LocalPostgres, rows: pa.Table) -> list[tuple[Any, ...]]:
    """The rows as the database has them after a COPY of their text."""
    columns = {field.name: field.type for field in rows.schema}
    names = ", ".join(f"{quoted(name)} {sql_type(type_)}" for name, type_ in columns.items())

    async def copied(connection: Any) -> list[tuple[Any, ...]]:
        await connection.execute(f"CREATE TEMPORARY TABLE given ({names})")
        text = copy_text(rows.columns)

        async def source() -> Any:
            yield text

        await connection.copy_to_table("given", source=source(), format="text")
        return [tuple(row) for row in await connection.fetch("SELECT * FROM given")]

    return run(declared(postgres, columns), copied)


@pytest.mark.parametrize("name", VALUES)
def test_values_of_every_type_arrive(postgres: LocalPostgres, name: str) -> None:
    type_, values = VALUES[name]
    rows = pa.table({name: pa.array([*values, None, *values], type_)})
    for part in (rows, rows.slice(1, len(values)), rows.slice(len(values))):
        expected = [(value,) for value in part.column(0).to_pylist()]
        assert read_back(postgres, part) == expected


def test_negative_zero_and_nan_arrive(postgres: LocalPostgres) -> None:
    ((zero,), (nan,)) = read_back(postgres, pa.table({"x": [-0.0, math.nan]}))
    assert math.copysign(1, zero) == -1
    assert math.isnan(nan)


def test_a_time_that_has_no_text_is_not_another_one() -> None:
    """Arrow writes the year 67556 of an instant as 2020; so no database takes it."""
    far = pa.array([2_069_699_385_600_000_000, 0]).cast(types.TIMESTAMP)
    assert copy_text([far]) == b"<value out of range: 2069699385600000000>Z\n1970-01-01 00:00:00.000000Z\n"


TEXT = st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)


@given(st.lists(st.tuples(TEXT, st.none() | st.binary(max_size=5), TEXT), min_size=1, max_size=5))
def test_any_text_and_bytes_arrive(postgres: LocalPostgres, rows: list[tuple[Any, ...]]) -> None:
    columns = list(zip(*rows, strict=True))
    table = pa.table([pa.array(columns[0], pa.string()), pa.array(columns[1], pa.binary()),
                      pa.array(columns[2], pa.string())], names=["a", "b", "c"])  # fmt: skip
    assert read_back(postgres, table) == rows
