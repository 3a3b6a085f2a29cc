"""Order and equality of keys."""

from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import sort_key
from tests.upsert.store.samples import KEY_VALUES, canonical
from upsert.store.rows import keys
from upsert.store.rows.keys import equal_at, equal_rows, grouped_by, key_bytes, order_by

TYPES = list(KEY_VALUES)


@st.composite
def key_rows(draw: st.DrawFn, max_columns: int = 3) -> tuple[list[pa.DataType], list[tuple[Any, ...]]]:
    """Rows over one to three columns of any key types, with many repeats."""
    types = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=max_columns))
    row = st.tuples(*(st.sampled_from(KEY_VALUES[type_]) for type_ in types))
    return types, draw(st.lists(row, max_size=12))


def columns_of(types: list[pa.DataType], rows: list[tuple[Any, ...]]) -> list[pa.Array]:
    return [pa.array([row[i] for row in rows], type_) for i, type_ in enumerate(types)]


@given(key_rows())
def test_rows_are_grouped_by_key_as_they_are_ordered(case):
    """But for the order of equal ones."""
    types, rows = case
    ordered, grouped = order_by(columns_of(types, rows)), grouped_by(columns_of(types, rows))
    assert grouped.numbers.tolist() == ordered.numbers.tolist()
    assert sorted(grouped.rows.tolist()) == list(range(len(rows)))
    assert [ordered.numbers[row] for row in grouped.firsts] == list(range(len(ordered.firsts)))


@given(key_rows())
def test_rows_are_ordered_by_key_and_equal_keys_keep_their_order(case):
    types, rows = case
    order = order_by(columns_of(types, rows))
    expected = sorted(range(len(rows)), key=lambda i: tuple(map(sort_key, rows[i])))
    assert order.rows.tolist() == expected


@given(key_rows())
def test_first_and_last_row_of_each_key_are_those_of_a_dict(case):
    types, rows = case
    order = order_by(columns_of(types, rows))
    firsts: dict[Any, int] = {}
    lasts: dict[Any, int] = {}
    for i, row in enumerate(rows):
        firsts.setdefault(tuple(map(canonical, row)), i)
        lasts[tuple(map(canonical, row))] = i
    assert sorted(order.firsts.tolist()) == sorted(firsts.values())
    assert sorted(order.lasts.tolist()) == sorted(lasts.values())
    assert [order.rows[i] for i in order.starts] == order.firsts.tolist()


@given(key_rows(), st.randoms())
def test_rows_are_equal_as_python_values_are_and_null_equals_nothing(case, rng):
    types, rows = case
    left = [tuple(rng.choice([value, value, None]) for value in row) for row in rows]
    right = rng.sample(rows, len(rows))
    expected = [
        None not in one and tuple(map(canonical, one)) == tuple(map(canonical, other))
        for one, other in zip(left, right, strict=True)
    ]
    assert equal_rows(columns_of(types, left), columns_of(types, right)).tolist() == expected


def test_order_of_sixteen_byte_hashes_is_that_of_their_bytes():
    values = [bytes([a, *([0] * 14), b]) for a in (255, 0, 128) for b in (1, 0, 255)]
    order = order_by([pa.array(values, pa.binary(16))])
    assert [values[i] for i in order.rows] == sorted(values)


@pytest.mark.parametrize("seed", range(8))
def test_numbers_are_ordered_as_sorting_by_all_of_them_says(seed: int) -> None:
    """Few and many rows of one first number, in sorted runs and in no order; equal rows stay in theirs."""
    random = np.random.default_rng(seed)
    for values, runs in product((1, 7, 900, 30_000, 1 << 40), (None, 1, 3)):
        columns = [random.integers(-values, values + 1, 2000) for _ in range(3)]
        if runs is not None:
            columns[0] = np.concatenate([np.sort(part) for part in np.array_split(columns[0], runs)])
        for some in (columns[:1], columns[:2], [*columns, columns[0]]):
            order = order_by([pa.array(column) for column in some])
            assert order.rows.tolist() == np.lexsort(some[::-1]).tolist(), (values, runs, len(some))


@pytest.mark.parametrize("type_", [pa.string(), pa.binary()], ids=str)
def test_texts_too_large_for_one_array_are_ordered_too(type_, monkeypatch):
    """Keys of a merge of many files may exceed 2 GB; here the limit is 0."""
    values = pa.array(["b", "", "a", "b"]).cast(type_)
    whole = order_by([values, values])
    monkeypatch.setattr(keys, "_MAX_BYTES", 0)
    for columns in ([values], [values, values], [pa.chunked_array([values.slice(0, 1), values.slice(1)])]):
        order = order_by(columns)
        assert (order.rows.tolist(), order.is_first.tolist()) == (
            whole.rows.tolist(),
            whole.is_first.tolist(),
        )


@pytest.mark.parametrize("type_", [pa.string(), pa.int64()], ids=str)
def test_chunked_columns_are_ordered_as_whole_ones(type_):
    values = pa.array(np.random.default_rng(3).integers(0, 50, 400)).cast(type_)
    chunked = pa.chunked_array([values.slice(0, 100), values.slice(100, 0), values.slice(100)])
    assert order_by([chunked]).rows.tolist() == order_by([values]).rows.tolist()
    assert order_by([chunked, chunked]).rows.tolist() == order_by([values]).rows.tolist()


@given(key_rows())
def test_keys_as_bytes_compare_as_keys(case):
    """Texts with NUL inside, negative numbers, NaN, several columns: whatever the types."""
    types, rows = case
    columns = columns_of(types, rows)
    order = order_by(columns)
    ranks = np.empty(len(rows), np.int64)
    ranks[order.rows] = np.cumsum(order.is_first)
    found = [key_bytes([column.slice(row, 1) for column in columns]) for row in range(len(rows))]
    numbers = {key: number for number, key in enumerate(sorted(set(found)), 1)}
    assert [numbers[key] for key in found] == ranks.tolist()


@pytest.mark.parametrize("type_", [pa.int64(), pa.date32(), pa.decimal128(12, 2), pa.string()])
def test_null_equals_nothing_at_any_position(type_: pa.DataType) -> None:
    values = pa.array([0, 0, None, None, 1], pa.int32()).cast(type_)
    others = pa.array([None, 0, 1], pa.int32()).cast(type_)
    at = np.array([0, 1, 0, 1, 2])
    assert equal_at(values, others, at).tolist() == [False, True, False, False, True]
