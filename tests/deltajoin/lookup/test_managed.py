"""Lookups in managed tables: the contract, and what they see of later commits."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from deltajoin.errors import LookupFailedError
from deltajoin.lookup import LookupSource, TableLookup
from deltajoin.lookup.batch import Lookups
from deltajoin.lookup.contract import LookupContract, ask
from upsert.errors import SchemaError, TableNotFoundError
from upsert.schema import TableSchema
from upsert.store.table import Table

USERS = pa.table({"id": [1, 2], "hub": ["JFK", "EWR"]})


class TestTableLookup(LookupContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        self.tables = 0

    def make(self, rows: pa.Table, keys: Sequence[str]) -> LookupSource:
        self.tables += 1
        columns = {field.name: field.type for field in rows.schema}
        table = Table.create(self.folder / str(self.tables), TableSchema.of(columns).index(*keys))
        table.write(rows)
        return TableLookup.of(table.path, keys)


def users(folder: Path) -> Table:
    schema = TableSchema.of({"id": pa.int64(), "hub": pa.string()}, primary_key=["id"]).index("hub")
    table = Table.create(folder / "users", schema)
    table.write(USERS)
    return table


def test_each_batch_sees_the_latest_version(tmp_path: Path) -> None:
    table = users(tmp_path)
    lookups = Lookups(TableLookup.of(table.path, ["hub"], ["id", "hub"]))
    hubs = pa.table({"hub": ["JFK"]})
    assert lookups.answer(hubs)[0].rows["id"].to_pylist() == [1]
    table.write(pa.table({"id": [1, 3], "hub": ["LGA", "JFK"]}))
    assert lookups.answer(hubs)[0].rows["id"].to_pylist() == [3]
    lookups.close()


def test_keys_need_an_index(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "log", TableSchema.of({"id": pa.int64(), "hub": pa.string()}))
    with pytest.raises(SchemaError, match=r"it has none; declare INDEX \(hub\) in its CREATE TABLE"):
        TableLookup.of(table.path, ["hub"])


def test_the_table_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError):
        TableLookup.of(tmp_path / "nowhere", ["id"])


def test_a_table_that_is_gone_fails(tmp_path: Path) -> None:
    table = users(tmp_path)
    source = TableLookup.of(table.path, ["id"])
    shutil.rmtree(table.path)
    failure = ask(source, USERS.select(["id"])).failures[0]
    assert type(failure) is LookupFailedError
    assert "the table must be readable, it is not" in str(failure)
