"""Reads whose sources the driver makes."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import deltajoin
from deltajoin import DeltaJoinSpec, Side
from upsert.managed import frames
from upsert.managed.frames import changes_between, read_changes
from upsert.schema import TableSchema
from upsert.store.table import Table

pytestmark = pytest.mark.spark


def made_by_the_driver(read: DataFrame) -> tuple[bool, bool]:
    """Whether the plan of a read has its source, and the function that tasks read with."""

    def field(owner: Any, name: str) -> Any:
        found = owner.getClass().getDeclaredField(name)
        found.setAccessible(True)
        return found.get(owner)

    source = field(read._jdf.queryExecution().analyzed().table(), "ds")
    return field(source, "dataSourceInPython") is not None, field(source, "readInfo") is not None


def test_the_driver_makes_what_spark_would_ask_processes_for(spark: SparkSession, tmp_path: Path) -> None:
    """What reads something else when the query starts is asked for then: a log's reader, and partitions."""
    table = Table.create(tmp_path / "t", TableSchema.of({"k": pa.int64()}, primary_key=["k"]).index("k"))
    spec = DeltaJoinSpec.of("inner", *[Side(table.path, ("k",), ("k",))] * 2)
    read = {
        "changes": read_changes(spark, table.path),
        "join": deltajoin.read_join(spark, spec),
        "rows": frames.read(spark, table.path, columns=["k"]),
        "step": changes_between(spark, table.path, 0, 1),
        "by Spark": spark.readStream.format("upsert-table").load(table.path),
    }
    assert {name: made_by_the_driver(each) for name, each in read.items()} == {
        "changes": (True, True),
        "join": (True, True),
        "rows": (True, False),
        "step": (True, False),
        "by Spark": (True, False),
    }
