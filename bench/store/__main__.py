"""Lookups, writes and memory of the managed store: ``python -m bench.store``.

Prints tables and keeps the figures in ``bench/results/store.json``: medians, beside what a user would do
without the store: a DuckDB table or Parquet files joined by DuckDB, and pyarrow's dataset filter. Wall time
says little on a machine that is busy otherwise, so the lookups' own processor time is kept too.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import typer
from rich.console import Console
from rich.table import Table as Grid

from bench import REPOSITORY, RESULTS
from bench.manifests import time_manifests
from upsert.schema import TableSchema
from upsert.store.table import Table

MATCHES: Final = 10
COLUMNS: Final = {
    "id": pa.int64(),
    "code": pa.string(),
    "customer": pa.int64(),
    "basket": pa.int64(),
    "amount": pa.float64(),
    "note": pa.string(),
}
BY_ID: Final = TableSchema.of(COLUMNS, primary_key=["id"]).index("customer").index("basket")
BY_CODE: Final = TableSchema.of(COLUMNS, primary_key=["code"])
TARGETS: Final = {"integer key": 8.0, "string key": 15.0, "secondary index": 25.0}
console: Final = Console()


def main(
    rows: Annotated[int, typer.Option(help="rows of the table that is looked up in")] = 5_000_000,
    keys: Annotated[int, typer.Option(help="keys of one lookup")] = 10_000,
    repeats: Annotated[int, typer.Option(help="timed calls of each kind")] = 31,
    results: Annotated[Path, typer.Option(help="folder for the JSON file")] = RESULTS,
) -> None:
    """Time lookups of many keys, writes, and the memory of a process that looks up."""
    with tempfile.TemporaryDirectory(prefix="bench-store-") as folder:
        lookups = time_lookups(Path(folder), rows, keys, repeats)
        memory = worker_memory(Path(folder, "by-id-1"), rows, keys)
        manifests = time_manifests(Path(folder), rows // 50, rows // 500)
        writes = time_writes(Path(folder), max(1, rows * 2 // 5), max(1, rows // 25))
    report = {"about": about(rows, keys, repeats), "lookup": lookups, "write": writes, "memory": memory}
    report["manifests"] = manifests
    results.mkdir(parents=True, exist_ok=True)
    (results / "store.json").write_text(json.dumps(report, indent=1) + "\n")
    console.print(lookup_grid(lookups, rows, keys))
    console.print(figures("write", writes))
    console.print(figures("many files, many commits", manifests))
    console.print(figures("memory of a process that looks up", memory))


def about(rows: int, keys: int, repeats: int) -> dict[str, Any]:
    """What was measured, on what."""
    libraries = {name: version(name) for name in ("pyarrow", "numpy", "duckdb")}
    return {
        "rows": rows,
        "keys": keys,
        "repeats": repeats,
        "cpus": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        **libraries,
    }


def sample(ids: np.ndarray[Any, np.dtype[np.int64]], rows: int) -> pa.Table:
    """Rows of these ids: each id one code and one customer, ten ids a basket."""
    text = pa.array(ids).cast(pa.string())
    return pa.table(
        {
            "id": ids,
            "code": pc.binary_join_element_wise("order", text, "-"),
            "customer": (ids * 7_919) % rows if rows % 7_919 else ids,
            "basket": ids % (rows // MATCHES),
            "amount": ids * 0.01,
            "note": pc.binary_join_element_wise("note of", text, " "),
        },
        schema=pa.schema(COLUMNS),
    )


def time_lookups(folder: Path, rows: int, keys: int, repeats: int) -> list[dict[str, Any]]:
    """Each kind of lookup in a table of one run a bucket and of five, and the same by other means."""
    rows -= rows % MATCHES
    order = np.random.default_rng(0).permutation(rows)
    probes = order[:keys]
    found = sample(probes, rows)
    kinds = [
        ("integer key", BY_ID, "id", found.select(["id"]), keys),
        ("string key", BY_CODE, "code", found.select(["code"]), keys),
        ("secondary index", BY_ID, "customer", found.select(["customer"]), keys),
        (
            f"secondary index, {MATCHES} matches",
            BY_ID,
            "basket",
            pa.table({"basket": np.arange(min(keys, rows // MATCHES))}),
            min(keys, rows // MATCHES) * MATCHES,
        ),
    ]
    tables = {
        (schema, runs): build(folder / f"by-{schema.primary_key[0]}-{runs}", schema, order, runs)
        for schema in (BY_ID, BY_CODE)
        for runs in (1, 5)
    }
    results = []
    for name, schema, column, probe, expected in kinds:
        result: dict[str, Any] = {"lookup": name, "column": column, "rows_found": expected}
        for runs in (1, 5):
            snapshot = tables[schema, runs].snapshot()
            look_up = partial(snapshot.lookup, [column], probe)
            wall, processor = median_ms(look_up, expected, repeats)
            result |= {f"runs_{runs}_ms": wall, f"runs_{runs}_cpu_ms": processor}
        result["target_ms"] = TARGETS.get(name)
        results.append(result)
    others(folder, sample(order, rows), kinds, results, max(3, repeats // 6))
    return results


def build(path: Path, schema: TableSchema, order: np.ndarray[Any, np.dtype[np.int64]], runs: int) -> Table:
    """A table of two buckets with the rows in one run each, or in several that overlap by a tenth."""
    table = Table.create(path, schema, {"bucket": "2", "write-only": "true"})
    length = -(-len(order) // runs)
    for start in range(0, len(order), length):
        fresh = order[start : start + length]
        updated = order[:start][:: max(1, 10 * start // length)] if start else order[:0]
        table.write(sample(np.concatenate([fresh, updated]), len(order)))
    return table


def others(
    folder: Path, data: pa.Table, kinds: list[Any], results: list[dict[str, Any]], repeats: int
) -> None:
    """The same lookups by DuckDB and pyarrow, on two threads, added to the results with their ratios."""
    file = folder / "rows.parquet"
    pq.write_table(data, file)
    connection = duckdb.connect(str(folder / "rows.duckdb"))
    connection.execute("SET threads = 2")
    connection.execute("CREATE TABLE stored AS SELECT * FROM data")
    dataset = ds.dataset(file)
    for (_, _, column, probe, expected), result in zip(kinds, results, strict=True):
        connection.register("probe", probe)
        ways: dict[str, Callable[[], pa.Table]] = {
            "duckdb_table": partial(joined, connection, "stored", column),
            "duckdb_parquet": partial(joined, connection, f"'{file}'", column),
            "pyarrow_dataset": partial(dataset.to_table, filter=pc.field(column).isin(probe[column])),
        }
        for name, way in ways.items():
            result[f"{name}_ms"], _ = median_ms(way, expected, repeats)
            result[f"{name}_ratio"] = round(result[f"{name}_ms"] / result["runs_1_ms"], 1)
    connection.close()


def joined(connection: duckdb.DuckDBPyConnection, stored: str, column: str) -> pa.Table:
    """The stored rows whose column is among those of the registered probe."""
    return connection.sql(f"SELECT s.* FROM {stored} s JOIN probe USING ({column})").to_arrow_table()


def median_ms(look_up: Callable[[], pa.Table], expected: int, repeats: int) -> tuple[float, float]:
    """Median milliseconds of a call, warm, and of its processor time; it must find the expected rows."""
    wall, processor = [], []
    for attempt in range(repeats + 2):
        start, used = time.perf_counter(), time.thread_time()
        found = look_up()
        if attempt >= 2:
            wall.append(time.perf_counter() - start)
            processor.append(time.thread_time() - used)
        if found.num_rows != expected:
            raise AssertionError(f"the lookup must find {expected} rows, got {found.num_rows}")
    return round(statistics.median(wall) * 1000, 2), round(statistics.median(processor) * 1000, 2)


def time_writes(folder: Path, rows: int, batch: int) -> dict[str, Any]:
    """Upserts into a table of two buckets, half of them new keys; compactions take place as they fall due."""
    rng = np.random.default_rng(1)
    table = Table.create(folder / "written", BY_ID, {"bucket": "2"})
    rows -= rows % MATCHES
    table.write(sample(np.arange(rows), rows))
    wall, processor = [], []
    for number in range(12):
        fresh = np.arange(batch // 2) + rows + number * (batch // 2)
        ids = rng.permutation(np.concatenate([rng.choice(rows, batch - len(fresh), replace=False), fresh]))
        upserts = sample(ids, rows)
        start, used = time.perf_counter(), time.thread_time()
        table.write(upserts)
        wall.append(time.perf_counter() - start)
        processor.append(time.thread_time() - used)
    return {
        "rows_in_table": rows,
        "upserts_a_write": batch,
        "median_s": round(statistics.median(wall), 3),
        "median_cpu_s": round(statistics.median(processor), 3),
        "slowest_s": round(max(wall), 3),
        "rows_per_s": round(batch / statistics.median(wall)),
        "target_rows_per_s": 250_000,
    }


def worker_memory(path: Path, rows: int, keys: int) -> dict[str, Any]:
    """Memory of a fresh process after lookups of few keys, of many, and of many different ones."""
    table = sum(file.stat().st_size for file in path.rglob("*.arrow"))
    result: dict[str, Any] = {"table_mb": round(table / 2**20)}
    few = max(1, keys // 100)
    for count, different in ((few, 1), (keys, 1), (keys, 20)):
        name = f"{count}_keys" if different == 1 else f"{different}_times_{count}_keys"
        arguments = [str(path), str(rows), str(count), str(different)]
        command = [sys.executable, "-m", "bench.store.worker", *arguments]
        output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=REPOSITORY).stdout
        result |= {f"{name}_{what}": value for what, value in json.loads(output).items()}
    return result


def lookup_grid(results: list[dict[str, Any]], rows: int, keys: int) -> Grid:
    """The lookups as a table for people."""
    grid = Grid(title=f"lookup of {keys:,} keys in {rows:,} rows, 2 buckets, warm: median ms")
    for heading in ("by", "target", "1 run", "5 runs", "DuckDB table", "DuckDB Parquet", "pyarrow dataset"):
        grid.add_column(heading, justify="left" if heading == "by" else "right")
    for r in results:
        beside = [
            f"{r[f'{name}_ms']:.0f} ({r[f'{name}_ratio']:.0f}×)"
            for name in ("duckdb_table", "duckdb_parquet", "pyarrow_dataset")
        ]
        target = f"≤ {r['target_ms']:.0f}" if r["target_ms"] else ""
        grid.add_row(r["lookup"], target, f"{r['runs_1_ms']:.1f}", f"{r['runs_5_ms']:.1f}", *beside)
    return grid


def figures(title: str, values: dict[str, Any]) -> Grid:
    """Named figures as a table for people."""
    grid = Grid("", "", title=title, show_header=False)
    for name, value in values.items():
        grid.add_row(name.replace("_", " "), f"{value:,}")
    return grid


if __name__ == "__main__":
    typer.run(main)
