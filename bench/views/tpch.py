"""TPC-H: its tables and queries as DuckDB's own extension makes them, in a catalog, and changes of them.

Changes keep to the values that a column has, so that joins and filters go on to find something: an update
gives a row the other columns of another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import duckdb
import duckdb_extension_tpch
import numpy as np
import pyarrow as pa

from upsert import Catalog, Table

KEYS: Final = {
    "region": ["r_regionkey"],
    "nation": ["n_nationkey"],
    "supplier": ["s_suppkey"],
    "part": ["p_partkey"],
    "partsupp": ["ps_partkey", "ps_suppkey"],
    "customer": ["c_custkey"],
    "orders": ["o_orderkey"],
    "lineitem": ["l_orderkey", "l_linenumber"],
}
"""The tables, and their primary keys."""

INDEXES: Final = {
    "nation": [["n_regionkey"]],
    "supplier": [["s_nationkey"]],
    "partsupp": [["ps_partkey"], ["ps_suppkey"]],
    "customer": [["c_nationkey"]],
    "orders": [["o_custkey"]],
    "lineitem": [["l_orderkey"], ["l_partkey"], ["l_suppkey"], ["l_partkey", "l_suppkey"]],
}
"""What their foreign keys look up."""

_KIND: Final = "_row_kind"


@contextmanager
def generator() -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to DuckDB that knows ``dbgen`` and ``tpch_queries``."""
    (extension,) = Path(duckdb_extension_tpch.__file__).parent.rglob("tpch.duckdb_extension")
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as db:
        db.execute(f"LOAD '{extension}'")
        yield db


def queries() -> dict[int, str]:
    """The text of each query by its number, without the order of all its rows, which a view does not have."""
    with generator() as db:
        found = dict(db.execute("SELECT query_nr, query FROM tpch_queries()").fetchall())
    return {number: text.strip().rstrip(";") for number, text in found.items()}


def generated(scale: float) -> dict[str, pa.Table]:
    """The rows of each table at a scale; 1 is a gigabyte."""
    with generator() as db:
        db.execute(f"CALL dbgen(sf={scale})")
        return {name: db.table(name).to_arrow_table() for name in KEYS}


def fill(catalog: Catalog, tables: dict[str, pa.Table], buckets: int = 2) -> None:
    """Create the tables with their keys and indexes, and write the rows."""
    for name, rows in tables.items():
        columns = [f"{field.name} {_sql_type(field)}" for field in rows.schema]
        key = f"PRIMARY KEY ({', '.join(KEYS[name])}) NOT ENFORCED"
        indexes = [f"INDEX ({', '.join(index)})" for index in INDEXES.get(name, [])]
        given = ", ".join([*columns, key, *indexes])
        catalog.sql(f"CREATE TABLE {name} ({given}) WITH ('bucket' = '{buckets}')")
        catalog.table(name).write(rows)


def _sql_type(field: pa.Field) -> str:
    if pa.types.is_decimal(field.type):
        return f"DECIMAL({field.type.precision}, {field.type.scale})"
    names = {pa.int32(): "INT", pa.int64(): "BIGINT", pa.string(): "STRING", pa.date32(): "DATE"}
    return names[field.type]


def change(catalog: Catalog, share: float, seed: int, names: Sequence[str] = tuple(KEYS)) -> int:
    """Update, delete and insert rows of some tables, a third each; the number of changed rows."""
    random = np.random.default_rng(seed)
    return sum(_change(catalog.table(name), KEYS[name], share, random) for name in names)


def _change(table: Table, key: Sequence[str], share: float, random: np.random.Generator) -> int:
    rows = table.snapshot().scan()
    count = max(1, int(rows.num_rows * share))
    picked = rows.take(random.choice(rows.num_rows, min(count, rows.num_rows), replace=False))
    updated, deleted, copied = (picked.take(pa.array(part)) for part in np.array_split(np.arange(count), 3))
    inserted = copied.set_column(0, rows.schema.field(0), _new_keys(rows.column(0), copied.num_rows))
    pieces = [(_shuffled(updated, key, random), "+U"), (deleted, "-D"), (inserted, "+I")]
    kinds = [pa.array([kind] * part.num_rows, pa.string()) for part, kind in pieces]
    changes = (part.append_column(_KIND, kind) for (part, _), kind in zip(pieces, kinds, strict=True))
    table.write(pa.concat_tables(changes))
    return count


def _new_keys(column: pa.ChunkedArray, count: int) -> pa.Array:
    first = int(column.to_numpy().max()) + 1
    return pa.array(range(first, first + count), column.type)


def _shuffled(rows: pa.Table, key: Sequence[str], random: np.random.Generator) -> pa.Table:
    others = rows.take(random.permutation(rows.num_rows))
    columns = [(rows if name in key else others).column(name) for name in rows.column_names]
    return pa.table(columns, schema=rows.schema)
