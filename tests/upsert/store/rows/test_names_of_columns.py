"""Columns of a table may be called as those that the store makes up; a dict is the oracle."""

from pathlib import Path

import pyarrow as pa
import pytest

from tests.upsert.store.disk import assert_nothing_is_left_over
from upsert.errors import SchemaError
from upsert.schema import TableSchema
from upsert.store import Table

NAMES = ("_count", "_row_hash", ":sign", "_is_new", " sequence")


@pytest.mark.parametrize("key", ["id", *NAMES])
def test_a_table_with_a_key_takes_the_names_of_columns_in_between(tmp_path: Path, key: str) -> None:
    columns = dict.fromkeys(("id", *NAMES), pa.int64())
    table = Table.create(
        tmp_path / "t", TableSchema.of(columns, primary_key=[key]).index("_count"), {"bucket": "2"}
    )

    def rows(*values: tuple[str, int, int]) -> pa.Table:
        """A change of each key, whose other columns all have one value."""
        found = [{**dict.fromkeys(columns, value), key: at, "_row_kind": kind} for kind, at, value in values]
        return pa.Table.from_pylist(found)

    table.write(rows(("+I", 1, 10), ("+I", 2, 20)))
    table.commit([table.stage_raw(rows(("-U", 2, 20), ("+U", 2, 21), ("+I", 3, 30)))])
    table.write(rows(("-D", 1, 10), ("+I", 4, 40)))
    table.delete([("_is_new" if key != "_is_new" else "id", ">=", 40)])
    table.commit([table.stage_raw(rows(("+I", 5, 50), ("-D", 3, 30)))])
    table.compact()
    expected = [{**dict.fromkeys(columns, value), key: at} for at, value in ((2, 21), (5, 50))]
    found = table.snapshot().scan().to_pylist()
    assert sorted(found, key=lambda row: row[key]) == expected
    if key != "_count":
        probe = pa.table({"_count": pa.array([50], pa.int64())})
        assert table.snapshot().lookup(["_count"], probe).num_rows == 1
    changed = {(row["_row_kind"], row[key]) for row in table.changes(0, table.snapshot().id).to_pylist()}
    assert changed == {("+I", 2), ("+I", 5)}
    assert_nothing_is_left_over(table)


@pytest.mark.parametrize("name", ["_kind", "_row_hash", "_count", "_row_kind"])
def test_what_no_column_can_be_called_is_refused_when_the_table_is_created(tmp_path: Path, name: str) -> None:
    with pytest.raises(SchemaError, match=f"column name '{name}' is .*; choose another"):
        Table.create(tmp_path / "t", TableSchema.of({"id": pa.int64()} | {name: pa.int64()}))
