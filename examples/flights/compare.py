"""The joined table against a batch join that DuckDB makes of the source files, row by row.

DuckDB reads the CSV files itself: nothing of what the demo or the tables computed is on the expected side.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa

from examples.flights import tables

WITH_WEATHER: Final = "JOIN weather w ON f.origin = w.origin AND f.time_hour = w.time_hour"
"""Joins the flights `f` of `expected_rows` with the weather."""
WITH_ALL: Final = (
    f"{WITH_WEATHER} JOIN airports a ON f.dest = a.faa LEFT JOIN planes p ON f.tailnum = p.tailnum"
)
"""Joins them with airports and planes as well; planes may be missing."""

_FROM_FILES: Final = {
    "day": "make_date(f.year, f.month, f.day)",
    "origin": "f.origin",
    "tailnum": "f.tailnum",
    "dest_name": "a.name",
    "time_hour": "f.time_hour",
    "celsius": tables.CELSIUS,
}
_SQL_TYPES: Final = {
    pa.date32(): "DATE",
    pa.int32(): "INTEGER",
    pa.string(): "VARCHAR",
    pa.float64(): "DOUBLE",
    pa.timestamp("us", tz="UTC"): "TIMESTAMPTZ",
}


@dataclass(frozen=True)
class Comparison:
    """How two results differ as multisets of whole rows; floats and timestamps are compared exactly.

    `missing` rows are expected and were not found, `unexpected` ones were found and not expected; a row that
    differs in one value is in both. `examples` describes the first few.
    """

    expected: int
    found: int
    missing: int
    unexpected: int
    examples: tuple[str, ...]

    @property
    def differences(self) -> int:
        """Number of rows that only one of the two results has."""
        return self.missing + self.unexpected


def expected_join(files: Mapping[str, Path], first: int | None = None) -> pa.Table:
    """Flights that departed joined with all else, of the files `source.extract_files` gave.

    Args:
        files: the CSV files by the names of their tables.
        first: take only so many flights, in the file's order.
    """
    return expected_rows(files, tables.JOINED_SCHEMA, f"{WITH_ALL} WHERE dep_time IS NOT NULL", first)


def expected_rows(
    files: Mapping[str, Path], schema: pa.Schema, query: str, first: int | None = None
) -> pa.Table:
    """Rows that DuckDB makes of the files `source.extract_files` gave.

    Args:
        files: the CSV files by the names of their tables.
        schema: the columns; those that the files lack are computed.
        query: what follows ``FROM flights AS f``.
        first: take only so many flights, in the file's order.
    """
    columns = ", ".join(
        f"CAST({_FROM_FILES.get(field.name, field.name)} AS {sql_type(field.type)}) AS {field.name}"
        for field in schema
    )
    with connect() as connection:
        _register(connection, files)
        return connection.sql(
            f"SELECT {columns} FROM (FROM flights LIMIT {first or 'ALL'}) f {query}"
        ).to_arrow_table()


def sql_type(type_: pa.DataType) -> str:
    """DuckDB's name of a column type."""
    return _SQL_TYPES[type_]


def _register(connection: duckdb.DuckDBPyConnection, files: Mapping[str, Path]) -> None:
    for name, path in files.items():
        rows = connection.read_csv(str(path), na_values=["NA", ""], sample_size=-1)
        connection.register(name, rows)


def compare(expected: pa.Table, found: pa.Table, examples: int = 5) -> Comparison:
    """The difference of two tables of flights that have the same columns, their key among them.

    Args:
        expected: what should be there.
        found: what is there.
        examples: how many differing rows to describe.
    """
    columns = ", ".join(expected.column_names)
    with connect() as connection:
        connection.register("expected", expected)
        connection.register("found", found)
        for name, left, right in (("missing", "expected", "found"), ("unexpected", "found", "expected")):
            rows = f"SELECT {columns} FROM {left} EXCEPT ALL SELECT {columns} FROM {right}"
            connection.execute(f"CREATE TABLE {name} AS {rows}")
        missing, unexpected = (_count(connection, name) for name in ("missing", "unexpected"))
        described = tuple(_describe(connection, examples)) if missing or unexpected else ()
    return Comparison(expected.num_rows, found.num_rows, missing, unexpected, described)


def connect() -> duckdb.DuckDBPyConnection:
    """A DuckDB of this process, in memory, whose time zone is UTC."""
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def _count(connection: duckdb.DuckDBPyConnection, table: str) -> int:
    return connection.table(table).shape[0]


def _describe(connection: duckdb.DuckDBPyConnection, limit: int) -> Iterable[str]:
    key = ", ".join(tables.FLIGHT_KEY)
    connection.execute(
        f"CREATE TABLE shown AS SELECT {key} FROM (FROM missing UNION FROM unexpected)"
        f" GROUP BY ALL ORDER BY ALL LIMIT {limit}"
    )
    sides: list[dict[tuple[Any, ...], dict[str, Any]]] = []
    for table in ("missing", "unexpected"):
        rows = connection.sql(f"FROM {table} SEMI JOIN shown USING ({key})").to_arrow_table().to_pylist()
        sides.append({tuple(row[name] for name in tables.FLIGHT_KEY): row for row in rows})
    expected, found = sides
    for flight in sorted(expected | found):
        yield f"{' '.join(map(str, flight))}: {_difference(expected.get(flight), found.get(flight))}"


def _difference(expected: dict[str, Any] | None, found: dict[str, Any] | None) -> str:
    if expected is None:
        return "found, but not expected"
    if found is None:
        return "expected, but not found"
    wrong = [
        f"{name} should be {value!s}, is {found[name]!s}"
        for name, value in expected.items()
        if value != found[name]
    ]
    return ", ".join(wrong)
