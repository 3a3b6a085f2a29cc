"""A task that runs again gives the same rows in the same order, whatever has become of its table meanwhile.

Spark runs a task again whose output was lost, and goes on with what others have had of the first run. What it
does by the place of a row, as `sample` and `monotonically_increasing_id`, must then come out as before.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from upsert.managed.datasource import UpsertTableSource
from upsert.managed.reader import ChangesReader, SnapshotReader
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import TableSchema
from upsert.store.files import data_file
from upsert.store.metadata import history
from upsert.store.read import images
from upsert.store.read.shares import forget_shares
from upsert.store.table import Table
from upsert.store.version import Version

COLUMNS = {"id": pa.int64(), "part": pa.string(), "v": pa.string()}
SCHEMAS = {
    "keyed": TableSchema.of(COLUMNS, primary_key=["id"]),
    "partitioned": TableSchema.of(COLUMNS, primary_key=["id", "part"], partitioned_by=["part"]),
    "without key": TableSchema.of(COLUMNS),
}
OPTIONS = {"bucket": "2", "write-only": "true", "snapshot.num-retained.min": "100"}


@pytest.fixture(params=SCHEMAS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return Table.create(tmp_path / "t", SCHEMAS[request.param], OPTIONS)


def forget() -> None:
    """As in a process that has read nothing yet."""
    for kept in (history._shared, images._KEPT, data_file._OPEN):
        kept.clear()
    forget_shares()


def write(table: Table, chosen: random.Random) -> None:
    """Upserts and deletions of some keys; in a table without key rows that come and rows that go."""
    rows = [(id, f"p{-id % 3}", chosen.choice(["a", "b", None]), "+I") for id in chosen.sample(range(60), 25)]
    if table.schema.primary_key:
        rows = [(*row[:3], chosen.choice(["+U", "+U", "-D"])) for row in rows]
    else:
        there = table.snapshot().scan().to_pylist()
        rows += [(*row.values(), "-D") for row in chosen.sample(there, min(len(there), 8))]
    columns = zip(*rows, strict=True)
    types = [*COLUMNS.values(), pa.string()]
    arrays = [pa.array(column, type_) for column, type_ in zip(columns, types, strict=True)]
    table.write(pa.table(arrays, names=[*COLUMNS, ROW_KIND_COLUMN]))


def scanned(table: Table) -> tuple[SnapshotReader, Sequence[Any]]:
    source = UpsertTableSource({"path": table.path})
    schema = source.schema()
    assert isinstance(schema, StructType)
    reader = source.reader(schema)
    assert isinstance(reader, SnapshotReader)
    return reader, reader.partitions()


def changes(table: Table, since: int) -> tuple[ChangesReader, Sequence[Any]]:
    source = UpsertTableSource({"path": table.path, "scan.mode": "full", "consumer.lease": "0 s"})
    schema = source.schema()
    assert isinstance(schema, StructType)
    reader = source.streamReader(schema)
    assert isinstance(reader, ChangesReader)
    start = reader.offset_at(table, (Version.complete(since),))
    return reader, reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))


def given(reader: Any, partitions: Sequence[Any]) -> Iterator[list[tuple[Any, ...]]]:
    """The rows of each partition, in their order."""
    for partition in partitions:
        batches = reader.read(partition)
        yield [row for batch in batches for row in zip(*map(pa.Array.to_pylist, batch.columns), strict=True)]


@pytest.mark.parametrize("seed", range(5))
def test_each_partition_gives_its_rows_again_in_their_order(table: Table, seed: int) -> None:
    chosen = random.Random(seed)
    write(table, chosen)
    write(table, chosen)
    table.tag("base")
    base = table.snapshot().id
    for _ in range(chosen.randint(1, 3)):
        write(table, chosen)
    if chosen.random() < 0.3:
        table.delete([("part", "=", "p1")])
    reads = [scanned(table), changes(table, 0), changes(table, base)]
    first = [list(given(*read)) for read in reads]
    assert all(any(rows) for rows in first)

    def again() -> list[list[list[tuple[Any, ...]]]]:
        forget()
        return [list(given(*read)) for read in reads]

    assert again() == first
    write(table, chosen)
    assert again() == first
    table.compact()
    assert again() == first


def test_changes_of_partitions_come_in_their_order_when_the_commits_have_expired(tmp_path: Path) -> None:
    """Then all keys of the two states are compared, of which a tag keeps the first."""
    table = Table.create(tmp_path / "t", SCHEMAS["partitioned"], {**OPTIONS, "bucket": "1"})

    def upsert(part: str) -> None:
        table.write(pa.table({"id": [1, 2], "part": [part] * 2, "v": [f"{table.snapshot().id}"] * 2}))

    upsert("p1")
    table.tag("base")
    for part in ("p2", "p0", "p1"):
        upsert(part)
    reader, partitions = changes(table, 1)
    first = list(given(reader, partitions))
    table.expire(keep=1)
    forget()
    assert list(given(reader, partitions)) == first
