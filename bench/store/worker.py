"""A process that only looks up, to see what memory that takes: started by ``bench.store``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

from upsert.store.table import Table


def memory_mb() -> dict[str, int]:
    """Resident memory of this process: its own, and pages of mapped files.

    Those are shared between processes, and the kernel drops them when it needs room. It also maps the 15
    neighbours of a page that is touched, if they are in its cache.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith("Rss")}
    return {"own_mb": sizes["RssAnon"] // 1024, "mapped_mb": sizes["RssFile"] // 1024}


def main(path: str, rows: int, keys: int, different: int) -> None:
    """Look twenty times for ``keys`` keys, in as many different sets as asked for, and print the memory."""
    snapshot = Table.open(path).snapshot()
    before = memory_mb()
    sets = [np.random.default_rng(seed).choice(rows, keys) for seed in range(different)]
    for attempt in range(20):
        snapshot.lookup(["id"], pa.table({"id": sets[attempt % different]}))
    after = memory_mb()
    print(json.dumps({**after, "mapped_before_mb": before["mapped_mb"]}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
