"""Codes of rows: equal for equal values of every type, as Spark's join keys and rows of the store are."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from upsert.arrays import stable_order
from upsert.store.rows.codes import (
    codes_of_keys,
    codes_of_rows,
    combined,
    dense,
    first_of_each,
    numbers_of_keys,
)

STRUCT = pa.struct([("x", pa.float64()), ("y", pa.list_(pa.int32()))])
EQUAL: list[tuple[pa.DataType, list[Any], list[int]]] = [
    (pa.float64(), [0.0, -0.0, math.nan, -math.nan, None, 1.0], [0, 0, 1, 1, 2, 3]),
    (pa.float32(), [-0.0, 0.0, math.nan, None, math.inf], [0, 0, 1, 2, 3]),
    (pa.list_(pa.int64()), [[1], [1, 2], [1], None, [], [None]], [0, 1, 0, 2, 3, 4]),
    (pa.list_(pa.float64()), [[-0.0], [0.0], [math.nan], [math.nan]], [0, 0, 1, 1]),
    (
        pa.map_(pa.string(), pa.int64()),
        [[("a", 1), ("b", 2)], [("b", 2), ("a", 1)], [("a", 1)], None],
        [0, 0, 1, 2],
    ),
    (STRUCT, [{"x": 0.0, "y": [1]}, {"x": -0.0, "y": [1]}, {"x": None, "y": [1]}, None], [0, 0, 1, 2]),
    (pa.string(), ["a", "b", "a", None, ""], [0, 1, 0, 2, 3]),
    (pa.bool_(), [True, False, None, True], [0, 1, 2, 0]),
]


@pytest.mark.parametrize(("type_", "values", "codes"), EQUAL, ids=lambda value: str(value)[:20])
def test_values_have_one_code_if_and_only_if_they_are_equal(
    type_: pa.DataType, values: list[Any], codes: list[int]
) -> None:
    column = pa.array(values, type_)
    assert codes_of_keys([column]).tolist() == codes
    same = numbers_of_keys([column])
    assert dense(same).tolist() == codes


ZEROS = {0: [0, 1, 2, 2, 3, 4], 1: [0, 1, 2, 3, 4], 3: [0, 1, 2, 2], 5: [0, 1, 2, 3]}
"""Codes where zeros of different sign are told apart, by the number of the case."""


@pytest.mark.parametrize("number", range(len(EQUAL)))
def test_equal_rows_have_one_code_and_zeros_of_different_sign_have_two(number: int) -> None:
    type_, values, codes = EQUAL[number]
    rows = pa.table([pa.array(values, type_)], names=["a"])
    assert codes_of_rows(rows).tolist() == ZEROS.get(number, codes)


def test_several_columns_are_equal_together() -> None:
    columns = [pa.array([1, 1, None, None, 1]), pa.array(["a", "b", "a", "a", "a"])]
    assert codes_of_keys(columns).tolist() == [0, 1, 2, 2, 0]
    assert dense(numbers_of_keys(columns)).tolist() == [0, 1, 2, 2, 0]


@pytest.mark.parametrize("values", [[], [5], [3, 1, 3, 2, 1], [2**62, -(2**62), 2**62]])
def test_numbers_of_integers_are_dense(values: list[int]) -> None:
    numbers = numbers_of_keys([pa.array(values, pa.int64())])
    assert sorted(set(numbers.tolist())) == list(range(len(set(values))))
    ranks = {value: rank for rank, value in enumerate(sorted(set(values)))}
    assert numbers.tolist() == [ranks[value] for value in values]


def test_positions_are_in_the_order_of_their_codes_and_then_their_own() -> None:
    assert stable_order(np.array([2, 0, 2, 1, 0])).tolist() == [1, 4, 3, 0, 2]
    assert stable_order(np.array([2**31 - 1, 0, 2**31 - 1])).tolist() == [1, 0, 2]
    assert first_of_each(np.array([1, 0, 1, 2, 0])).tolist() == [1, 0, 3]
    assert first_of_each(np.array([], np.int64)).tolist() == []


def test_rows_of_codes_are_told_apart() -> None:
    assert combined([np.array([0, 1, 1, 0]), np.array([1, 0, 1, 1])]).tolist() == [0, 1, 2, 0]
    assert combined([np.array([], np.int64), np.array([], np.int64)]).tolist() == []


def test_codes_of_many_columns_do_not_overflow() -> None:
    large = np.array([2**31, 2**31 - 1, 2**31, 0])
    assert combined([large, large, large[::-1], large]).tolist() == [0, 1, 2, 3]
    assert combined([large[[0, 1, 0]]] * 5).tolist() == [0, 1, 0]
