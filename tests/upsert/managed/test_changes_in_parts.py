"""A task that reads the changes of a step holds a part of its bucket at a time, if that is large."""

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from tests.helpers import multiset
from upsert.managed.options import ReadOptions
from upsert.managed.reader import ChangesReader
from upsert.schema import TableSchema
from upsert.spark.columns import spark_schema
from upsert.store.table import Table
from upsert.store.version import Version

AT_ONCE = Table.changes_between


@pytest.mark.parametrize("key", [["id"], []])
def test_the_parts_of_a_bucket_are_its_changes(tmp_path: Path, key: list[str]) -> None:
    seed = Random().randrange(10_000)
    print(f"seed {seed}")
    random = Random(seed)
    schema = TableSchema.of({"id": pa.int64(), "v": pa.string()}, key)
    table = Table.create(tmp_path / "t", schema, {"bucket": "2", "write-only": "true"})
    for _ in range(5):
        ids = random.sample(range(400), 150)
        table.write(pa.table({"id": ids, "v": [f"{random.random()}" for _ in ids]}))
    reader = ChangesReader(
        ReadOptions.parse({"path": table.path, "consumer.lease": "0 s"}),
        spark_schema(table.schema, row_kind=True),
    )
    lengths: list[int] = []

    def reading(*of: Any, **how: Any) -> pa.Table:
        found = AT_ONCE(*of, **how)
        lengths.append(found.num_rows)
        return found

    middle = Version(2, 5, (1, 1 << 63))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Table, "changes_between", reading)
        for start, end in ((2, 5), (0, 5), (4, 5), (5, 5)):
            assert_same(reader, table, Version.complete(start), Version.complete(end))
        assert_same(reader, table, Version.complete(2), middle)
        assert_same(reader, table, middle, Version.complete(5))
        assert max(lengths) > 100
        lengths.clear()
        reader.readable_bytes = 1_000
        assert_same(reader, table, Version.complete(2), Version.complete(5))
        assert_same(reader, table, Version.complete(2), middle)
        assert_same(reader, table, middle, Version.complete(5))
    assert len(lengths) > 20
    assert max(lengths) < 60


def assert_same(reader: ChangesReader, table: Table, start: Version, end: Version) -> None:
    """The tasks of a step read the changes of the table between its versions."""
    offsets = [reader.offset_at(table, (version,)) for version in (start, end)]
    batches = [batch for task in reader.partitions(*offsets) for batch in reader.read(task)]
    wanted = AT_ONCE(Table.open(table.path), start, end)
    assert multiset(pa.Table.from_batches(batches) if batches else wanted.slice(0, 0)) == multiset(wanted)
