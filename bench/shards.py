"""CPU time of the tasks that share one join step, by how many they are: `python -m bench.shards`.

Orders and events of orders, 3 million rows each in 8 buckets; a step changes 300 000 rows of each, or 1.5
million, half of them new ones. Orders are bucketed by their key, which is the join key. Events are bucketed
by a key of their own, or by the join key too. All tasks of the step run one after the other in this process,
without Spark, in two forms: *fused*, a task for each shard, and *shuffled*, a task for each bucket that cuts
its changes, and a task for each shard that joins them. What the first fused task of a process finds of all
shards, the next ones use; *fused, a process each* drops it before each task, as if every process had one.
*Auto* is the form and the number of tasks that the cost decides for, of at most so many shards. Times are
those of the processor, each the least of several runs. Tables are printed and kept in
`bench/results/shards.json`.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import typer
from rich.console import Console
from rich.table import Table as Grid

from bench import RESULTS
from bench.orders_and_events import EVENTS, ORDERS, STATUSES, scattered
from deltajoin import DeltaJoinSpec, Side
from deltajoin.spark.shuffled import join_blobs
from deltajoin.spark.source import ChangesReader, JoiningReader, SourceOptions
from deltajoin.spark.tables import JoinedTables, output_type
from upsert.managed.stepping import Offset
from upsert.schema import TableSchema
from upsert.store.read.shares import forget_shares
from upsert.store.table import Table
from upsert.store.version import Version

SHARDS: Final = (1, 8, 16, 64)
CHANGED: Final = [600_000, 3_000_000]
BUCKETS: Final = 8

LAYOUTS: Final = {
    "events bucketed by their own key": TableSchema.of(EVENTS, primary_key=["event_id"]).index("order_id"),
    "both tables bucketed by the join key": TableSchema.of(EVENTS, primary_key=["order_id", "event_id"]),
}

console: Final = Console(width=120)


@dataclass(frozen=True)
class Took:
    """Processor seconds of the tasks that read changes for others, and of those that join; and the rows."""

    reading: tuple[float, ...]
    joining: tuple[float, ...]
    rows: int

    @property
    def all(self) -> float:
        """All tasks together."""
        return sum(self.reading) + sum(self.joining)

    @property
    def largest(self) -> float:
        """The task that took longest."""
        return max(*self.reading, *self.joining, 0.0)


@dataclass(frozen=True)
class JoinStep:
    """A step of a join of two tables in a folder."""

    spec: DeltaJoinSpec
    start: Offset
    end: Offset

    def fused(self, shards: int, *, in_own_process: bool = False) -> Took:
        """Each task reads, of all changes, those of its shard, and joins them."""
        spec = replace(self.spec, shards=shards)
        reader = JoiningReader(SourceOptions(spec), output_type(JoinedTables.open(spec)), task_rows=1)
        joining, rows = [], 0
        forget_shares()  # a step is read once
        for part in reader.partitions(self.start, self.end):
            if in_own_process:
                forget_shares()
            began = time.process_time()
            rows += sum(batch.num_rows for batch in reader.read(part))
            joining.append(time.process_time() - began)
        return Took((), tuple(joining), rows)

    def auto(self, shards: int) -> Took:
        """The form that is cheaper, with as many tasks as the changes are worth."""
        spec = replace(self.spec, shards=shards)
        tables = JoinedTables.open(spec)
        parts = JoiningReader(SourceOptions(spec), output_type(tables)).partitions(self.start, self.end)
        tasks = len(parts)
        is_shuffled = tasks > 1 and tables.cost(parts[0].step, tasks).is_shuffled
        return self.shuffled(tasks) if is_shuffled else self.fused(tasks)

    def shuffled(self, shards: int) -> Took:
        """Tasks cut the changes of a bucket each; others join what all of them have cut for a shard."""
        spec = replace(self.spec, shards=shards)
        reader = ChangesReader(SourceOptions(spec, gives_joined=False))
        reading, joining, rows = [], [], 0
        blobs: dict[int, list[pa.Buffer]] = defaultdict(list)
        for part in reader.partitions(self.start, self.end):
            began = time.process_time()
            for batch in reader.read(part):
                for shard, blob in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
                    blobs[shard].append(blob.as_buffer())
            reading.append(time.process_time() - began)
        for shard, own in blobs.items():
            began = time.process_time()
            rows += sum(batch.num_rows for batch in join_blobs(spec, shard, own))
            joining.append(time.process_time() - began)
        return Took(tuple(reading), tuple(joining), rows)


def orders(numbers: npt.NDArray[np.int64], seed: int) -> pa.Table:
    """Orders with these numbers."""
    random = np.random.default_rng(seed)
    columns = [scattered(numbers), random.integers(0, 100_000, len(numbers)), random.random(len(numbers))]
    return pa.table([pa.array(column) for column in columns], schema=ORDERS)


def events(numbers: npt.NDArray[np.int64], seed: int, of: int) -> pa.Table:
    """Events with these numbers, of as many orders; those of a number are always of the same one."""
    random = np.random.default_rng(seed)
    order = scattered(numbers * 7919 % of)
    columns = [scattered(numbers), order, STATUSES[random.integers(0, len(STATUSES), len(numbers))]]
    return pa.table([pa.array(column) for column in columns], schema=EVENTS)


def made(folder: Path, of_events: TableSchema, rows: int, changed: int) -> JoinStep:
    """Two tables of so many rows each, and a step that changes so many of both together."""
    options = {"bucket": str(BUCKETS), "write-only": "true"}
    by_order = {"bucket-key": "order_id"} if "order_id" in of_events.primary_key else {}
    one = Table.create(folder / "orders", TableSchema.of(ORDERS, primary_key=["order_id"]), options)
    other = Table.create(folder / "events", of_events, {**options, **by_order})
    one.write(orders(np.arange(rows), 1))
    other.write(events(np.arange(rows), 2, rows))
    for seed, (table, make) in enumerate(((one, orders), (other, lambda ids, seed: events(ids, seed, rows)))):
        old = np.random.default_rng(seed).choice(rows, changed // 4, replace=False)
        table.write(make(np.concatenate([old, np.arange(rows, rows + changed // 4)]), 3 + seed))
    sides = [
        Side(table.path, tuple(schema.names), ("order_id",))
        for table, schema in ((one, ORDERS), (other, EVENTS))
    ]
    spec = DeltaJoinSpec.of("inner", *sides, shards=1)
    reader = ChangesReader(SourceOptions(spec, gives_joined=False))
    opened = reader.opened()
    start, end = (reader.offset_at(opened, (Version.complete(id),) * 2) for id in (1, 2))
    return JoinStep(spec, start, end)


def measured(take: Callable[[int], Took], shards: int, repeats: int) -> dict[str, float]:
    """The least times of several runs."""
    runs = [take(shards) for _ in range(repeats)]
    best = min(runs, key=lambda run: run.all)
    return {
        "shards": shards,
        "tasks": len(best.reading) + len(best.joining),
        "all_s": round(best.all, 3),
        "reading_s": round(sum(best.reading), 3),
        "largest_s": round(min(run.largest for run in runs), 3),
        "rows": best.rows,
    }


def of_layout(folder: Path, schema: TableSchema, rows: int, changed: int, repeats: int) -> dict[str, Any]:
    """What both forms take, by the number of shards."""
    step = made(folder, schema, rows, changed)
    step.fused(1)  # opens the files
    forms: dict[str, Callable[[int], Took]] = {
        "fused": step.fused,
        "fused, a process each": partial(step.fused, in_own_process=True),
        "shuffled": step.shuffled,
        "auto": step.auto,
    }
    return {name: [measured(take, shards, repeats) for shards in SHARDS] for name, take in forms.items()}


def main(
    rows: Annotated[int, typer.Option(help="rows of each table")] = 3_000_000,
    changed: Annotated[list[int], typer.Option(help="rows that a step changes, of both tables")] = CHANGED,
    repeats: Annotated[int, typer.Option(help="runs of each number of shards")] = 3,
    results: Annotated[Path, typer.Option(help="folder for the JSON")] = RESULTS,
) -> None:
    """Measure the tasks of one step in both forms, with tables of both layouts."""
    about = {"cpus": os.cpu_count(), "rows": rows, "buckets": BUCKETS}
    steps = []
    for count in changed:
        for name, schema in LAYOUTS.items():
            with tempfile.TemporaryDirectory(prefix="bench-shards-", ignore_cleanup_errors=True) as folder:
                forms = of_layout(Path(folder), schema, rows, count, repeats)
            steps.append({"changed": count, "layout": name, **forms})
            console.print(grid(f"{count:,} changed rows, {name}", forms))
    report = {"about": about | {"load_average": round(os.getloadavg()[0], 1)}, "steps": steps}
    results.mkdir(parents=True, exist_ok=True)
    (results / "shards.json").write_text(json.dumps(report, indent=1) + "\n")


def grid(title: str, forms: dict[str, Any]) -> Grid:
    """A line for each form and number of shards."""
    found = Grid("form", "shards", "tasks", "all, s", "to fused, 1 shard", "largest, s", title=title)
    for line in lines(forms):
        found.add_row(*line)
    return found


def lines(forms: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """The cells of the lines."""
    alone = forms["fused"][0]["all_s"]
    for form, runs in forms.items():
        for run in runs:
            ratio = f"{run['all_s'] / alone:.2f}"
            yield (
                form,
                str(run["shards"]),
                str(run["tasks"]),
                f"{run['all_s']:.2f}",
                ratio,
                f"{run['largest_s']:.3f}",
            )


if __name__ == "__main__":
    typer.run(main)
