"""Tables of shops and what they sell, random changes of them, and what DuckDB gives for a query of them."""

import random
from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tests.helpers import of_kind
from tests.in_duckdb import duckdb_with
from upsert import Catalog

TABLES = """
    CREATE TABLE sales (id INT, shop INT, item STRING, n INT, price DECIMAL(9, 2),
                        PRIMARY KEY (id) NOT ENFORCED, INDEX (shop));
    CREATE TABLE shops (shop INT, city STRING, PRIMARY KEY (shop) NOT ENFORCED);
    CREATE TABLE closed (shop INT, since INT, INDEX (shop))"""

QUERIES = {
    "rollup": """SELECT city, item, sum(n) AS n, count(*) AS c FROM sales JOIN shops USING (shop)
        GROUP BY ROLLUP (city, item)""",
    "rank": "SELECT id, shop, rank() OVER (PARTITION BY shop ORDER BY price DESC, id) AS r FROM sales",
    "newest": """SELECT * FROM (SELECT id, item, row_number() OVER (PARTITION BY item ORDER BY id DESC) AS r
        FROM sales) q WHERE r = 1""",
    "top": "SELECT id, n * price AS worth FROM sales ORDER BY worth DESC, id LIMIT 5",
    "exists in an or": """SELECT id FROM sales s
        WHERE n > 8 OR EXISTS (SELECT 1 FROM closed c WHERE c.shop = s.shop)""",
    "not in": "SELECT shop, city FROM shops WHERE shop NOT IN (SELECT shop FROM closed)",
    "scalar": "SELECT id, n FROM sales WHERE n > (SELECT avg(n) FROM sales)",
    "correlated": "SELECT id FROM sales s WHERE n = (SELECT max(n) FROM sales x WHERE x.shop = s.shop)",
    "intersect": "SELECT shop FROM sales INTERSECT SELECT shop FROM closed",
    "except all": "SELECT shop FROM sales EXCEPT ALL SELECT shop FROM closed",
    "union": "SELECT shop, 1 AS one FROM sales UNION ALL SELECT shop, 2 FROM closed",
    "distinct": "SELECT count(DISTINCT shop) AS s, count(DISTINCT item) AS i, max(price) AS p FROM sales",
    "twice": """WITH t AS (SELECT shop, sum(n) AS n FROM sales GROUP BY shop)
        SELECT a.shop, b.shop AS less FROM t a JOIN t b ON a.n > b.n""",
    "full": "SELECT s.id, c.shop FROM sales s FULL JOIN closed c ON s.shop = c.shop AND s.n > c.since",
}
"""One for each kind of query."""


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
    sales.write(of_kind(gone, "-D"))
    sales.delete([("id", "=", 12 + seed)])
    shop, city = random_.choice([1, 4]), random_.choice(["Ulm", "Bonn"])
    catalog.table("shops").write(pa.table({"shop": int32([shop]), "city": [city]}))
    closed = random_.choice([[3], [None], [1, 1]])
    catalog.table("closed").write(pa.table({"shop": int32(closed), "since": int32([5] * len(closed))}))


def expected(catalog: Catalog, query: str) -> Counter[str]:
    names = ("sales", "shops", "closed")
    with duckdb_with({name: catalog.table(name).snapshot().scan() for name in names}) as db:
        return counted(db.sql(query).to_arrow_table())


def counted(rows: pa.Table) -> Counter[str]:
    """Rows of any numbers as texts: engines give sums in other types."""
    values = [[number(value) for value in column.to_pylist()] for column in rows.columns]
    return Counter(map(repr, zip(*values, strict=True)))


def number(value: Any) -> Any:
    return float(value) if isinstance(value, int | float | Decimal) else value


def rows_of(catalog: Catalog, name: str) -> Counter[str]:
    return counted(catalog.table(name).snapshot().scan())
