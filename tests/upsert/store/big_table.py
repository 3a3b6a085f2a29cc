"""Writes and compacts one bucket of many rows, and prints the memory that took: a process of its own."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert.schema import TableSchema
from upsert.store import Table
from upsert.store.commit import staging

COLUMNS = {"id": pa.int64(), "code": pa.string(), "amount": pa.float64(), "note": pa.string()}
KEYS = {"integer": ["id"], "text": ["code", "id"], "none": []}
BATCH = 50_000


def own_memory_mb() -> int:
    """Resident memory without pages of mapped files, which the kernel takes back when it needs them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) >> 10


class Peak:
    """The most memory that the process had since it was asked last; looked at every few milliseconds."""

    def __init__(self) -> None:
        self.seen = own_memory_mb()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.seen = max(self.seen, own_memory_mb())
            time.sleep(0.005)

    def of(self, action: Callable[[], object]) -> int:
        self.seen = own_memory_mb()
        action()
        return self.seen


def batches(rows: int, step: int, seed: int) -> Iterator[pa.RecordBatch]:
    """Every ``step``-th id below ``rows``, in no order of any key."""
    count = rows // step
    for start in range(0, count, BATCH):
        numbers = np.arange(start, min(start + BATCH, count))
        ids = ((numbers * 7_368_787 + seed) % count) * step
        texts = pa.array(ids).cast(pa.string())
        columns = [
            pa.array(ids),
            pc.binary_join_element_wise("order", pc.utf8_reverse(texts), "-"),
            pa.array(ids * 0.5 + seed),
            pc.binary_join_element_wise("note of", texts, " "),
        ]
        yield pa.record_batch(columns, schema=pa.schema(COLUMNS))


def main(path: str, rows: int, key: str, mb: int, format: str) -> dict[str, Any]:
    """Write half as many rows again, and fold some more, then compact; ``mb`` is what is worked on at a time.

    0 leaves that as it is.
    """
    options = {"write-only": "true", "file.format": format}
    if mb:
        staging.PIECE_BYTES = mb << 20
        options["target-file-size"] = f"{mb} mb"
    table = Table.create(path, TableSchema.of(COLUMNS, primary_key=KEYS[key]), options)
    peak, before = Peak(), own_memory_mb()

    def write(step: int, seed: int) -> None:
        table.write(pa.RecordBatchReader.from_batches(pa.schema(COLUMNS), batches(rows, step, seed)))

    def write_raw() -> None:
        tasks = [pa.RecordBatchReader.from_batches(pa.schema(COLUMNS), batches(rows, 4, 2)) for _ in range(2)]
        table.commit([table.stage_raw(task) for task in tasks])

    started = time.perf_counter()
    return {
        "before": before,
        "write": peak.of(lambda: write(1, 0)),
        "write_more": peak.of(lambda: write(2, 1)),
        "fold_raw": peak.of(write_raw),
        "compact": peak.of(table.compact),
        "seconds": round(time.perf_counter() - started, 1),
        "rows": sum(entry.rows for entry in table.snapshot().files.entries),
        "files": len(table.snapshot().files.entries),
        "runs": [len(runs) for runs in table.snapshot().files.groups.values()],
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5])))
