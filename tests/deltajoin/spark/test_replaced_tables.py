"""Tasks open tables by their paths: another one that lies there by then is refused, not read in part."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from deltajoin import DeltaJoinSpec, Side
from deltajoin.aggregate.evaluate import output_schema
from deltajoin.aggregate.source import AggregateReader
from deltajoin.aggregate.spec import DeltaAggregateSpec, Measure
from deltajoin.spark.shuffled import join_blobs
from deltajoin.spark.source import ChangesReader as BlobsReader
from deltajoin.spark.source import JoiningReader, SourceOptions
from deltajoin.spark.tables import JoinedTables, output_type
from upsert.errors import TableNotFoundError
from upsert.managed.options import ReadOptions
from upsert.managed.reader import ChangesReader, SnapshotReader
from upsert.materializer.micro_batch import WriteBatch
from upsert.schema import TableSchema
from upsert.spark.columns import spark_schema
from upsert.store import Table

SCHEMA = TableSchema.of({"id": pa.int64(), "value": pa.int64()}, ["id"]).index("value")


@dataclass(frozen=True)
class Tables:
    """Two tables of one commit each."""

    orders: Table
    names: Table

    @property
    def join(self) -> DeltaJoinSpec:
        left = Side(self.orders.path, ("id", "value"), ("value",))
        return DeltaJoinSpec.of("inner", left, Side(self.names.path, ("id",), ("id",)))

    def replace(self) -> None:
        """Another table in the place of ``names``, also of one commit."""
        shutil.rmtree(self.names.path)
        filled(self.names.path)


def filled(path: str | Path) -> Table:
    table = Table.create(path, SCHEMA, {"bucket": "2"})
    table.write(pa.table({"id": range(10), "value": [7] * 10}))
    return table


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(filled(tmp_path / "orders"), filled(tmp_path / "names"))


def batch(tables: Tables) -> Any:
    return SnapshotReader(ReadOptions(tables.names.path), spark_schema(SCHEMA, row_kind=True))


def stream(tables: Tables) -> Any:
    return ChangesReader(ReadOptions(tables.names.path), spark_schema(SCHEMA, row_kind=True))


def aggregate(tables: Tables) -> Any:
    spec = DeltaAggregateSpec(tables.names.path, ("value",), (Measure("max", ("id",)),))
    return AggregateReader(spec, spark_schema(TableSchema.of(output_schema(spec, SCHEMA)), row_kind=True))


def fused(tables: Tables) -> Any:
    return JoiningReader(SourceOptions(tables.join), output_type(JoinedTables.open(tables.join)))


def blobs(tables: Tables) -> Any:
    return BlobsReader(SourceOptions(tables.join, gives_joined=False))


@pytest.mark.parametrize("reader_of", [batch, stream, aggregate, fused, blobs])
def test_a_task_does_not_read_the_table_that_took_the_place_of_the_planned_one(
    tables: Tables, reader_of: Callable[[Tables], Any]
) -> None:
    reader = reader_of(tables)
    if reader_of is batch:
        partitions = reader.partitions()
    else:
        start = reader.initialOffset()
        partitions = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
    assert partitions
    assert list(reader.read(partitions[-1]))
    tables.replace()
    with pytest.raises(TableNotFoundError, match="was replaced by another one: its uuid must be"):
        list(reader.read(partitions[-1]))


def test_a_shard_behind_a_shuffle_does_not_look_it_up_either(tables: Tables) -> None:
    reader = blobs(tables)
    start = reader.initialOffset()
    partitions = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
    found = [row for part in partitions for rows in reader.read(part) for row in rows.to_pylist()]
    payloads = [row["blob"] for row in found if row["shard"] == found[0]["shard"]]
    assert list(join_blobs(tables.join, found[0]["shard"], payloads))
    tables.replace()
    with pytest.raises(TableNotFoundError, match="was replaced by another one"):
        list(join_blobs(tables.join, found[0]["shard"], payloads))


def test_micro_batches_of_an_aggregate_do_not_go_into_it(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("upsert.materializer.micro_batch.query_of_micro_batch", lambda *_: "q")
    write = WriteBatch(tables.names.path, tables.names.uuid, 2)
    tables.replace()
    rows: Any = None
    with pytest.raises(TableNotFoundError, match="was replaced by another one"):
        write(rows, 0)
