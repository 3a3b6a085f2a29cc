"""Readers of tables without primary key, whose rows ALTER TABLE brings into another order."""

import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from upsert.errors import SchemaError
from upsert.managed.options import ReadOptions
from upsert.managed.reader import SnapshotReader
from upsert.schema import Column, TableSchema
from upsert.spark.columns import spark_schema
from upsert.store import Table
from upsert.store.alterations import AddColumn, DropColumn, RenameColumn
from upsert.store.read.pinned_columns import PinnedColumns
from upsert.store.version import Version

IDS = TableSchema.of({"id": pa.int64()})
LATER = AddColumn(Column("later", pa.int32()))


class Reader:
    """A stream of the ids, in steps of a few rows, which holds what it needs."""

    def __init__(self, table: Table) -> None:
        self.columns = PinnedColumns.named(table.schema, ["id"], "reader")
        self.version = Version.EMPTY
        self.ids: Counter[int] = Counter()

    def step(self, table: Table, max_rows: int | None) -> bool:
        """Whether there was anything new."""
        start, end = self.version, table.advance(self.version, max_rows=max_rows)
        if end == start:
            return False
        table.hold("reader", end)
        changes = self.columns.read(table, lambda names: table.changes_between(start, end, columns=names))
        self.ids.update(signed(changes))
        self.ids = Counter({id: count for id, count in self.ids.items() if count})
        self.version = end
        return True


def signed(changes: pa.Table) -> Counter[int]:
    found: Counter[int] = Counter()
    for row in changes.to_pylist():
        found[row["id"]] += 1 if row["_row_kind"][0] == "+" else -1
    return found


def ids_of(rows: pa.Table) -> Counter[int]:
    return Counter(rows["id"].to_pylist())


@pytest.mark.parametrize("buckets", ["1", "3"])
def test_a_first_load_in_steps_reads_each_row_once_when_a_column_comes_in_the_middle(
    tmp_path: Path, buckets: str
) -> None:
    table = Table.create(tmp_path / "t", IDS, {"bucket": buckets})
    table.write(pa.table({"id": list(range(100))}))
    reader = Reader(table)
    for _ in range(4):
        assert reader.step(table, max_rows=10)
    assert not reader.version.is_complete
    table.alter(LATER)
    table.compact()
    table.expire(keep=1)
    while reader.step(table, max_rows=10):
        pass
    assert reader.ids == ids_of(table.snapshot().scan())


def test_tasks_of_a_batch_that_was_planned_before_a_column_came_read_each_row_once(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", IDS, {"bucket": "16"})
    table.write(pa.table({"id": list(range(8))}))
    asked = StructType(spark_schema(table.schema, row_kind=False).fields)
    reader = SnapshotReader(ReadOptions.parse({"path": table.path, "row-kind": "false"}), asked)
    planned = reader.partitions()
    table.alter(LATER)
    read = [batch for part in planned for batch in reader.read(part)]
    assert sorted(id for batch in read for id in batch.column(0).to_pylist()) == list(range(8))


@pytest.mark.parametrize("seeds", [6, pytest.param(60, marks=pytest.mark.long)])
def test_changes_lead_from_state_to_state_whatever_was_replaced_between_two_changes_of_columns(
    tmp_path: Path, seeds: int
) -> None:
    for seed in range(seeds):
        table = Table.create(tmp_path / str(seed), IDS, {"bucket": "3", "write-only": "true"})
        draw = random.Random(seed)
        for turn in range(4):
            table.write(with_ids(table, [turn, draw.randrange(50)]))
            table.alter(AddColumn(Column(f"c{turn}", pa.int32())))
            table.overwrite(with_ids(table, [draw.randrange(50), 100 + turn]))
        assert_changes_lead_to_now(table)


def assert_changes_lead_to_now(table: Table) -> None:
    now = ids_of(table.snapshot().scan())
    for info in table.history():
        state = ids_of(table.snapshot(info.id).scan())
        state.update(signed(table.changes(info.id)))
        assert {id: count for id, count in state.items() if count} == now, info


def test_a_table_is_rolled_back_to_before_its_columns_changed(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", IDS, {"bucket": "3"})
    table.write(pa.table({"id": list(range(20))}))
    before = table.snapshot().id
    table.write(pa.table({"id": list(range(10)), "_row_kind": ["-D"] * 10}))
    table.alter(LATER)
    table.write(pa.table({"id": list(range(50, 70)), "later": pa.array(range(20), pa.int32())}))
    done = table.rollback_to(before)
    assert sorted(done.scan().to_pylist(), key=str) == sorted(
        ({"id": id, "later": None} for id in range(20)), key=str
    )
    assert table.check(deep=True) == ()


@pytest.mark.parametrize(
    "seed", [0, 3, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2, *range(4, 20)))]
)
def test_random_lives_in_which_a_reader_goes_on_in_small_steps(tmp_path: Path, seed: int) -> None:
    """Another column comes or goes between any two of its steps, beside commits, compaction and expiry."""
    draw = random.Random(seed)
    table = Table.create(
        tmp_path / "t", IDS, {"bucket": draw.choice("13"), "num-sorted-run.compaction-trigger": "3"}
    )
    reader, rows = Reader(table), Counter[int]()
    for turn in range(60):
        match draw.choice(["write", "write", "delete", "overwrite", "alter", "alter", "compact", "expire"]):
            case "write":
                new = [draw.randrange(30) for _ in range(6)]
                table.write(with_ids(table, new))
                rows.update(new)
            case "delete":
                gone = draw.randrange(30)
                table.delete([("id", "=", gone)])
                rows.pop(gone, None)
            case "overwrite":
                new = [draw.randrange(30) for _ in range(6)]
                table.overwrite(with_ids(table, new))
                rows = Counter(new)
            case "alter":
                others = [name for name in table.schema.names if name != "id"]
                if others and draw.random() < 0.5:
                    table.alter(DropColumn(draw.choice(others)))
                else:
                    table.alter(AddColumn(Column(f"c{turn}", pa.int64()), draw.choice(["", None])))
            case "compact":
                table.compact()
            case "expire":
                table.expire(keep=draw.randrange(1, 4))
        for _ in range(draw.randrange(3)):
            reader.step(table, draw.choice([2, 5, None]))
        assert ids_of(table.snapshot().scan()) == rows
        if draw.random() < 0.2:
            assert_changes_lead_to_now(table)
    while reader.step(table, 5):
        pass
    assert reader.ids == rows
    assert [found for found in table.check(deep=True) if not found.is_information] == []


def with_ids(table: Table, ids: list[int]) -> pa.Table:
    columns = {name: pa.nulls(len(ids), table.schema.type_of(name)) for name in table.schema.names}
    return pa.table({**columns, "id": pa.array(ids, pa.int64())})


def test_a_dropped_column_that_a_reader_reads_ends_it(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", TableSchema.of({"id": pa.int64(), "a": pa.int64()}))
    table.write(pa.table({"id": [1, 2], "a": [1, 1]}))
    reader = Reader(table)
    reader.step(table, max_rows=1)
    table.alter(RenameColumn("id", "key"), DropColumn("a"))
    while reader.step(table, max_rows=1):
        pass
    assert reader.ids == {1: 1, 2: 1}
    table.alter(AddColumn(Column("id", pa.int64())), DropColumn("key"))
    table.write(pa.table({"id": [3]}))
    with pytest.raises(SchemaError, match="column 'id', which the query began with, must be there"):
        reader.step(table, max_rows=1)
