"""Combinations of codes, against numpy's rows without repeats; decimals of another scale, against Python."""

from decimal import Context, Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from upsert.arrays import combinations, rescaled


@pytest.mark.parametrize("most", [[1], [3], [1000], [4, 3], [1000, 1, 1000], [2**31] * 2])
@pytest.mark.parametrize("count", [0, 1, 50])
def test_combinations_ascend_and_every_row_has_the_number_of_its_own(most: list[int], count: int) -> None:
    random = np.random.default_rng(sum(most) + count)
    codes = [random.integers(0, each, count) for each in most]
    rows, numbers = combinations(codes)
    together = np.stack(codes, axis=1)
    expected, expected_numbers = np.unique(together, axis=0, return_inverse=True)
    assert together[rows].tolist() == expected.tolist()
    assert numbers.tolist() == expected_numbers.ravel().tolist()


SCALES = st.integers(0, 38)


@given(st.integers(1 - 10**38, 10**38 - 1), st.sampled_from([pa.decimal128, pa.decimal256]), SCALES, SCALES)
@example(341 * 10**18, pa.decimal128, 0, 18)  # Arrow makes 717633079061536536.6… of it
@example(12345, pa.decimal128, 0, 36)
@example(4, pa.decimal128, 0, 38)
def test_decimals_of_another_scale_have_their_value_or_do_not_fit(
    number: int, kind: type, scale: int, wanted: int
) -> None:
    exact = Context(prec=100)
    value = Decimal(number).scaleb(-scale, exact)
    precision = 76 if kind is pa.decimal256 else max(len(str(abs(number))), scale, 1)
    column, type_ = pa.array([value, None], kind(precision, scale)), pa.decimal128(38, wanted)
    scaled = value.scaleb(wanted, exact)
    if scaled == scaled.to_integral_value(context=exact) and scaled.copy_abs() < 10**38:
        assert rescaled(column, type_).to_pylist() == [value, None]
    else:
        with pytest.raises(pa.ArrowInvalid):
            rescaled(column, type_)
