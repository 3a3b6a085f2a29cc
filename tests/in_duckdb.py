"""DuckDB as the oracle of queries over tables: one for a process, since making one takes 30 ms."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache

import duckdb
import pyarrow as pa


@cache
def _database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={"threads": 1})


@contextmanager
def duckdb_with(tables: Mapping[str, pa.Table]) -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB that knows these tables by their names, and no others."""
    database = _database()
    for name, rows in tables.items():
        database.register(name, rows)
    try:
        yield database
    finally:
        for name in tables:
            database.unregister(name)
