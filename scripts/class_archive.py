"""Keep the classes of Spark that tests use as an archive, with which a JVM starts in half the processor time.

`python scripts/class_archive.py FILE` runs a small stream and lets the JVM write its loaded and verified
classes to FILE when it ends (class-data sharing); a JVM with `-XX:SharedArchiveFile=FILE` maps them. An
archive belongs to one Java and one folder of jars: any other JVM sees that and loads its classes as always.
FILE appears complete or not at all; where it cannot be made this is said, and tests run without it.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

WARM_UP = """
import sys
import pyarrow as pa
from pyspark.sql import SparkSession
from upsert.managed.frames import read_changes, write_changes
from upsert.schema import TableSchema
from upsert.store import Table

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
schema = TableSchema.of({"id": pa.int32(), "name": pa.string()}, primary_key=["id"])
source, sink = (Table.create(f"{sys.argv[1]}/{name}", schema, {"bucket": "2"}) for name in ("from", "to"))
source.write(pa.table({"id": pa.array([1, 2], pa.int32()), "name": ["a", "b"]}))
stream = write_changes(read_changes(spark, source.path), sink.path)
stream = stream.option("checkpointLocation", f"{sys.argv[1]}/checkpoint").trigger(availableNow=True).start()
stream.awaitTermination()
spark.sql("SELECT id % 3 AS k, count(*) AS n FROM range(9) GROUP BY 1").collect()
jvm = spark.sparkContext._gateway.proc
spark.stop()
jvm.stdin.close()  # its sign to end, which is when it writes the archive
jvm.wait()
"""
"""What most tests with a session use of Spark; its argument is a folder for its tables."""


def main(target: Path) -> None:
    """Make the archive, or say why there is none."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        part = Path(folder, target.name)
        options = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ArchiveClassesAtExit={part} -Xlog:disable"
        run = subprocess.run(
            [sys.executable, "-c", WARM_UP, folder],
            env={**os.environ, "SPARK_SUBMIT_OPTS": options, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if run.returncode == 0 and part.exists():
            os.replace(part, target)
        else:
            print(f"no archive of Spark's classes was made; tests run without it: {run.stdout[-2000:]}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
