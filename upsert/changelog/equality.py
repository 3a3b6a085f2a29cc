"""Which pairs of rows are equal, NULL equal to NULL, of any column types (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upsert import types
from upsert.arrays import Mask, Positions, is_null, one_array
from upsert.store.rows.hashing import canonical_bytes
from upsert.store.rows.keys import as_values, equal_rows
from upsert.store.rows.merge import gather


def equal_pairs(rows: pa.Table, left: Positions, right: Positions, columns: Sequence[str]) -> Positions:
    """Which pairs (row ``left[i]``, row ``right[i]``) agree in all columns, ascending.

    Equal are NULL and NULL, NaN and NaN, maps with the same entries in any order; not -0.0 and 0.0. A column
    is looked at only where all before it were equal, the cheap ones first: rows that differ mostly do so
    soon.

    >>> rows = pa.table({"a": [1, 1, None, None]})
    >>> equal_pairs(rows, np.array([0, 1, 2]), np.array([1, 2, 3]), ["a"]).tolist()
    [0, 2]
    """
    pairs = np.arange(len(left))
    for name in sorted(columns, key=lambda name: _cost(rows.schema.field(name).type)):
        if not len(pairs):
            break
        column = rows.select([name])
        sides = [one_array(gather(column, side[pairs]).column(0)) for side in (left, right)]
        pairs = pairs[same_values(*sides)]
    return pairs


def _cost(type_: pa.DataType) -> int:
    if not types.is_scalar(type_):
        return 2
    return int(pa.types.is_string(type_) or pa.types.is_binary(type_))


def same_values(left: pa.Array, right: pa.Array) -> Mask:
    """Where two arrays of one type hold the same value, or NULL both; -0.0 is not 0.0.

    >>> nan = float("nan")
    >>> same_values(pa.array([nan, 0.0, None, 1.0]), pa.array([nan, -0.0, None, None])).tolist()
    [True, False, True, False]
    """
    return same_keys(as_values(left), as_values(right))


def same_keys(left: pa.Array, right: pa.Array) -> Mask:
    """Where two arrays of one type hold equal keys, or NULL both; -0.0 equals 0.0.

    >>> same_keys(pa.array([0.0, None]), pa.array([-0.0, 1.0])).tolist()
    [True, False]
    """
    if not types.is_scalar(left.type):
        pairs = zip(canonical_bytes(left), canonical_bytes(right), strict=True)
        return np.fromiter((one == other for one, other in pairs), np.bool_, len(left))
    same: npt.NDArray[Any] = equal_rows([left], [right])
    if left.null_count and right.null_count:
        same = same | (is_null(left) & is_null(right))
    return same
