"""What is kept of small steps: each reader gets its own columns, and the same as without it."""

import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import TableSchema
from upsert.store.files.data_file import forget_open_files
from upsert.store.read import changes as _changes
from upsert.store.read import images
from upsert.store.read.snapshot import Place, Snapshot
from upsert.store.table import Table

TYPES = {
    "id": pa.int64(),
    "part": pa.string(),
    "a": pa.int32(),
    "b": pa.string(),
    "c": pa.float64(),
    "d": pa.list_(pa.int64()),
}
WHOLE = TableSchema.of(TYPES, primary_key=["id"])
BY_TEXT = TableSchema.of(TYPES, primary_key=["part", "id"])
PARTITIONED = TableSchema.of(TYPES, primary_key=["id", "part"], partitioned_by=["part"])


@pytest.fixture(autouse=True)
def nothing_kept() -> None:
    images._KEPT.clear()


def random_rows(choice: random.Random, count: int) -> pa.Table:
    rows = [
        {
            "id": choice.randrange(12),
            "part": choice.choice("xy"),
            "a": choice.choice([None, 1, 2]),
            "b": choice.choice([None, "", "b"]),
            "c": choice.choice([None, 0.0, -0.0, float("nan")]),
            "d": choice.choice([None, [], [1, None]]),
            ROW_KIND_COLUMN: choice.choice(["+I", "+U", "-D"]),
        }
        for _ in range(count)
    ]
    return pa.Table.from_pylist(rows, pa.schema([*TYPES.items(), (ROW_KIND_COLUMN, pa.string())]))


def sorted_lines(rows: pa.Table) -> list[str]:
    return sorted(repr(tuple(row.values())) for row in rows.to_pylist())


@pytest.mark.parametrize("schema", [WHOLE, BY_TEXT, PARTITIONED], ids=["integer", "text", "partitioned"])
@pytest.mark.parametrize("seed", [0, 3, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2, 4, 5))])
def test_any_columns_are_those_of_a_step_that_is_not_kept(
    schema: TableSchema, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = random.Random(seed)
    table = Table.create(tmp_path / "t", schema, {"bucket": "2"})
    for _ in range(9):
        action = choice.choice(["write", "write", "write", "overwrite", "compact"])
        if action == "compact":
            table.compact()
        else:
            (table.write if action == "write" else table.overwrite)(random_rows(choice, 10))
    ids = [info.data_version for info in table.history()]
    for _ in range(20):
        since, until = sorted(choice.choices(ids, k=2))
        columns = choice.sample(list(TYPES), choice.randint(1, len(TYPES)))
        where = choice.choice([None, [("part", "=", "x")], [("a", "=", 1)]])
        found = table.changes(since, until, columns, where)
        with monkeypatch.context() as patch:
            patch.setattr(_changes, "PIECE_BYTES", -1)
            again = table.changes(since, until, columns, where)
        assert found.schema == again.schema
        assert sorted_lines(found) == sorted_lines(again)


def test_a_column_is_read_once_for_all_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table.create(tmp_path / "t", WHOLE)
    choice = random.Random(0)
    table.write(random_rows(choice, 40))
    table.write(random_rows(choice, 10))
    asked: list[str] = []
    read = Snapshot.rows_at

    def noted(self: Snapshot, places: Sequence[Place], columns: Sequence[str]) -> pa.Table:
        asked.extend(columns)
        return read(self, places, columns)

    monkeypatch.setattr(Snapshot, "rows_at", noted)
    for columns in (["a"], ["b", "a"], ["a"], ["id", "b"]):
        table.changes(1, 2, columns)
    assert asked == ["a", "b", "id"]


def test_a_step_whose_base_was_compacted_and_has_expired_is_found_again(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", WHOLE, {"write-only": "true"})
    choice = random.Random(0)
    table.write(random_rows(choice, 40))
    table.compact()
    table.write(random_rows(choice, 40))
    table.compact()
    base = table.snapshot().info.data_version
    table.write(random_rows(choice, 10))
    before = table.changes(base, columns=["a"])
    table.expire(keep=2)
    assert sorted_lines(table.changes(base, columns=["a"])) == sorted_lines(before)
    assert table.changes(base, columns=["b", "d"]).num_rows


@pytest.mark.parametrize("format_", ["arrow", "parquet"])
def test_what_is_kept_holds_no_file(format_: str, tmp_path: Path) -> None:
    """A process may have so many maps only, and a map of a deleted file has its disk space."""
    table = Table.create(tmp_path / "t", WHOLE, {"bucket": "1", "file.format": format_})
    choice = random.Random(0)
    table.write(random_rows(choice, 40))
    for version in range(1, 4):
        table.write(random_rows(choice, 6))
        table.changes(version, version + 1, list(TYPES))
    table.changes(1, 4, list(TYPES))
    forget_open_files()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert len(images._KEPT._kept._things) > 4 * len(TYPES)
