"""The partitions that a step touches are found some changes at a time, whatever the step's size."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from deltajoin.filters import Filters
from planner.plan.expressions import Aggregation, Call, Column, Expr
from planner.plan.nodes import Aggregate, GroupBy, Output, Relation, TableRows
from planner.plan.sources import ManagedTable
from planner.settings import Settings
from planner.views.partition_table import OwnRows, few, touched_by
from planner.views.partitions import partitions_of
from upsert import Table
from upsert.schema import Column as TableColumn
from upsert.schema import TableSchema


def rows_of(table: Table, columns: Sequence[str], where: Filters | None = None) -> OwnRows:
    """The rows of a table whose partitions are told apart by ``g``."""
    read = tuple(Column(number, name, "") for number, name in enumerate(columns))
    return OwnRows(table.path, table.uuid, Relation("t", read), read, ("g",), where)


@contextmanager
def peak() -> Iterator[pa.MemoryPool]:
    """What Arrow takes in a block, which its pool tells."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    # what is kept of files for later was taken from it, and is given back when the process ends
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(pool))
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(before)


def touched(rows: OwnRows, since: int, until: int) -> list[Any]:
    found = touched_by(rows, since, until, None)  # type: ignore[arg-type]
    assert isinstance(found, pa.Table)
    return sorted(found.column("g").to_pylist())


def test_a_large_step_is_not_in_memory_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = TableSchema.of({"id": pa.int64(), "g": pa.int64(), "v": pa.string()}, ["id"]).index("g")
    table, count = Table.create(tmp_path / "t", schema), 60_000
    for turn in ("a", "b"):
        ids = pa.array(range(count))
        texts = pa.array([f"{turn}{number:099}" for number in range(count)])
        table.write(pa.table({"id": ids, "g": pa.array([number % 7 for number in range(count)]), "v": texts}))
    monkeypatch.setattr("planner.views.partition_table.READ_ROWS", 2_000)
    with peak() as pool:
        assert touched(rows_of(table, ["v"]), 1, 2) == [*range(7)]
    assert pool.max_memory() < 6 << 20  # of 24 MB that both images have


@pytest.mark.parametrize("key", [["id"], []])
@pytest.mark.parametrize("are_equal", [True, False])
def test_a_hot_partition_is_not_read_in_the_driver(
    tmp_path: Path, key: list[str], are_equal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hot, groups = 40_000, 20_000
    schema = TableSchema.of({"id": pa.int64(), "g": pa.int64(), "v": pa.string()}, key).index("g")
    table = Table.create(tmp_path / "t", schema)
    ids = [0] * hot if are_equal and not key else [*range(hot)]
    table.write(
        pa.table(
            {
                "id": pa.array([*ids, *range(hot, hot + groups)]),
                "g": pa.array([0] * hot + [*range(1, groups + 1)]),
                "v": pa.repeat(pa.scalar("x" * 100), hot + groups),
            }
        )
    )
    monkeypatch.setattr("planner.views.partition_table.FEW_ROWS", hot - 1)
    snapshot, names = table.snapshot(), ["id", "v"]
    with peak() as pool:
        found = few(snapshot, ["g"], pa.table({"g": [1, 2, groups, -1]}), names)
        assert found is not None
        assert sorted(found["id"].to_pylist()) == [hot, hot + 1, hot + groups - 1]
        assert few(snapshot, ["g"], pa.table({"g": [1, 0]}), names) is None
    assert pool.max_memory() < 2 << 20  # of 4 MB that the hot one has
    monkeypatch.setattr("planner.views.partition_table.FEW_ROWS", hot + 1)
    found = few(snapshot, ["g"], pa.table({"g": [1, 0]}), names)
    assert found is not None
    assert found.num_rows == hot + 1


@pytest.mark.parametrize("key", [["id"], []])
def test_touched_partitions_are_those_of_which_a_row_has_changed(
    tmp_path: Path, key: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = Random().randrange(10_000)
    print(f"seed {seed}")
    random = Random(seed)
    columns = {"id": pa.int64(), "g": pa.int64(), "v": pa.int64(), "unread": pa.int64()}
    table = Table.create(tmp_path / "t", TableSchema.of(columns, key).index("g"), {"bucket": "3"})
    monkeypatch.setattr("planner.views.partition_table.READ_ROWS", 12)
    rows, states = set[Row](), {0: frozenset[Row]()}
    for _ in range(5):
        gone = set(random.sample(sorted(rows), len(rows) // 4))
        ids = set(random.sample(range(40), 12)) - {row[0] for row in gone}
        new = {(id, random.randrange(9), random.randrange(4), random.randrange(2)) for id in ids} - rows
        replaced = {old for old in rows if old[0] in {row[0] for row in new}} if key else set()
        rows = (rows - gone - replaced) | new
        changes = [*((*row, "-D") for row in sorted(gone)), *((*row, "+I") for row in sorted(new))]
        values = map(list, zip(*changes, strict=True))
        table.write(pa.table(dict(zip((*columns, "_row_kind"), values, strict=True))))
        states[table.snapshot().info.data_version] = frozenset(rows)
    for since, until in combinations(states, 2):
        for where in (None, ((("v", ">", 1),),)):
            before, after = (seen(states[one], where, key) for one in (since, until))
            found = touched(rows_of(table, ["id", "v"], where), since, until)
            assert found == sorted({row[1] for row in before ^ after}), (seed, since, until)
    assert touched(rows_of(table, ["v"]), max(states), max(states)) == []


Row = tuple[int, int, int, int]


def seen(rows: frozenset[Row], where: Filters | None, key: list[str]) -> set[tuple[int, ...]]:
    """What is read of rows; those of a table without a key are told apart by all of their columns."""
    return {row[: 3 if key else 4] for row in rows if where is None or row[2] > 1}


READ = tuple(Column(n, name, "") for n, name in enumerate(("id", "by", "real", "nullable", "none", "unread")))
ID, BY, REAL, NULLABLE, NONE, UNREAD = READ


@pytest.mark.parametrize(
    ("keys", "by"),
    [
        ([BY], ("by",)),
        ([BY, NONE], ("by", "none")),
        ([NONE], None),
        ([NULLABLE], None),  # NULL is a partition, and no key of an index
        ([REAL], None),  # 0.0 and -0.0 are one, and two keys
        ([BY, Call("Pmod", (ID,), "bigint")], None),
    ],
)
def test_partitions_are_looked_up_in_the_query_s_table_by_what_an_index_finds_all_of_them(
    tmp_path: Path, keys: list[Expr], by: tuple[str, ...] | None
) -> None:
    types = dict.fromkeys(("id", "by", "none", "nullable", "unread"), pa.int64()) | {"real": pa.float64()}
    columns = tuple(TableColumn(name, type_, name == "nullable") for name, type_ in types.items())
    schema = TableSchema(columns, ("id",)).index("by").index("real").index("nullable")
    table = Table.create(tmp_path / "t", schema)
    read = ManagedTable("t", table.path, table.schema, bucket_key=("id",))
    value = Output(Column(30, "m", "bigint"), Aggregation("Max", (ID,), ("bigint",)))
    groups = tuple(map(GroupBy, keys))
    leaf = Relation("t", READ, rows=TableRows(read, 1))
    (part,) = partitions_of(Aggregate(leaf, groups, (value,)), Settings.of_query({}, {}))
    found = OwnRows.of(part)
    assert (None if found is None else found.by) == by
    if found is not None:
        assert found.names == ["id", *by]
