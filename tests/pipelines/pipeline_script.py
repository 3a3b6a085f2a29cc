"""A driver that keeps an upsert topic up to date from a topic of Debezium changes, for tests that kill it.

`python pipeline_script.py WAREHOUSE CHECKPOINT` goes on until the process is killed. For each micro-batch
that it has finished it prints how many changes have been written so far, and the process ids of Spark's
Python workers, which a test kills too.
"""

import json
import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress

import planner
import upsert


def python_workers() -> list[int]:
    """Processes of this driver that run tasks: children of a daemon that its JVM started."""
    processes = {int(stat.parent.name): stat for stat in Path("/proc").glob("[0-9]*/stat")}
    parents = {pid: _parent(stat) for pid, stat in processes.items()}
    daemons = {pid for pid in parents if b"pyspark.daemon" in _command(pid) and _is_ours(pid, parents)}
    return [pid for pid in daemons if parents[pid] in daemons]


def _parent(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has ended since
        return 0


def _is_ours(pid: int, parents: dict[int, int]) -> bool:
    while pid > 1 and pid != os.getpid():
        pid = parents.get(pid, 0)
    return pid == os.getpid()


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def written(progress: StreamingQueryProgress) -> int:
    """How many changes all micro-batches together have taken."""
    (source,) = progress.sources
    (topic,) = json.loads(source.endOffset)["topics"].values()
    return sum(topic["partitions"].values())


def main(warehouse: str, checkpoint: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    catalog = upsert.Catalog(warehouse, optimize=planner.optimize)
    changes = catalog.read_changes(spark, "changes")
    kept = changes.where("level <> 'none'").selectExpr("id", "upper(name) AS name", "level")
    query = catalog.write_changes(kept, "kept").option("checkpointLocation", checkpoint).start()
    seen = -1
    while query.isActive:
        progress = query.lastProgress
        if progress is not None and progress.batchId > seen:
            seen = progress.batchId
            print("finished", written(progress), *python_workers(), flush=True)
        time.sleep(0.05)
    if failure := query.exception():
        print("failed", str(failure)[:2000].replace("\n", " | "), flush=True)
        os._exit(3)


if __name__ == "__main__":
    main(*sys.argv[1:])
