"""What the committing process reads of the rows that tasks have written: `python -m bench.committing`.

A batch goes into a table without a primary key in 8 buckets, and the changes of a table stream into another
one in 2 buckets, with `write_changes`. Counted are the bytes of rows that the driver reads to commit them,
once as earlier releases did, which folded all rows there, and once as it is now. Printed, and kept in
`bench/results/committing.json`.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa
from pyspark.sql import SparkSession

from bench import RESULTS
from bench.session import untuned
from upsert.managed import tasks
from upsert.managed.frames import read_changes, write, write_changes
from upsert.schema import TableSchema
from upsert.store.commit import staging
from upsert.store.table import Table

RESULT: Final = RESULTS / "committing.json"
ROWS: Final = (200_000, 400_000, 2_000_000)
_COLUMNS: Final = {"id": pa.int64(), "customer": pa.int64(), "amount": pa.float64()}
_ROWS_OF: Final = ["id", "pmod(id * 7919, 50000) AS customer", "id * 0.25D AS amount"]


@contextmanager
def bytes_read() -> Iterator[list[int]]:
    """The bytes of each piece of staged rows that this process reads meanwhile."""
    found: list[int] = []
    own = staging._read

    def read(*given: Any) -> pa.Table:
        rows = own(*given)
        found.append(rows.nbytes)
        return rows

    with patch.object(staging, "_read", read):
        yield found


def batch(spark: SparkSession, folder: Path, rows: int) -> None:
    """A DataFrame into a table without a primary key."""
    table = Table.create(folder / "counted", TableSchema.of(_COLUMNS), {"bucket": "8"})
    write(spark.range(0, rows, 1, 4).selectExpr(*_ROWS_OF), table.path)


def stream(spark: SparkSession, folder: Path, rows: int) -> None:
    """The changes of a table into another one."""
    schema = TableSchema.of(_COLUMNS, primary_key=["id"])
    source = Table.create(folder / "source", schema, {"bucket": "4"})
    ids = pa.array(range(rows), pa.int64())
    source.write(pa.table({"id": ids, "customer": ids, "amount": ids.cast(pa.float64())}))
    sink = Table.create(folder / "sink", schema, {"bucket": "2"})
    changes = read_changes(spark, source.path, max_rows_per_trigger=2 * rows)
    writer = write_changes(changes, sink.path).option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


def main() -> None:
    """Count, print and keep."""
    spark = untuned("committing")
    found = []
    for way in (batch, stream):
        for rows in ROWS:
            for name, few in (("earlier", 1 << 62), ("now", tasks.FOLDED_BY_DRIVER)):
                with tempfile.TemporaryDirectory(prefix="bench-committing-") as folder:
                    began = time.perf_counter()
                    with patch.object(tasks, "FOLDED_BY_DRIVER", few), bytes_read() as read:
                        way(spark, Path(folder), rows)
                    took = time.perf_counter() - began
                found.append(
                    {
                        "way": way.__name__,
                        "rows": rows,
                        "release": name,
                        "bytes": sum(read),
                        "s": round(took, 2),
                    }
                )
                print(found[-1], flush=True)
    spark.stop()
    about = {"cpus": os.cpu_count(), "load_average": round(os.getloadavg()[0], 1)}
    RESULT.write_text(json.dumps({"about": about, "writes": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
