"""Run as a script: two tables joined by lookups into a third, until all that is there has been read.

    python join_script.py WAREHOUSE CHECKPOINT [POINT BATCH [STATE_PATH]]

At the given point of the given micro-batch the driver, its JVM and the Python worker get a SIGKILL. With a
STATE_PATH the join gives every kind of change, and keeps what it gave there.
"""

import os
import sys
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

import deltajoin
import upsert
from deltajoin.lookup import TableLookup
from deltajoin.lookup.protocol import Answer, RequestLimits
from tests.upsert.managed.pipeline import BATCH, GROUP, POINT, KilledSource, kill_all_at
from upsert.changelog.image_log import ImageLog

COLUMNS = ("left_id", "left_user", "left_v", "right_name", "_row_kind")
SETTLE = ImageLog.settle


def die_here_if(point: str) -> None:
    context = TaskContext.get()
    assert context is not None
    kill_all_at(point, int(context.getLocalProperty("streaming.sql.batchId") or -1))


def settle(self: ImageLog, *args: Any, **options: Any) -> pa.Table | None:
    die_here_if("before-images")
    changes = SETTLE(self, *args, **options)
    die_here_if("after-images")
    return changes


@dataclass(frozen=True)
class KilledLookup:
    """The lookup of a table, in a worker that dies when it has found something, or when it settles that."""

    source: Any

    @property
    def schema(self) -> pa.Schema:
        return self.source.schema

    @property
    def keys(self) -> tuple[str, ...]:
        return self.source.keys

    @property
    def limits(self) -> RequestLimits:
        return self.source.limits

    def open(self) -> "KilledLookup":
        ImageLog.settle = settle  # type: ignore[method-assign]
        return KilledLookup(self.source.open())

    async def lookup(self, keys: pa.Table) -> Answer:
        answer = await self.source.lookup(keys)
        die_here_if("looked-up")
        return answer

    async def close(self) -> None:
        await self.source.close()


def main(warehouse: str, checkpoint: str, point: str = "", batch: str = "-1", state_path: str = "") -> None:
    os.environ |= {POINT: point, BATCH: batch, GROUP: str(os.getpgid(0))}
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    catalog = upsert.Catalog(warehouse)
    rows = 40 if point else 400  # a run to the end has few micro-batches of many rows
    sides = []
    for name, key, kinds in (("orders", "id", None), ("users", "user", ["+I", "+U"])):
        changes = catalog.read_changes(spark, name, max_rows_per_trigger=rows).where("_row_kind <> '-U'")
        table = TableLookup.of(catalog.table(name).path, ["user"])
        source = KilledLookup(table) if point else table
        sides.append(
            deltajoin.with_lookup(
                changes, source, keys="user", upsert_key=key, kinds=kinds, immutable=["user"]
            )
        )
    whole = {"changelog": "all", "state_path": state_path} if state_path else {}
    joined = deltajoin.lookup_delta_join(*sides, on="user", how="left", **whole)
    writer = catalog.write_changes(joined.select(*COLUMNS), "joined")
    if point:
        spark.dataSource.register(KilledSource)
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) > 3:
        os.setsid()  # the driver and its JVM become a process group of their own: one signal ends both
    main(*sys.argv[1:])
