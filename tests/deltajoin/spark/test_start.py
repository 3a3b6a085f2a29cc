"""What a process has loaded that has planned a micro-batch of a join: a query that starts waits for it."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
from pyspark.serializers import CPickleSerializer

from deltajoin import DeltaJoinSpec, Side
from deltajoin.spark.source import DeltaJoinSource, SourceOptions
from tests.helpers import REPOSITORY
from upsert.schema import TableSchema
from upsert.store.table import Table

PLANNED = """
import json, pickle, sys
from pyspark.sql.streaming import python_streaming_source_runner  # what Spark's process is
source = pickle.load(sys.stdin.buffer)
reader = source.streamReader(source.schema())
start = json.loads(sys.argv[1])
end = reader.latestOffset(start, reader.getDefaultReadLimit())
assert end != start and reader.partitions(start, end)
reader.commit(end)
print(json.dumps(sorted(sys.modules)))
"""
UNUSED = (
    "pandas",
    "pyarrow.fs",
    "pyarrow.parquet",
    "upsert.catalog",
    "upsert.sql",
    "upsert.kafka",
    "upsert.postgres",
    "deltajoin.latest",
    "planner",
)


def test_a_process_that_plans_loads_no_pandas_and_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    """Arrow loads pandas to make an array of what Python has, a quarter of a second of processor time."""
    sides, rows = [], pa.table({"id": range(9), "customer": [f"c{n}" for n in range(9)]})
    for name in ("orders", "events"):
        schema = TableSchema.of({"id": pa.int64(), "customer": pa.string()}, primary_key=["id"])
        table = Table.create(tmp_path / name, schema.index("customer"), {"bucket": "2"})
        table.write(rows)
        sides.append(Side(table.path, ("id", "customer"), ("customer",)))
    source = DeltaJoinSource(SourceOptions(DeltaJoinSpec.of("inner", *sides)).to_options())
    reader = source.streamReader(source.schema())
    done = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    table.write(rows.slice(5))
    command = [sys.executable, "-c", PLANNED, json.dumps(done)]
    given = CPickleSerializer().dumps(source)
    told = subprocess.run(command, input=given, stdout=subprocess.PIPE, check=True, cwd=REPOSITORY).stdout
    loaded = set(json.loads(told))
    assert "deltajoin.spark.source" in loaded
    assert {name for name in loaded if name.startswith(UNUSED)} == set()
