"""Tables of shops and what they sell, random changes of them, and what DuckDB gives for a query of them."""

import random
from collections import Counter
from typing import Any

import duckdb
import pyarrow as pa

from upsert import Catalog

TABLES = """
    CREATE TABLE sales (id INT, shop INT, item STRING, n INT, price DECIMAL(9, 2),
                        PRIMARY KEY (id) NOT ENFORCED, INDEX (shop));
    CREATE TABLE shops (shop INT, city STRING, PRIMARY KEY (shop) NOT ENFORCED);
    CREATE TABLE closed (shop INT, since INT, INDEX (shop))"""


def made(catalog: Catalog) -> Catalog:
    """The catalog with the tables, and some rows in each."""
    for statement in TABLES.split(";"):
        catalog.sql(statement)
    catalog.table("sales").write(sold(range(20), random.Random(1)))
    catalog.table("shops").write(pa.table({"shop": int32([1, 2, 3]), "city": ["Ulm", "Ulm", None]}))
    catalog.table("closed").write(pa.table({"shop": int32([2, 2, 9]), "since": int32([1, 4, 0])}))
    return catalog


def sold(ids: range, random_: random.Random) -> pa.Table:
    rows = [
        {
            "id": id,
            "shop": random_.choice([1, 2, 3, 4, None]),
            "item": random_.choice(["pear", "fig", "", None, "🍐"]),
            "n": random_.choice([0, 1, 5, 9, 10]),
            "price": random_.choice([None, *map(pa_decimal, ("0.10", "2.50", "9999999.99"))]),
        }
        for id in ids
    ]
    types = [("id", pa.int32()), ("shop", pa.int32()), ("item", pa.string()), ("n", pa.int32())]
    return pa.Table.from_pylist(rows, pa.schema([*types, ("price", pa.decimal128(9, 2))]))


def pa_decimal(text: str) -> Any:
    return pa.scalar(text).cast(pa.decimal128(9, 2)).as_py()


def int32(values: list[int | None]) -> pa.Array:
    return pa.array(values, pa.int32())


def change(catalog: Catalog, seed: int) -> None:
    random_ = random.Random(seed)
    sales = catalog.table("sales")
    sales.write(sold(range(10 + seed, 24 + seed), random_))
    gone = sold(range(seed, 3 + seed), random_)
    sales.write(gone.append_column("_row_kind", pa.array(["-D"] * gone.num_rows)))
    shop, city = random_.choice([1, 4]), random_.choice(["Ulm", "Bonn"])
    catalog.table("shops").write(pa.table({"shop": int32([shop]), "city": [city]}))
    closed = random_.choice([[3], [None], [1, 1]])
    catalog.table("closed").write(pa.table({"shop": int32(closed), "since": int32([5] * len(closed))}))


def expected(catalog: Catalog, query: str) -> Counter[str]:
    with duckdb.connect() as db:
        for name in ("sales", "shops", "closed"):
            db.register(name, catalog.table(name).snapshot().scan())
        return counted(db.sql(query).to_arrow_table())


def counted(rows: pa.Table) -> Counter[str]:
    """Rows of any numbers as texts: engines give sums in other types."""
    values = [[number(value) for value in column.to_pylist()] for column in rows.columns]
    return Counter(map(repr, zip(*values, strict=True)))


def number(value: Any) -> Any:
    return float(value) if value is not None and not isinstance(value, str) else value


def rows_of(catalog: Catalog, name: str) -> Counter[str]:
    return counted(catalog.table(name).snapshot().scan())
