"""The join of `bench.join.systems` by Pathway, from CSV files: `python -m bench.join.pathway FOLDER STEPS`.

Runs by any Python in which Pathway is installed, and needs nothing else. The files of each step lie ready in
`FOLDER/ready` and are renamed into the folders that Pathway watches. A step is over when as many pairs have
been counted as it has events; Pathway makes each pair, and drops it then. Nothing is durable.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any

_COMMIT_MS = 300
"""How often Pathway takes what it has read. Of 20, 100 and 300 it is the fastest; the default is 1 500."""


def main(folder: Path, steps: int) -> None:
    """Feed the steps to a running join; prints one line of JSON for each."""
    import pathway as pw

    counted = threading.Condition()
    pairs = 0

    class Orders(pw.Schema):  # type: ignore[misc]
        order_id: int
        customer: int
        amount: float

    class Events(pw.Schema):  # type: ignore[misc]
        event_id: int
        order_id: int
        status: str

    for name in ("orders", "events"):
        (folder / name).mkdir()
    orders, events = (
        pw.io.csv.read(folder / name, schema=schema, autocommit_duration_ms=_COMMIT_MS)
        for name, schema in (("orders", Orders), ("events", Events))
    )
    joined = orders.join(events, orders.order_id == events.order_id).select(
        orders.order_id, orders.customer, orders.amount, events.event_id, events.status
    )

    def see(key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:  # noqa: ARG001
        nonlocal pairs
        with counted:
            if is_addition:
                pairs = row["pairs"]
                counted.notify_all()

    pw.io.null.write(joined)
    pw.io.subscribe(joined.reduce(pairs=pw.reducers.count()), on_change=see)
    threading.Thread(target=pw.run, kwargs={"monitoring_level": pw.MonitoringLevel.NONE}, daemon=True).start()
    for step in range(steps):
        wanted = json.loads((folder / "ready" / f"{step}.json").read_text())["pairs"]
        began = time.perf_counter()
        for name in ("orders", "events"):
            os.replace(folder / "ready" / f"{name}-{step}.csv", folder / name / f"{step}.csv")
        with counted:
            counted.wait_for(lambda: pairs >= wanted)  # noqa: B023
        # the first step warms the engine up
        if step:
            print(json.dumps({"step": step, "seconds": time.perf_counter() - began}), flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"version": pw.__version__, "peak_memory_bytes": peak}), flush=True)
    print(json.dumps({"done": True}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
