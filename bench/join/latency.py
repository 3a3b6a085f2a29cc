"""From the commit of a change to that of its join result: `python -m bench.join.latency FOLDER SECONDS`.

Ten times a second half a batch of changes is committed to *orders* (new ones and updates of earlier ones)
and half of it to *events*: ten thousand changes a second in all. A query joins them into a third table, one
micro-batch after the other. Each commit's time is in its snapshot, and which commits a micro-batch holds
is in Spark's offset log, so the latency of each commit is known afterwards.
"""

from __future__ import annotations

import bisect
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from bench.join.systems import SYSTEMS, session
from bench.orders_and_events import pairs_table, scattered, spec_of, step_rows, write_tables
from bench.processes import report
from deltajoin import read_join
from upsert.managed.frames import write_changes
from upsert.store.table import Table

CHANGES_A_SECOND: Final = 10_000
COMMITS_A_SECOND: Final = 10
FIRST_ROWS: Final = 200_000
WARM_UP_S: Final = 10


def changed(number: int) -> tuple[pa.Table, pa.Table]:
    """What the commits of one tenth of a second hold: half of the orders are new, half are changed ones."""
    rows = CHANGES_A_SECOND // COMMITS_A_SECOND // 2
    before = FIRST_ROWS + number * rows
    orders, events = step_rows(before, rows)
    earlier = np.random.default_rng(before).choice(before, rows // 2, replace=False)
    updated = orders.slice(0, rows // 2).set_column(0, "order_id", pa.array(scattered(earlier)))
    return pa.concat_tables([updated, orders.slice(rows // 2)]), events


class Writer(threading.Thread):
    """Commits changes at the given rate; the driver's own process has nothing else to do meanwhile."""

    def __init__(self, folder: Path, seconds: int) -> None:
        super().__init__(daemon=True)
        self._tables = Table.open(folder / "orders"), Table.open(folder / "events")
        self._seconds = seconds

    def run(self) -> None:
        """Write on time; a commit that is late is followed by the next one at once."""
        began = time.monotonic()
        for number in range(self._seconds * COMMITS_A_SECOND):
            time.sleep(max(0.0, began + number / COMMITS_A_SECOND - time.monotonic()))
            for table, rows in zip(self._tables, changed(number), strict=True):
                table.write(rows)


def measure(folder: Path, seconds: int) -> None:
    """Joins while the tables change; prints the latencies as one line of JSON."""
    write_tables(folder, *step_rows(0, FIRST_ROWS))
    spark = session(SYSTEMS["fused"])
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", "100000")  # all offsets are read in the end
    joined = read_join(spark, spec_of(folder))
    sink = pairs_table(folder)
    writer = write_changes(joined, sink.path).option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.start()
    query.processAllAvailable()
    changes = Writer(folder, WARM_UP_S + seconds)
    changes.start()
    changes.join()
    query.processAllAvailable()
    query.stop()
    found = latencies(folder, sink)[WARM_UP_S * COMMITS_A_SECOND * 2 :]
    report({"latencies_ms": found, "changes": len(found) * CHANGES_A_SECOND // COMMITS_A_SECOND // 2})


def latencies(folder: Path, sink: Table) -> list[int]:
    """Milliseconds of each commit to the tables but the first load, in the order of the commits."""
    done_ms = {max(info.writers.values()): info.time_ms for info in sink.history() if info.changes_rows}
    found: list[tuple[int, int]] = []
    for side, name in enumerate(("orders", "events")):
        reached = sorted((targets(folder, batch)[side], done) for batch, done in done_ms.items())
        versions = [version for version, _ in reached]
        for info in Table.open(folder / name).history():
            if info.changes_rows and info.id > 1:
                first = reached[bisect.bisect_left(versions, info.id)]
                found.append((info.time_ms, first[1] - info.time_ms))
    return [latency for _, latency in sorted(found)]


def targets(folder: Path, batch: int) -> list[int]:
    """The versions of both tables at the end of a micro-batch."""
    log = folder / "checkpoint" / "offsets" / str(batch)
    offset: dict[str, Any] = json.loads(log.read_text().splitlines()[-1])
    # in the middle of a step the rows of the target are not there yet, all of them
    return [v["target"] if v["cursor"] is None else v["base"] for v in offset["versions"]]


if __name__ == "__main__":
    measure(Path(sys.argv[1]), int(sys.argv[2]))
    report({"done": True})
