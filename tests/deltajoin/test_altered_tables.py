"""A join goes on while its tables are altered, unless one of its own columns is no longer what it was."""

from pathlib import Path

import pyarrow as pa
import pytest

from deltajoin import DeltaJoinSpec, Side
from deltajoin.errors import CheckpointMismatchError
from deltajoin.offset import JoinOffset
from deltajoin.tables import JoinedTables
from upsert.errors import SchemaError
from upsert.schema import Column, TableSchema
from upsert.store import Table
from upsert.store.alterations import AddColumn, Alteration, DropColumn, RenameColumn, WidenColumn
from upsert.store.version import Version

AMOUNT = Column("amount", pa.int32())
GOES_ON: list[Alteration] = [AddColumn(Column("note", pa.string())), DropColumn("other")]
STOPS: list[tuple[tuple[Alteration, ...], type[Exception]]] = [
    ((DropColumn("amount"), AddColumn(AMOUNT)), CheckpointMismatchError),
    ((WidenColumn("amount", pa.int64()),), CheckpointMismatchError),
    ((RenameColumn("amount", "x"), RenameColumn("other", "amount")), CheckpointMismatchError),
    ((RenameColumn("amount", "x"),), SchemaError),
]


@pytest.fixture
def orders(tmp_path: Path) -> Table:
    columns = {"id": pa.int64(), "product": pa.int64(), "amount": pa.int32(), "other": pa.int32()}
    return Table.create(tmp_path / "orders", TableSchema.of(columns, primary_key=["id"]).index("product"))


@pytest.fixture
def spec(orders: Table, tmp_path: Path) -> DeltaJoinSpec:
    products = TableSchema.of({"product": pa.int64(), "name": pa.string()}, primary_key=["product"])
    Table.create(tmp_path / "products", products)
    left = Side(orders.path, ("id", "product", "amount"), ("product",))
    return DeltaJoinSpec.of(
        "inner", left, Side(str(tmp_path / "products"), ("product", "name"), ("product",))
    )


def offset(spec: DeltaJoinSpec) -> dict[str, object]:
    return JoinOffset(JoinedTables.open(spec).identity, (Version.EMPTY, Version.EMPTY)).to_json()


@pytest.mark.parametrize("change", GOES_ON, ids=repr)
def test_a_join_goes_on_when_columns_that_it_does_not_read_change(
    orders: Table, spec: DeltaJoinSpec, change: Alteration
) -> None:
    before = offset(spec)
    orders.alter(change)
    assert offset(spec) == before


@pytest.mark.parametrize(("changes", "error"), STOPS)
def test_a_join_stops_when_a_column_of_its_own_is_another_one(
    orders: Table, spec: DeltaJoinSpec, changes: tuple[Alteration, ...], error: type[Exception]
) -> None:
    before = offset(spec)
    orders.alter(*changes)
    with pytest.raises(error):
        JoinOffset.of(before, JoinedTables.open(spec).identity)
