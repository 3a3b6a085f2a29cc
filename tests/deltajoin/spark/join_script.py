"""A driver that keeps a join in a third table, for tests that kill it or give it several executors.

`python join_script.py SPEC_FILE SINK CHECKPOINT FORM` changes the tables twice, joins after each time,
and prints each micro-batch that it has finished. Started again after a crash, it goes on where it was.
"""

import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import planner
from deltajoin import DeltaJoinSpec, read_join
from upsert.managed.frames import read_changes, write_changes
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.store.table import Table

ROUNDS = 2
ORDERS, PRODUCTS = 400, 60


def change_tables(spec: DeltaJoinSpec, number: int) -> None:
    """Upserts and deletions of both tables, as one transaction each; done again it changes nothing."""
    random = Random(number)
    ids, codes = random.sample(range(ORDERS), 300), random.sample(range(PRODUCTS), 40)
    of = pa.array([random.randrange(PRODUCTS) for _ in ids], pa.int32())
    orders: dict[str, Any] = {"id": ids, "product": of, "note": [f"{number}/{i}" for i in ids]}
    products: dict[str, Any] = {"code": codes, "name": [f"{number}/{i}" for i in codes]}
    for side, columns in zip(spec.tables, (orders, products), strict=True):
        kinds = random.choices(("+U", "+U", "+U", "-D"), k=len(next(iter(columns.values()))))
        changes = pa.table({**columns, ROW_KIND_COLUMN: kinds})
        Table.open(side.path).write(changes, writer_id="script", transaction=number)


def joined(spark: SparkSession, spec: DeltaJoinSpec, form: str) -> DataFrame:
    """The join in one of its forms; `regular` is Spark's own, over signed rows, which has state."""
    if form != "regular":
        return read_join(spark, spec, form)
    limit = spec.max_rows_per_trigger
    orders, products = (read_changes(spark, side.path, max_rows_per_trigger=limit) for side in spec.tables)
    columns = [
        side[name].alias(f"t{number}_{name}")
        for number, side in enumerate((orders, products))
        for name in side.columns
        if name != ROW_KIND_COLUMN
    ]
    pairs = orders.join(products, orders["product"] == products["code"]).select(*columns)
    return planner.optimize(pairs, strategy="none")


def main(spec_file: str, sink: str, checkpoint: str, form: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spec = DeltaJoinSpec.from_json(Path(spec_file).read_text())
    seen = -1
    for number in range(ROUNDS):
        change_tables(spec, number)
        writer = write_changes(joined(spark, spec, form), sink).option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        while query.isActive:
            progress = query.lastProgress
            if progress and progress.batchId > seen:
                seen = progress.batchId
                print("finished", seen, flush=True)
            time.sleep(0.02)
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
