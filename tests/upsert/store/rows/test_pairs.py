"""Rows of two tables whose keys are equal, beside a loop over all pairs."""

import math
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from upsert.store.rows.pairs import EqualRows

VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int32(), [1, 2, None]),
    (pa.float64(), [0.0, -0.0, math.nan, None, 1.0]),
    (pa.float32(), [0.0, -0.0, math.nan, None]),
    (pa.string(), ["a", "b", "", None]),
    (pa.bool_(), [True, None]),
    (pa.duration("us"), [1, 2]),
    (pa.time64("us"), [1, 2]),
]


def are_equal(one: Any, other: Any) -> bool:
    return one is not None and (one == other or (one != one and other is not None and other != other))


@pytest.mark.parametrize("seed", range(100))
def test_pairs_are_those_of_a_loop(seed: int) -> None:
    random = Random(seed)
    kinds = random.choices(VALUES, k=random.randrange(1, 4))

    def some(count: int) -> list[pa.Array]:
        return [pa.array(random.choices(values, k=count), type_) for type_, values in kinds]

    kept, asked = some(random.randrange(8)), some(random.randrange(8))
    rows = EqualRows(kept)
    met = rows.met(asked)
    found = [
        pair
        for pairs in rows.pairs(met, random.randrange(1, 5))
        for pair in zip(*(each.tolist() for each in pairs), strict=True)
    ]
    expected = [
        (mine, own)
        for mine in range(len(asked[0]))
        for own in range(len(kept[0]))
        if all(are_equal(a[mine].as_py(), k[own].as_py()) for a, k in zip(asked, kept, strict=True))
    ]
    assert sorted(found) == expected
    assert sorted(rows.rows(met).tolist()) == sorted({own for _, own in expected})
    assert met.counts.sum() == len(expected)
