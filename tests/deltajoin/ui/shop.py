"""A warehouse with queries that have left records, made without Spark, and a time to look at it."""

from dataclasses import replace
from decimal import Decimal
from functools import reduce
from pathlib import Path

import pyarrow as pa

from upsert import Catalog
from upsert.catalog import query_records
from upsert.catalog.query_records import Decision, Input, MicroBatch, QueryRecord, Totals
from upsert.store.version import Version

JOIN, COPY, DEAD = (f"{digit * 8}-0000-4000-8000-{digit * 12}" for digit in "abc")

LOOKUPS = {"right_keys": 4, "right_rows": 3, "right_requests": 2, "right_lookup_us": 50_000, "right_hits": 6}
LOOKUPS |= {"right_misses": 4, "right_cached_keys": 4, "right_cached_bytes": 900, "left_waiting": 1}

DECISIONS = (
    Decision("orders ⋈ products on product = id\n  form: delta join (fused)", is_warning=False),
    Decision("orders ⋈ days on day = day\n  form: regular", is_warning=True),
)


def batch(id: int, began: int, rows: int, versions: dict[str, Version], *, took: int = 400) -> MicroBatch:
    phases = {"latestOffset": took // 8, "walCommit": took // 10, "addBatch": took // 2}
    return MicroBatch(
        id, began, rows, None, {**phases, "triggerExecution": took}, (Input("source", rows, versions),)
    )


def make(folder: Path | str) -> tuple[Catalog, int]:
    """Orders joined with products by one query, copied by another one that failed; a third one is silent.

    The other value is four seconds after the newest commit to orders, in milliseconds since 1970.
    """
    catalog = Catalog(folder)
    catalog.sql(
        "CREATE TABLE orders (id BIGINT, product BIGINT, amount DECIMAL(9, 2), "
        "PRIMARY KEY (id) NOT ENFORCED, INDEX (product)) WITH ('bucket' = '2')"
    )
    catalog.sql("CREATE TABLE products (id BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.sql("CREATE DATABASE reports")
    catalog.sql("CREATE TABLE reports.sales (id BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED)")
    orders, products = catalog.table("orders"), catalog.table("products")
    sales = catalog.table("reports.sales")
    for first in (0, 10, 20):
        ids = list(range(first, first + 10))
        amounts = pa.array([Decimal(i) for i in ids], pa.decimal128(9, 2))
        orders.write(pa.table({"id": ids, "product": [i % 3 for i in ids], "amount": amounts}))
    products.write(pa.table({"id": [0, 1, 2], "name": ["tea", "<milk>", "rum"]}))
    orders.tag("monday", 1)
    orders.hold("nightly", Version.complete(2))
    sales.write(pa.table({"id": [1, 2], "name": ["tea", "rum"]}), writer_id=JOIN, transaction=0)
    sales.write(pa.table({"id": [3], "name": ["tea"]}), writer_id=JOIN, transaction=1)
    now = orders.snapshot().info.time_ms + 4_000
    at = {orders.uuid: Version.complete(2), products.uuid: Version.complete(1)}
    joined = QueryRecord(JOIN, "run", "sales", "host:1", "running", now - 90_000, now - 2_000)
    batches = [batch(n, now - 60_000 + 5_000 * n, 10 + n, at, took=300 + 150 * n) for n in (0, 1)]
    batches[1] = replace(batches[1], lookups=LOOKUPS, state_rows=7, state_bytes=700)
    joined = replace(joined, decisions=DECISIONS)
    query_records.write(catalog.warehouse, _with(joined, tuple(batches)))
    copied = QueryRecord(COPY, "run", "copy", "host:2", "running", now - 90_000, now - 30_000)
    failed = _with(copied, (batch(0, now - 80_000, 3, {"0" * 32: Version.complete(4)}),)).terminated(
        "x\nupsert.errors.SchemaError: table 'copies': column 'b' is gone; add it", now - 30_000
    )
    query_records.write(catalog.warehouse, failed)
    dead = QueryRecord(DEAD, "run", None, "host:3", "running", now - 900_000, now - 600_000)
    query_records.write(catalog.warehouse, dead)
    return catalog, now


def _with(record: QueryRecord, batches: tuple[MicroBatch, ...]) -> QueryRecord:
    return replace(record, batches=batches, totals=reduce(Totals.plus, batches, Totals()))
