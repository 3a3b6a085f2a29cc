"""A deletion that meets a changed definition on its way goes on with it, or says which column it lost."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from upsert.errors import CommitConflictError
from upsert.schema import Column, TableSchema
from upsert.store import Table
from upsert.store.alterations import AddColumn, Alteration, DropColumn, RenameColumn, SetOptions, WidenColumn
from upsert.store.commit import deletion

COLUMNS = {"id": pa.int32(), "v": pa.int32(), "w": pa.string()}


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Has something done once, when the deletion has written its files and not yet published them."""

    def do(action: Callable[[], object]) -> None:
        left = [action]

        def reach(point: str) -> None:
            if point == "delete.after-write" and left:
                left.pop()()

        monkeypatch.setattr(deletion, "reach", reach)

    return do


def tables(folder: Path, key: list[str]) -> tuple[Table, Table]:
    """One table, opened twice."""
    table = Table.create(folder / "t", TableSchema.of(COLUMNS, primary_key=key), {"write-only": "true"})
    rows = {"id": [1, 2, 3], "v": [1, 2, 2], "w": ["a", "b", "c"]}
    table.write(pa.table({name: pa.array(rows[name], type_) for name, type_ in COLUMNS.items()}))
    return table, Table.open(folder / "t")


def a_row(table: Table, id: int, v: int) -> pa.Table:
    values = {"id": id, "v": v, "vv": v}
    fields = list(table.schema.arrow)
    return pa.table({f.name: pa.array([values.get(f.name)], f.type) for f in fields})


@pytest.mark.parametrize("key", [["id"], []], ids=["keyed", "counted"])
@pytest.mark.parametrize(
    "change",
    [
        AddColumn(Column("z", pa.int64()), after=""),
        DropColumn("w"),
        RenameColumn("w", "ww"),
        WidenColumn("v", pa.int64()),
        SetOptions({"file.format": "parquet"}),
    ],
    ids=lambda change: type(change).__name__,
)
def test_deletion_goes_on_with_the_new_definition(
    tmp_path: Path, meanwhile: Callable, key: list[str], change: Alteration
) -> None:
    table, other = tables(tmp_path, key)

    def alter_and_write() -> None:
        other.alter(change)
        other.write(pa.concat_tables([a_row(other, 8, 2), a_row(other, 9, 3)]))

    meanwhile(alter_and_write)
    table.delete([("v", "=", 2)])
    assert sorted(other.snapshot().scan()["id"].to_pylist()) == [1, 9]
    assert [found for found in other.check(deep=True) if not found.is_information] == []


@pytest.mark.parametrize(
    ("change", "now"),
    [
        ([RenameColumn("v", "vv")], "'vv'"),
        ([DropColumn("v")], "dropped"),
        ([DropColumn("v"), AddColumn(Column("v", pa.int32()))], "dropped"),
        ([RenameColumn("v", "vv"), RenameColumn("id", "v")], "'vv'"),
    ],
)
def test_deletion_whose_column_went_away_conflicts_and_deletes_nothing(
    tmp_path: Path, meanwhile: Callable, change: list[Alteration], now: str
) -> None:
    table, other = tables(tmp_path, ["id"])
    meanwhile(lambda: other.alter(*change))
    with pytest.raises(CommitConflictError, match=f"must find column 'v' until it is committed, it is {now}"):
        table.delete([("v", "=", 2)])
    assert other.snapshot().scan().num_rows == 3


@pytest.mark.parametrize("key", [["id"], []], ids=["keyed", "counted"])
def test_table_is_overwritten_from_itself(tmp_path: Path, key: list[str]) -> None:
    """The rows are those of the snapshot that was read, also where the reader is asked for them late."""
    table, _ = tables(tmp_path, key)
    rows = table.snapshot().scan().append_column("n", pa.array([1, 2, 3])).drop_columns(["n"])
    doubled = [rows.set_column(1, "v", pa.array([2 * v for v in rows["v"].to_pylist()], pa.int32()))]

    def lazily() -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(
            rows.schema, (batch for one in doubled for batch in one.to_batches(max_chunksize=1))
        )

    table.overwrite(lazily())
    assert sorted(table.snapshot().scan()["v"].to_pylist()) == [2, 4, 4]
    table.overwrite(table.snapshot().scan(where=[("v", "=", 4)]))
    table.overwrite(table.snapshot().scan())
    table.compact()
    assert sorted(table.snapshot().scan()["v"].to_pylist()) == [4, 4]
    changed = [row["_row_kind"] for row in table.changes(1, table.snapshot().id).to_pylist()]
    assert sorted(changed) in (["+I", "+I", "-D", "-D", "-D"], ["+U", "+U", "-D", "-U", "-U"])
