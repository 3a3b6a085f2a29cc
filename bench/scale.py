"""What grows with tables, snapshots and files, and what stays the same: `python -m bench.scale`.

Tables, snapshots and manifests are written by the store's own code; the data files that manifests name are
not there, for nothing here opens them. Each figure is taken in a process of its own, and is processor time,
which other processes of the machine do not change much. Results go to `bench/results/scale.json`.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final
from uuid import uuid4

import pyarrow as pa
import typer
from rich.console import Console
from rich.table import Table as Grid

from bench import REPOSITORY, RESULTS
from bench.manifests import SCHEMA, synthetic_entries
from deltajoin.observe.observer import Observer
from upsert import Catalog
from upsert.store import paths
from upsert.store.commit.change import Change
from upsert.store.commit.committer import Committer
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.predicate import parse_where
from upsert.store.retention import expiry
from upsert.store.retention.policy import Retention
from upsert.store.table import Table

_WINDOW: Final = 100
"""So many first and last steps have their medians compared."""
console: Final = Console()

Figures = dict[str, Any]


def main(
    tables: Annotated[int, typer.Option(help="tables of a catalog")] = 1_000,
    snapshots: Annotated[int, typer.Option(help="snapshots of a table")] = 100_000,
    files: Annotated[int, typer.Option(help="files of a table, 100 in each partition")] = 1_000_000,
    results: Annotated[Path, typer.Option(help="folder for the JSON file")] = RESULTS,
) -> None:
    """Measure a large catalog, a long history and a table of many files."""
    report: Figures = {
        "about": {
            "tables": tables,
            "snapshots": snapshots,
            "files": files,
            "cores": os.cpu_count(),
            "pyarrow": version("pyarrow"),
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
        }
    }
    with tempfile.TemporaryDirectory(prefix="bench-scale-") as folder:
        for what, count in (("make_tables", tables), ("make_snapshots", snapshots), ("make_files", files)):
            report |= in_process(what, folder, count)
        for what in ("list_tables", "open_history", "plan_all", "plan_one_partition", "commit_to_files"):
            report |= in_process(what, folder, 0)
    results.mkdir(parents=True, exist_ok=True)
    (results / "scale.json").write_text(json.dumps(report, indent=1) + "\n")
    grid = Grid("", "")
    for name, value in report.items():
        if name != "about":
            grid.add_row(name, f"{value:,}")
    console.print(grid)


def in_process(what: str, folder: str, count: int) -> Figures:
    """The figures of one measurement, taken by another process."""
    console.print(f"{what} …")
    command = [sys.executable, "-m", "bench.scale", what, folder, str(count)]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=REPOSITORY)
    figures: Figures = json.loads(found.stdout)
    return figures


def took_ms(action: Callable[[], object]) -> float:
    """Milliseconds of processor time."""
    began = time.process_time()
    action()
    return round(1000 * (time.process_time() - began), 2)


def first_and_last(name: str, steps: Iterator[float]) -> Figures:
    """Medians of the first steps and of the last ones."""
    found = list(steps)
    first, last = found[:_WINDOW], found[-_WINDOW:]
    return {
        f"{name}_first_ms": round(statistics.median(first), 2),
        f"{name}_last_ms": round(statistics.median(last), 2),
    }


def memory_mb() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def make_tables(folder: Path, count: int) -> Figures:
    """A catalog of so many tables."""
    catalog = Catalog(folder / "warehouse")

    def create(number: int) -> None:
        catalog.sql(f"CREATE TABLE t{number} (id BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED)")

    found = first_and_last("create_table", (took_ms(lambda: create(n)) for n in range(count)))  # noqa: B023
    catalog.table("t0").write(pa.table({"id": [1], "name": ["a"]}))
    return found


def list_tables(folder: Path, _: int) -> Figures:
    """SHOW TABLES, one of the tables, and what the web page of the warehouse reads: first and then again."""
    catalog, observer = Catalog(folder / "warehouse"), Observer(folder / "warehouse")
    catalog.sql("SHOW DATABASES")  # imports the parser
    catalog.table("t0").snapshot().scan()
    return {
        "show_tables_ms": took_ms(lambda: catalog.sql("SHOW TABLES")),
        "open_table_ms": took_ms(lambda: catalog.table("t1").snapshot()),
        "ui_first_look_ms": took_ms(lambda: observer.look(0)),
        "ui_next_look_ms": took_ms(lambda: observer.look(0)),
    }


def one_entry(table: Table) -> FileEntry:
    """What a manifest says of a file, which is staged and is there."""
    rows = pa.table({"day": pa.array([1], pa.int32()), "id": [1], "name": ["a"]})
    (found,) = table.stage(rows, order="rows").files
    return found


def make_snapshots(folder: Path, count: int) -> Figures:
    """A table with so many snapshots, each of which replaces the file of the one before.

    Each commit asks whether an expiry is due. None is, until no more than these may stay: then each expires
    the oldest one.
    """
    table = Table.create(folder / "snapshots", SCHEMA, {"bucket": "1", "write-only": "true"})
    committer, entry = Committer(table.published), one_entry(table)
    retention = Retention(min_states=2 * count)
    removed: tuple[FileEntry, ...] = ()

    def commit() -> None:
        nonlocal removed
        name = paths.data_file(entry.partition, 0, 0, uuid4().hex) + Path(entry.file).suffix
        added = replace(entry, file=name, base=committer.history.seen.id)
        done = committer.commit(lambda _: Change("overwrite", (added,), removed))
        removed = done.added
        expiry.after_commit(committer, retention)

    found = first_and_last("commit", (took_ms(commit) for _ in range(count)))
    retention = Retention(min_states=1, max_states=count)
    expiring = [took_ms(commit) for _ in range(_WINDOW)]
    return {
        **found,
        "commit_and_expiry_of_one_ms": round(statistics.median(expiring), 2),
        "snapshots_left": len(committer.history.listed_ids()),
        "commits_memory_mb": memory_mb(),
    }


def open_history(folder: Path, _: int) -> Figures:
    """The newest snapshot of a table with many, in a process that has seen none."""
    Catalog(folder / "warehouse").table("t0").snapshot().scan()  # imports what it needs
    return {"open_long_history_ms": took_ms(lambda: Table.open(folder / "snapshots").snapshot().files)}


def make_files(folder: Path, count: int) -> Figures:
    """A table of so many files, a hundred to a partition, by two commits."""
    table = Table.create(folder / "files", SCHEMA, {"bucket": "10", "write-only": "true"})
    entries = synthetic_entries(table, count, partition_files=100)
    half = count // 2
    Committer(table.published).commit(lambda _: Change("append", entries[:half]))
    Committer(table.published).commit(lambda _: Change("append", entries[half:]))
    manifests = [path.stat().st_size for path in (folder / "files" / "manifest").iterdir()]
    return {"manifest_mb": round(sum(manifests) / 1e6, 1)}


def plan_all(folder: Path, _: int) -> Figures:
    """All buckets of a table of many files."""
    return planned(folder, None, "all")


def plan_one_partition(folder: Path, _: int) -> Figures:
    """The buckets of one partition of it."""
    return planned(folder, [("day", "=", 7)], "one_partition")


def planned(folder: Path, where: Any, name: str) -> Figures:
    """Time and memory to learn which buckets a read needs, and to see the files of one of them."""
    Catalog(folder / "warehouse").table("t0").snapshot().scan()  # imports what it needs
    table = Table.open(folder / "files")
    found: list[int] = []

    def plan() -> None:
        snapshot = table.snapshot()
        buckets = snapshot.bucket_filters(parse_where(where, table.schema))
        assert snapshot.files.groups[next(iter(buckets))]
        found.append(len(buckets))

    return {
        f"plan_{name}_ms": took_ms(plan),
        f"plan_{name}_memory_mb": memory_mb(),
        f"plan_{name}_buckets": found[0],
    }


def commit_to_files(folder: Path, _: int) -> Figures:
    """Commits of a row to a table of many files, by a process that knows them."""
    table = Table.open(folder / "files")
    table.snapshot()

    def write(number: int, day: int) -> None:
        table.write(pa.table({"day": pa.array([day], pa.int32()), "id": [number], "name": ["a"]}))

    found = first_and_last(
        "commit_to_many_files",
        (took_ms(lambda: write(n, n % 7)) for n in range(2 * _WINDOW)),  # noqa: B023
    )
    found["commit_to_many_files_memory_mb"] = memory_mb()
    days = len(table.snapshot().files.buckets()) // table.options.bucket
    for number in range(_WINDOW):
        write(number, number * days // _WINDOW)  # opens all manifests
    again = [took_ms(lambda: write(n, n * days // _WINDOW)) for n in range(_WINDOW)]  # noqa: B023
    return {
        **found,
        "commit_to_any_partition_ms": round(statistics.median(again), 2),
        "commit_to_any_partition_memory_mb": memory_mb(),
    }


MEASUREMENTS: Final[dict[str, Callable[[Path, int], Figures]]] = {
    each.__name__: each
    for each in (
        make_tables,
        list_tables,
        make_snapshots,
        open_history,
        make_files,
        plan_all,
        plan_one_partition,
        commit_to_files,
    )
}


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in MEASUREMENTS:
        print(json.dumps(MEASUREMENTS[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))))
    else:
        typer.run(main)
