"""A join into a table whose first tasks lose their output when one of the second has read it.

`python lost_output_script.py FOLDER` makes all of it there, and prints how often the tasks were run again.
Spark's own files must be there too, below `spark`, so that nothing of another session is deleted.
"""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import ClassVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from deltajoin import DeltaJoinSpec, Side, read_join
from deltajoin.spark.source import JoiningReader
from tests.helpers import multiset, wait_until
from upsert.managed import micro_batch
from upsert.managed.frames import write_changes
from upsert.managed.tasks import Read, RowsOfCut
from upsert.schema import TableSchema
from upsert.store.table import Table

ORDERS = TableSchema.of({"id": pa.int64(), "product": pa.int64(), "v": pa.string()}, primary_key=["id"])
PRODUCTS = TableSchema.of({"code": pa.int64(), "price": pa.string()}, primary_key=["code"])
SINK = TableSchema.of({"id": pa.int64(), "v": pa.string(), "price": pa.string()}, primary_key=["id"])
SECONDS = 300


class Waiting(RowsOfCut):
    """In all tasks but the first one it waits for a file."""

    go: ClassVar[Path]

    def __call__(self, batches: Iterator[pa.RecordBatch], read: Read) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() > 0:
            wait_until(self.go.exists, SECONDS)
        yield from RowsOfCut.__call__(self, batches, read)


def change(orders: Table, products: Table, chosen: Random) -> None:
    for table, keys, row in (
        (orders, 600, lambda: (chosen.randrange(50), chosen.choice(["a", None]))),
        (products, 50, lambda: (chosen.choice(["b", None]),)),
    ):
        rows = [(key, *row(), chosen.choice(["+U", "-D"])) for key in chosen.sample(range(keys), keys // 2)]
        columns = [list(column) for column in zip(*rows, strict=True)]
        table.write(pa.table(columns, names=[*table.schema.names, "_row_kind"]))


def main(folder: Path) -> None:
    spark = SparkSession.builder.config("spark.local.dir", str(folder / "spark")).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    Waiting.go = folder / "go"
    plain = {"write-only": "true"}
    orders = Table.create(folder / "orders", ORDERS.index("product"), plain)
    products = Table.create(folder / "products", PRODUCTS, plain)
    sink = Table.create(folder / "sink", SINK, {"bucket": "8"})
    left = Side(orders.path, tuple(ORDERS.names), ("product",))
    right = Side(products.path, tuple(PRODUCTS.names), ("code",))
    joined = read_join(spark, DeltaJoinSpec.of("inner", left, right, shards=3))
    rows = joined.selectExpr("t0_id id", "t0_v v", "t1_price price", "_row_kind")
    micro_batch.FEW_ROWS = -1  # type: ignore[misc]  # tasks compute all of it
    JoiningReader._tasks = lambda *_: 3  # type: ignore[method-assign]

    def step() -> None:
        writer = write_changes(rows, sink.path).option("checkpointLocation", str(folder / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    chosen = Random(1)
    for _ in range(3):
        change(orders, products, chosen)
    step()
    for _ in range(3):
        change(orders, products, chosen)
    tracker = spark.sparkContext.statusTracker()

    def has_read() -> bool:
        stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
        return any(one is not None and one.numTasks == 8 and one.numCompletedTasks for one in stages)

    def lose() -> None:
        wait_until(has_read, SECONDS)
        for table in (orders, products):
            table.compact()  # what tasks find lies elsewhere then
        for file in (folder / "spark").glob("blockmgr-*/*/shuffle_*.data"):
            file.unlink()
        Waiting.go.touch()

    micro_batch.RowsOfCut = Waiting  # type: ignore[attr-defined]
    loses = threading.Thread(target=lose)
    loses.start()
    step()
    loses.join()
    prices = dict(multiset(products.snapshot().scan()).elements())
    of_orders = multiset(orders.snapshot().scan()).elements()
    there = [(id, v, prices[product]) for id, product, v in of_orders if product in prices]
    assert sorted(multiset(sink.snapshot().scan()), key=repr) == sorted(there, key=repr)
    stages = map(tracker.getStageInfo, range(100))
    print(f"attempt {max(one.currentAttemptId for one in stages if one is not None)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
