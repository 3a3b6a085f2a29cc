"""Parts of a file that cannot have a wanted row are not decoded, and no row is lost by that."""

import io
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.upsert.store.samples import KEY_VALUES, Runs, multiset, table_of
from upsert.arrays import min_max
from upsert.schema import Column, TableSchema
from upsert.store.alterations import AddColumn, DropColumn, RenameColumn, WidenColumn
from upsert.store.files.data_file import forget_open_files
from upsert.store.files.formats import base, format_called
from upsert.store.files.formats.base import Compression, FileForm
from upsert.store.files.formats.parquet import ParquetRows
from upsert.store.predicate import parse_where
from upsert.store.read import snapshot
from upsert.store.rows.layout import Layout
from upsert.store.table import Table

PARQUET = format_called("parquet")
OPERATORS = ["=", "!=", "<", "<=", ">", ">="]


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PART_BYTES", 0)
    monkeypatch.setattr(base, "_LEAST_ROWS", 2)


@pytest.fixture
def groups_read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The numbers of the row groups that were decoded."""
    found: list[int] = []
    read = ParquetRows.read

    def watched(self: ParquetRows, part: int, names: list[str]) -> pa.RecordBatch:
        found.append(part)
        return read(self, part, names)

    monkeypatch.setattr(ParquetRows, "read", watched)
    forget_open_files()
    yield found
    forget_open_files()


def bounds(values: pa.Array) -> list[tuple[Any, Any]] | None:
    out = io.BytesIO()
    PARQUET.write(out, pa.record_batch([values], names=["x"]), Compression())
    found = PARQUET.open(pa.py_buffer(out.getvalue())).bounds("x")
    return None if found is None else list(zip(*(end.to_pylist() for end in found), strict=True))


WIDER = [] if int(pa.__version__.partition(".")[0]) >= 25 else [-math.inf]
"""Before pyarrow 25, the upper bound of -∞ beside NaN was the least finite number, which loses no row."""


@pytest.mark.parametrize("type_", KEY_VALUES, ids=str)
def test_bounds_of_a_part_are_those_of_its_values(type_: pa.DataType) -> None:
    values = pa.array([None, *(value for value in KEY_VALUES[type_] if value not in WIDER), None], type_)
    parts = (min_max(values.slice(start, 2)) for start in range(0, len(values), 2))
    expected = [(low.as_py(), high.as_py()) for low, high in parts]
    assert bounds(values) == [(None, None) if low != low else (low, high) for low, high in expected]


def test_what_parquet_does_not_know_bounds_nothing() -> None:
    assert bounds(pa.array(["a" * 5000, "b"])) == [(None, None)]
    assert bounds(pa.array([float("nan"), 1.0])) == [(1.0, 1.0)]
    assert bounds(pa.array([[1], [2]])) is None
    beyond = pa.array([2**60, -(2**60)], pa.timestamp("us"))
    out = io.BytesIO()
    PARQUET.write(
        out, pa.record_batch({"a.b": [1, 2], "a": [{"b": 5}, {"b": 6}], "t": beyond}), Compression()
    )
    stored = PARQUET.open(pa.py_buffer(out.getvalue()))
    assert stored.bounds("a.b") is None
    assert [end.cast(pa.int64()).to_pylist() for end in stored.bounds("t") or ()] == [[-(2**60)], [2**60]]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Layout, list[Any], list[Any]]:
    """A table of any two types with a key or without one, what is written to it, and a filter."""
    types = {name: draw(st.sampled_from(list(KEY_VALUES))) for name in ("k", "v")}
    schema = TableSchema.of(types, primary_key=draw(st.sampled_from([["k"], []])))
    layout = replace(Layout.of(schema, 1, ()), file_form=FileForm("parquet"))
    row = st.tuples(
        st.sampled_from(KEY_VALUES[types["k"]]), st.none() | st.sampled_from(KEY_VALUES[types["v"]])
    )
    kinds = ["+I", "+U", "-D"] if schema.primary_key else ["+I"]
    steps = draw(
        st.lists(st.lists(st.tuples(st.sampled_from(kinds), row), min_size=1, max_size=9), max_size=4)
    )

    def predicate() -> Any:
        name = draw(st.sampled_from(["k", "v"]))
        operator = draw(st.sampled_from([*OPERATORS, "in", "not in", "is null", "is not null"]))
        value = st.sampled_from(KEY_VALUES[types[name]])
        if operator.endswith("null"):
            return name, operator, None
        return name, operator, draw(st.lists(value, max_size=3) if operator.endswith("in") else value)

    where = [[predicate() for _ in range(draw(st.integers(1, 2)))] for _ in range(draw(st.integers(1, 2)))]
    return layout, steps, where


@settings(max_examples=60)
@given(cases())
def test_a_filtered_scan_is_the_filter_of_the_whole_scan(case: tuple[Layout, list[Any], list[Any]]) -> None:
    layout, steps, where = case
    with TemporaryDirectory() as folder:
        runs = Runs(Path(folder), layout)
        for step in steps:
            runs.write(table_of(layout.schema, [row for _, row in step], [kind for kind, _ in step]))
        whole = runs.snapshot().scan()
        expected = parse_where(where, layout.schema).apply(whole)
        assert multiset(runs.snapshot().scan(where=where)) == multiset(expected)


def numbers(start: int, stop: int) -> pa.Table:
    return pa.table({"id": range(start, stop), "n": [i % 10 for i in range(start, stop)]})


def parquet_table(folder: Path) -> Table:
    schema = TableSchema.of({"id": pa.int32(), "n": pa.int64()}, primary_key=["id"])
    return Table.create(folder / "t", schema, {"file.format": "parquet", "bucket": "1"})


def test_a_filter_on_the_key_decodes_the_row_groups_of_its_keys(
    tmp_path: Path, groups_read: list[int]
) -> None:
    table = parquet_table(tmp_path)
    table.write(numbers(0, 40))
    found = table.snapshot().scan(where=[("id", ">=", 11), ("id", "<", 14)])
    assert found["id"].to_pylist() == [11, 12, 13]
    assert groups_read == [5, 6]
    groups_read.clear()
    assert table.snapshot().scan(where=[("n", ">", 9)]).num_rows == 0
    assert groups_read == []


def test_of_several_runs_only_bounds_of_the_key_count(
    tmp_path: Path, groups_read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer row that a filter on another column would skip hides an older one that it would not."""
    monkeypatch.setattr(snapshot, "_ROWS_OF_KEY", 1)  # so few rows are read, and no key is looked up
    table = parquet_table(tmp_path)
    table.write(numbers(0, 40))
    table.write(pa.table({"id": [5, 30], "n": [100, 100]}))
    assert 5 not in table.snapshot().scan(where=[("n", "=", 5)])["id"].to_pylist()
    groups_read.clear()
    found = table.snapshot().scan(where=[("id", "=", 5), ("n", "<", 1000)])
    assert found.to_pylist() == [{"id": 5, "n": 100}]
    assert groups_read == [2, 0]


def test_bounds_are_found_by_the_field_and_widened_with_it(tmp_path: Path, groups_read: list[int]) -> None:
    table = parquet_table(tmp_path)
    table.write(pa.table({"id": range(8), "n": range(8)}))
    table.alter(RenameColumn("n", "old"), AddColumn(Column("n", pa.int16())))
    assert table.snapshot().scan(where=[("old", "=", 7)])["id"].to_pylist() == [7]
    assert groups_read == [3]
    assert table.snapshot().scan(where=[("n", ">=", 0)]).num_rows == 0
    assert table.snapshot().scan(where=[("n", "is null", None)]).num_rows == 8
    table.write(pa.table({"id": [100], "old": [1], "n": [5]}, table.schema.arrow))
    table.compact()
    table.alter(WidenColumn("n", pa.int64()), DropColumn("old"))
    assert table.snapshot().scan(where=[("n", "=", 5)])["id"].to_pylist() == [100]
    assert table.snapshot().scan(where=[("n", "<", 2**40)])["id"].to_pylist() == [100]
