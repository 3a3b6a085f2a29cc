"""Run as a script: what a stream of two tables' join gives, and what its Python processes took of memory.

    python memory_script.py ORDERS PRODUCTS CHECKPOINT MEMORY

It joins all that is there and prints one JSON object: of each micro-batch the number of its rows and the sum
of their hashes, the same of a batch join of both tables, and the largest peak of a Python worker in bytes.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import planner
from upsert.managed.frames import read, read_changes


def peaks() -> Iterator[int]:
    """Peak memory in bytes of the Python workers below the JVM of this process, as Linux tells."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            told = dict(line.split(":\t", 1) for line in (folder / "status").read_text().splitlines())
        except OSError:  # it has ended
            continue
        parents[int(told["Pid"])] = int(told["PPid"]), told["Name"], told.get("VmHWM", "0 kB")
    for parent, name, peak in parents.values():
        # the JVM starts a daemon, which forks the workers
        grandparent, daemon, _ = parents.get(parent, (0, "", ""))
        _, jvm, _ = parents.get(grandparent, (0, "", ""))
        if (name[:6], daemon[:6], jvm) == ("python", "python", "java"):
            yield int(peak.split()[0]) << 10


def main(orders: str, products: str, checkpoint: str, memory: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    found: dict[int, list[int]] = {}
    worst = 0

    def sums(rows: DataFrame) -> list[int]:
        hashes = F.sum(F.xxhash64("id", "note", "name").cast("DECIMAL(38, 0)"))
        row = rows.agg(F.count("*"), hashes).first()
        assert row is not None
        return [row[0], int(row[1] or 0)]

    def see(rows: DataFrame, batch: int) -> None:
        nonlocal worst
        found[batch] = sums(rows)
        worst = max(worst, *peaks())

    left, right = (read_changes(spark, path, max_memory_per_task=memory) for path in (orders, products))
    pairs = left.join(right, left["product"] == right["code"]).select("id", "note", "name")
    joined = planner.optimize(pairs, strategy="force", first_load="micro-batches")
    query = joined.writeStream.foreachBatch(see).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()
    one, other = (read(spark, path) for path in (orders, products))
    truth = sums(one.join(other, one["product"] == other["code"]))
    print(json.dumps({"batches": found, "truth": truth, "peak": worst}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
