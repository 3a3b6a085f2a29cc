"""Rows that say when their commit began, committed on time by another process, and who sees them arrive."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from upsert.schema import TableSchema
from upsert.store.table import Table

KEYS: Final = 100_000
ROWS_A_COMMIT: Final = 500
SCHEMA: Final = TableSchema.of(
    {"id": pa.int64(), "commit": pa.int64(), "sent_us": pa.int64(), "amount": pa.float64()},
    primary_key=["id"],
)


def changed(ids: Any, commit: int) -> pa.Table:
    """Rows of one commit, which say when it began."""
    return pa.table(
        {
            "id": ids,
            "commit": np.full(len(ids), commit),
            "sent_us": np.full(len(ids), time.time_ns() // 1000),
            "amount": ids * 0.25,
        }
    )


@dataclass(frozen=True)
class Writing:
    """What is committed while a reader is measured; the numbers of the commits begin at 1."""

    table: Table
    seconds: int
    commits_a_second: int

    @property
    def warm_up(self) -> int:
        """Commits that are not counted."""
        return 3 * self.commits_a_second

    @property
    def commits(self) -> int:
        """How many there are in all."""
        return self.warm_up + self.seconds * self.commits_a_second

    def start(self) -> Any:
        """Commit in a process of its own; the last thing that it sends is how long each commit took."""
        here, there = multiprocessing.get_context("spawn").Pipe(duplex=False)
        arguments = self.table.path, self.commits, self.commits_a_second, there
        multiprocessing.get_context("spawn").Process(target=write_on_time, args=arguments).start()
        return here


def write_on_time(path: str, commits: int, commits_a_second: int, done: Any) -> None:
    """Commit at an even pace; one that is late is followed by the next at once."""
    table, random = Table.open(path), np.random.default_rng(commits)
    took: list[float] = []
    began = time.monotonic()
    for number in range(1, commits + 1):
        time.sleep(max(0.0, began + number / commits_a_second - time.monotonic()))
        rows = changed(random.choice(KEYS, ROWS_A_COMMIT, replace=False), number)
        at = time.monotonic()
        table.write(rows)
        took.append((time.monotonic() - at) * 1000)
    done.send(took)


class Seen:
    """When the rows of each commit arrived; called by whoever has them."""

    def __init__(self, commits: int) -> None:
        self._commits = commits
        self._waits_ms: dict[int, float] = {}
        self._rows: dict[int, int] = {}
        self.all = threading.Event()

    def __call__(self, rows: pa.Table) -> None:
        """Take rows that have just arrived, new ones of changes."""
        now_us = time.time_ns() // 1000
        found = rows.group_by("commit").aggregate([("sent_us", "max"), ("id", "count")])
        for commit, sent_us, count in zip(*(column.to_pylist() for column in found.columns), strict=True):
            self._waits_ms[commit] = (now_us - sent_us) / 1000
            self._rows[commit] = self._rows.get(commit, 0) + count
        if self._rows.get(self._commits) == ROWS_A_COMMIT:
            self.all.set()

    def waits_ms(self, warm_up: int) -> list[float]:
        """Milliseconds from the beginning of each commit to its last row."""
        return [self._waits_ms[number] for number in range(warm_up + 1, self._commits + 1)]


def followed(writing: Writing, start: Callable[[Seen], Callable[[], None]]) -> dict[str, Any]:
    """The latencies of one reader. ``start`` begins it at the present state, and gives what ends it."""
    seen = Seen(writing.commits)
    stop = start(seen)
    try:
        pipe = writing.start()
        took: list[float] = pipe.recv()
        if not seen.all.wait(120):
            raise SystemExit("the rows of the last commit have not arrived for two minutes")
    finally:
        stop()
    waits = seen.waits_ms(writing.warm_up)
    return {
        "latency_ms": percentiles(waits),
        "commit_ms": percentiles(took[writing.warm_up :]),
        "all_ms": waits,
    }


def percentiles(values: list[float]) -> dict[str, float]:
    """Median, 99th percentile and maximum."""
    p50, p99 = np.percentile(values, [50, 99])
    return {"p50": round(float(p50), 1), "p99": round(float(p99), 1), "max": round(max(values), 1)}
