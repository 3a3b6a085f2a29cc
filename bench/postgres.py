"""Changes written into PostgreSQL by a stream, and by plain COPY: `python -m bench.postgres`.

A million rows are inserted, then a fifth of them is updated and another fifth is deleted. Beside the first,
the rows are copied into a table with the same key as CSV; beside the second, into a temporary one, from which
``INSERT … ON CONFLICT`` takes them. The server is one of this machine, which syncs nothing to the disk.
Printed, and kept in `bench/results/postgres.json`.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Final

import asyncpg
import pyarrow as pa
import pyarrow.csv as pc

import planner
from bench import RESULTS
from bench.session import untuned
from tests.local_postgres import LocalPostgres
from upsert import Catalog
from upsert.catalog.query_records import is_micro_batch

RESULT: Final = RESULTS / "postgres.json"
ROWS: Final = 1_000_000
REPEATS: Final = 3
_COLUMNS: Final = "id bigint PRIMARY KEY, customer bigint, amount double precision, note text"
_UPSERT: Final = """INSERT INTO plain SELECT * FROM given ON CONFLICT (id)
    DO UPDATE SET customer = excluded.customer, amount = excluded.amount, note = excluded.note"""


def rows(first: int, count: int, amount: float) -> pa.Table:
    """Rows of four columns."""
    ids = pa.array(range(first, first + count), pa.int64())
    given = pa.array([amount] * count)
    return pa.table({"id": ids, "customer": ids, "amount": given, "note": ids.cast(pa.string())})


def csv(table: pa.Table) -> io.BytesIO:
    """Rows as text, which is part of what a plain program does."""
    text = io.BytesIO()
    pc.write_csv(table, text, pc.WriteOptions(include_header=False))
    text.seek(0)
    return text


async def plain(dsn: str) -> dict[str, float]:
    """Seconds of a plain program for inserts and for updates."""
    connection = await asyncpg.connect(dsn)
    await connection.execute(f"DROP TABLE IF EXISTS plain; CREATE TABLE plain ({_COLUMNS})")
    given, changed = rows(0, ROWS, 1.0), rows(0, ROWS // 5, 2.0)
    began = time.perf_counter()
    await connection.copy_to_table("plain", source=csv(given), format="csv")
    inserted = time.perf_counter()
    async with connection.transaction():
        await connection.execute("CREATE TEMPORARY TABLE given (LIKE plain) ON COMMIT DROP")
        await connection.copy_to_table("given", source=csv(changed), format="csv")
        await connection.execute(_UPSERT)
    updated = time.perf_counter()
    await connection.close()
    return {"inserts": inserted - began, "updates": updated - inserted}


def stream(catalog: Catalog, folder: Path, server: LocalPostgres) -> dict[str, float]:
    """Seconds of the micro-batches of a streaming INSERT: all that Spark says each of them takes."""
    spark = untuned("postgres")
    server.run(f"DROP TABLE IF EXISTS sink; CREATE TABLE sink ({_COLUMNS})")
    catalog.sql(
        "CREATE TABLE orders (id BIGINT, customer BIGINT, amount DOUBLE, note STRING, "
        "PRIMARY KEY (id) NOT ENFORCED)"
    )
    catalog.sql(
        "CREATE TABLE sink (id BIGINT, customer BIGINT, amount DOUBLE, note STRING, "
        f"PRIMARY KEY (id) NOT ENFORCED) WITH ('connector' = 'postgres', 'url' = '{server.dsn}', "
        "'table-name' = 'sink')"
    )
    changes = catalog.read_changes(spark, "orders", max_rows_per_trigger=2 * ROWS)
    writer = catalog.write_changes(changes, "sink").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.start()
    took: dict[str, float] = {}
    orders, gone = catalog.table("orders"), rows(ROWS // 2, ROWS // 5, 1.0)
    for what, given in (
        ("inserts", rows(0, ROWS, 1.0)),
        ("updates", rows(0, ROWS // 5, 2.0)),
        ("deletions", gone.append_column("_row_kind", pa.array(["-D"] * len(gone)))),
    ):
        orders.write(given)
        query.processAllAvailable()
        spent = [one.durationMs["triggerExecution"] for one in query.recentProgress if is_micro_batch(one)]
        took[what] = sum(spent) / 1000 - sum(took.values())
    query.stop()
    catalog.sql("DROP TABLE sink")
    catalog.sql("DROP TABLE orders")
    return took


def main() -> None:
    """Measure, print and keep."""
    server = LocalPostgres()
    server.start()
    found: dict[str, dict[str, list[float]]] = {"stream": {}, "plain": {}}
    try:
        for _ in range(REPEATS):
            with tempfile.TemporaryDirectory(prefix="bench-postgres-") as folder:
                catalog = Catalog(Path(folder, "warehouse"), optimize=planner.optimize)
                ways = {
                    "stream": stream(catalog, Path(folder), server),
                    "plain": asyncio.run(plain(server.dsn)),
                }
            for way, took in ways.items():
                for what, seconds in took.items():
                    found[way].setdefault(what, []).append(seconds)
    finally:
        server.stop()
    untuned("postgres").stop()
    counts = {"inserts": ROWS, "updates": ROWS // 5, "deletions": ROWS // 5}
    rates = {
        way: {what: round(counts[what] / median(times)) for what, times in took.items()}
        for way, took in found.items()
    }
    for way, of_kinds in rates.items():
        print(way, {what: f"{rate:,} rows/s" for what, rate in of_kinds.items()})
    about = {"cpus": os.cpu_count(), "load_average": round(os.getloadavg()[0], 1)}
    RESULT.write_text(json.dumps({"about": about, "rows_per_s": rates}, indent=1) + "\n")


if __name__ == "__main__":
    main()
