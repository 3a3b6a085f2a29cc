"""Follows a Delta table that changes, and merges what it follows into another one, until it is killed.

Its arguments are a folder, a seed for the changes, and "go on", or "end": follow to the end and compare.
"""

import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import planner
from tests.upsert.delta.conftest import SETTINGS
from tests.upsert.delta.following import multiset
from upsert import Catalog

NOW = {"availableNow": True}
COPY = "INSERT INTO copies SELECT id, v FROM source WHERE id % 3 > 0"


def session(folder: Path) -> tuple[SparkSession, Catalog]:
    spark = SparkSession.builder.config(map=SETTINGS).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    catalog = Catalog(folder / "warehouse", optimize=planner.optimize)
    for name in ("source", "copies"):
        path = folder / name
        spark.sql(f"CREATE TABLE IF NOT EXISTS delta.`{path}` (id BIGINT, v BIGINT) USING delta")
        catalog.sql(
            f"CREATE TABLE IF NOT EXISTS {name} (PRIMARY KEY (id) NOT ENFORCED) "
            f"WITH ('connector' = 'delta', 'path' = '{path}')",
            spark,
        )
    catalog.sql(f"SET 'checkpoint.location' = '{folder / 'checkpoints'}'")
    return spark, catalog


def change(spark: SparkSession, folder: Path, seed: int) -> None:
    drawn = random.Random(seed)
    while True:
        start, number = drawn.randrange(60), drawn.randrange(1_000_000)
        spark.sql(
            f"MERGE INTO delta.`{folder / 'source'}` t USING (SELECT id, {number} + id AS v "
            f"FROM range({start}, {start + 20})) s ON t.id = s.id WHEN MATCHED AND s.v % 4 = 0 THEN DELETE "
            "WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT *"
        )


def go_on(folder: Path, seed: int) -> None:
    spark, catalog = session(folder)
    catalog.mirror(spark, "source", NOW).awaitTermination()
    threading.Thread(target=change, args=(spark, folder, seed), daemon=True).start()
    catalog.mirror(spark, "source")
    catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
    catalog.sql(COPY, spark)
    print("under way", flush=True)
    while True:
        time.sleep(1)


def end(folder: Path) -> None:
    spark, catalog = session(folder)
    catalog.mirror(spark, "source", NOW).awaitTermination()
    catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
    catalog.sql("SET 'execution.trigger' = 'available-now'")
    running: Any = catalog.sql(COPY, spark)
    running.query.awaitTermination()
    source, copies = (spark.read.format("delta").load(str(folder / name)) for name in ("source", "copies"))
    assert multiset(catalog.table("source").snapshot().scan()) == multiset(source.toArrow())
    assert multiset(copies.toArrow()) == multiset(source.where("id % 3 > 0").toArrow())
    print("equal", flush=True)


if __name__ == "__main__":
    at, seed_, what = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    end(at) if what == "end" else go_on(at, seed_)
