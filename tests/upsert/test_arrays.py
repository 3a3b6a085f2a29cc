"""Combinations of codes, against numpy's rows without repeats."""

import numpy as np
import pytest

from upsert.arrays import combinations


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
