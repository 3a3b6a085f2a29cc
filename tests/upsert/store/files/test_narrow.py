"""Narrow columns: any rows of them come back exactly, and they take fewer bytes."""

import io
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upsert.store.files.test_file_formats import batches, exact
from upsert.schema import TableSchema
from upsert.store import Table
from upsert.store.files.data_file import DataFile
from upsert.store.files.formats import format_called, narrow
from upsert.store.files.formats.base import Compression
from upsert.store.files.formats.narrow import NarrowRows, narrowed
from upsert.types import TIMESTAMP

ARROW = format_called("arrow")


@pytest.fixture(autouse=True)
def every_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrow, "LEAST_ROWS", 1)


def read(rows: pa.RecordBatch, chosen: Any, plain: tuple[str, ...] = ()) -> pa.RecordBatch:
    """Some rows of a file with these."""
    out = io.BytesIO()
    ARROW.write(out, rows, Compression("narrow", plain=plain))
    stored = ARROW.open(pa.py_buffer(out.getvalue()))
    assert stored.schema.equals(rows.schema, check_metadata=True)
    found = stored.read(0, rows.schema.names).take(pa.array(chosen, pa.int64()))
    return stored.widened(found) if isinstance(stored, NarrowRows) else found


def assert_same(found: pa.RecordBatch, expected: pa.RecordBatch) -> None:
    found.validate(full=True)
    assert found.schema.equals(expected.schema, check_metadata=True)
    assert [exact(one.to_pylist()) for one in found.columns] == [
        exact(one.to_pylist()) for one in expected.columns
    ]


@given(rows=batches(ARROW), data=st.data())
def test_any_rows_of_any_types_come_back_exactly(rows: pa.RecordBatch, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, rows.num_rows - 1)))
    assert_same(read(rows, chosen), rows.take(pa.array(chosen, pa.int64())))


WIDE = [pa.int16(), pa.int32(), pa.int64(), pa.date32(), pa.timestamp("us"), TIMESTAMP, pa.time32("ms")]


@given(data=st.data(), type_=st.sampled_from(WIDE))
def test_numbers_of_any_range_come_back_exactly(data: st.DataObject, type_: pa.DataType) -> None:
    bits = type_.bit_width
    low = data.draw(st.integers(-(1 << bits - 1), (1 << bits - 1) - 1))
    high = min((1 << bits - 1) - 1, low + (1 << data.draw(st.integers(0, bits))))
    values = data.draw(st.lists(st.none() | st.integers(low, high), min_size=1))
    numbers = pa.array(values, getattr(pa, f"int{bits}")())
    found = read(pa.record_batch({"a": numbers.view(type_)}), np.arange(len(values))[::-1]).column(0)
    assert found.type == type_
    assert found.view(numbers.type).to_pylist() == values[::-1], "also beyond what Python has dates for"


def test_each_kind_of_column_takes_fewer_bytes_and_a_plain_one_stays() -> None:
    half = np.where(np.arange(1000) == 7, 0.1, np.arange(1000) / 2)
    half[8] = math.nan
    rows = pa.record_batch(
        {
            "id": pa.array(range(1000)),
            "byte": pa.array([n % 256 for n in range(1000)]),
            "more": pa.array([n % 257 for n in range(1000)]),
            "far": pa.array([10**15 + n % 200 for n in range(1000)]),
            "at": pa.array([10**15 + n * 1000 for n in range(1000)], TIMESTAMP),
            "half": pa.array(half, mask=np.arange(1000) == 7),
            "third": pa.array([n / 3 for n in range(1000)]),
            "word": pa.array(["yes", None, "no", ""] * 250),
            "name": pa.array([f"name {n}" for n in range(1000)]),
            "gone": pa.nulls(1000, pa.int64()),
        }
    )
    types = narrowed(rows, ["id"]).schema.types
    assert types == [
        pa.int64(), pa.uint8(), pa.uint16(), pa.uint8(), pa.uint32(), pa.float32(), pa.float64(), pa.uint8(),
        pa.string(), pa.uint8(),
    ]  # fmt: skip
    assert_same(read(rows, [999, 8, 7, 7, 0], ("id",)), rows.take(pa.array([999, 8, 7, 7, 0])))


def test_a_slice_with_an_offset_is_written_as_it_is() -> None:
    rows = pa.record_batch(
        {
            "a": [None, 1.5, 2.5, None],
            "b": ["x", "y", "y", None],
            "c": [1, 2, 3, 4],
            "d": [1.5, 1.5, 1.5, 1.5 + 1e-9],
        }
    )
    assert_same(read(rows.slice(1), [0, 1, 2]), rows.slice(1))


def test_a_table_has_narrow_files_and_those_that_are_plain_from_before(tmp_path: Any) -> None:
    schema = TableSchema.of({"id": pa.int64(), "n": pa.int64()}, primary_key=["id"])
    for codec in ("none", "narrow"):
        table = Table.create(tmp_path / codec, schema, {"file.compression": codec, "write-only": "true"})
        for number in range(3):
            table.write(pa.table({"id": range(number, 3000), "n": [7 + number] * (3000 - number)}))
        opened = [DataFile.open(table.root, table.layout, one) for one in table.snapshot().files.entries]
        assert {file.is_mapped for file in opened} == {codec == "none"}
        assert {file.column("id").type for file in opened} == {pa.int64()}
    plain = Table.open(tmp_path / "none")
    narrow_table = Table.open(tmp_path / "narrow")
    for read_rows in (lambda it: it.snapshot().scan(), lambda it: it.changes(since=1)):
        assert read_rows(plain).sort_by("id") == read_rows(narrow_table).sort_by("id")
    sizes = [sum(e.bytes for e in it.snapshot().files.entries) for it in (narrow_table, plain)]
    assert sizes[0] < 0.7 * sizes[1]
