"""Offsets that a changed byte spoilt are told with the file's name, and only by those who follow them."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upsert.errors import CorruptTableError
from upsert.schema import TableSchema
from upsert.store import Table
from upsert.store.files.data_file import forget_open_files
from upsert.store.files.formats.arrow import check_offsets

TEXTS = [f"text {number}" for number in range(100)]


def spoilt(column: pa.Array, row: int, offset: int) -> pa.Array:
    """The same column but for one offset, as a mapped file would have it."""
    batch, out = pa.record_batch([column], ["v"]), pa.BufferOutputStream()
    with pa.ipc.new_file(out, batch.schema) as writer:
        writer.write_batch(batch)
    content = out.getvalue()
    offsets = pa.ipc.open_file(content).get_batch(0).column(0).buffers()[1]
    at = offsets.address - content.address + 4 * row
    changed = bytearray(content)
    changed[at : at + 4] = offset.to_bytes(4, "little", signed=True)
    return pa.ipc.open_file(pa.py_buffer(bytes(changed))).get_batch(0).column(0)


@given(st.lists(st.none() | st.binary(max_size=5), min_size=1, max_size=6), st.data())
def test_every_offset_that_arrow_calls_wrong_is_refused(
    values: list[bytes | None], data: st.DataObject
) -> None:
    row = data.draw(st.integers(0, len(values)))
    offset = data.draw(st.integers(-1, 9) | st.integers(-(2**31), 2**31 - 1))
    column = spoilt(pa.array(values, pa.binary()), row, offset)
    bounds = np.cumsum([0, *(len(value or b"") for value in values)])
    size, bounds[row] = bounds[-1], offset
    if bounds[0] >= 0 and bounds[-1] <= size and (np.diff(bounds) >= 0).all():
        check_offsets(column)
        check_offsets(column.slice(len(values) // 2))
        return
    with pytest.raises(ValueError, match="lies in bytes"):
        check_offsets(column)


@pytest.fixture
def damaged(tmp_path: Path) -> Table:
    """A table of one bucket and one file, in which a text in the middle begins far behind the file's end."""
    schema = TableSchema.of(
        {"id": pa.int64(), "v": pa.string(), "many": pa.list_(pa.string())}, primary_key=["id"]
    )
    table = Table.create(tmp_path / "t", schema, {"bucket": "1"})
    table.write(pa.table({"id": range(100), "v": TEXTS, "many": [[text] for text in TEXTS]}))
    forget_open_files()
    return table


def spoil(table: Table, column: str) -> str:
    (file,) = (
        Path(table.root, found)
        for found in Path(table.root).glob("bucket-0/*.arrow")
        if ".index" not in found.name
    )
    content = bytearray(file.read_bytes())
    found = pa.array(TEXTS).buffers()[1].to_pybytes()[: 4 * 101]
    at = {"v": content.find(found), "many": content.rfind(found)}[column]
    assert at > 0
    content[at + 4 * 50 : at + 4 * 51] = (1 << 30).to_bytes(4, "little")
    file.write_bytes(content)
    return file.name


@pytest.mark.parametrize("column", ["v", "many"])
def test_a_scan_and_a_lookup_of_the_row_name_the_file(damaged: Table, column: str) -> None:
    name = re.escape(spoil(damaged, column))
    with pytest.raises(CorruptTableError, match=name):
        damaged.snapshot().scan()
    with pytest.raises(CorruptTableError, match=name):
        damaged.snapshot().lookup(["id"], pa.table({"id": [50]}))


def test_a_lookup_of_other_rows_is_not_disturbed(damaged: Table) -> None:
    spoil(damaged, "v")
    found = damaged.snapshot().lookup(["id"], pa.table({"id": [7]}))
    assert found.column("v").to_pylist() == ["text 7"]
    assert damaged.snapshot().scan(columns=["id"]).num_rows == 100
