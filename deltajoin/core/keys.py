"""Keys of joins by their codes, see `upsert.store.rows.codes` (pure).

Their columns, distinct keys a bounded number at a time, and pairs of positions with equal codes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from upsert import types
from upsert.arrays import Ints, Mask, one_array, stable_order
from upsert.errors import SchemaError
from upsert.store.rows.codes import first_of_each


def common_key_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The type in which keys of two columns are compared, or None if they cannot be.

    Integers of different width meet in the wider one; all other types must be equal.

    >>> common_key_type(pa.int32(), pa.int64())
    DataType(int64)
    """
    if left == right:
        return left if types.is_scalar(left) else None
    if pa.types.is_integer(left) and pa.types.is_integer(right):
        return max(left, right, key=lambda type_: type_.bit_width)
    return None


def common_type(found: Sequence[pa.DataType]) -> pa.DataType:
    """The type in which columns or values that meet are compared."""
    common = found[0]
    for type_ in found[1:]:
        common = common_key_type(common, type_)
    return common


def key_columns(rows: pa.Table, keys: Sequence[str], as_types: Sequence[pa.DataType]) -> list[pa.Array]:
    """Key columns of ``rows`` in the types in which both sides' keys are compared."""
    columns = []
    for name, type_ in zip(keys, as_types, strict=True):
        column = one_array(rows.column(name))
        try:
            columns.append(column if column.type == type_ else column.cast(type_))
        except pa.ArrowInvalid as cause:
            raise SchemaError(f"join key {name!r}: values must fit into {types.sql_name(type_)}") from cause
    return columns


def have_values(rows: pa.Table, columns: Sequence[str]) -> Mask:
    """Rows without a NULL in these columns.

    >>> have_values(pa.table({"a": [1, None]}), ["a"]).tolist()
    [True, False]
    """
    usable = np.ones(rows.num_rows, np.bool_)
    for name in columns:
        column = rows.column(name)
        if column.null_count:
            usable &= column.is_valid().to_numpy()
    return usable


FIRST_LOOKUP_KEYS: Final = 16_384
MAX_LOOKUP_KEYS: Final = 131_072
LOOKUP_ROWS: Final = 524_288
"""Rows that one lookup should bring at most; only a single key with more rows than that exceeds it."""


class KeyChunk(NamedTuple):
    """Some distinct keys: which positions have them, which key each has, and one position for each key."""

    positions: Ints
    keys: Ints
    first: Ints


class KeyChunks:
    """Distinct keys, by dense codes, in chunks whose size follows from how many rows the last lookup brought.

    >>> [chunk.positions.tolist() for chunk in KeyChunks(np.array([0, 1, 0]))]
    [[0, 2, 1]]
    """

    def __init__(self, codes: Ints) -> None:
        self._first = first_of_each(codes)
        is_in_order = bool(np.all(codes[1:] >= codes[:-1]))
        self._order = np.arange(len(codes)) if is_in_order else stable_order(codes)
        self._codes = codes if is_in_order else codes[self._order]
        self._size = FIRST_LOOKUP_KEYS
        self._asked = 0

    def found(self, rows: int) -> None:
        """Tell how many rows the lookup of the last chunk's keys brought."""
        wanted = LOOKUP_ROWS * self._asked // max(rows, 1)
        self._size = min(max(wanted, 1), MAX_LOOKUP_KEYS)

    def __iter__(self) -> Iterator[KeyChunk]:
        low = 0
        while low < len(self._first):
            high = min(low + self._size, len(self._first))
            self._asked = high - low
            begin, end = np.searchsorted(self._codes, [low, high])
            yield KeyChunk(self._order[begin:end], self._codes[begin:end] - low, self._first[low:high])
            low = high


class Pairs(NamedTuple):
    """Equally long arrays: position ``left[i]`` meets position ``right[i]``."""

    left: Ints
    right: Ints


def equal_pairs(left: Ints, right: Ints, *, at_most: int) -> Iterator[Pairs]:
    """Every pair of positions ``(i, j)`` with ``left[i] == right[j]``, at most so many at a time.

    Codes are small non-negative integers. Pairs come in order of ``left``; a position that has more
    partners than fit is continued in the next piece, so a hot key needs no more memory than others.

    >>> pieces = equal_pairs(np.array([5, 3]), np.array([3, 5, 5]), at_most=2)
    >>> [(piece.left.tolist(), piece.right.tolist()) for piece in pieces]
    [([0, 0], [1, 2]), ([1], [0])]
    """
    if not len(left) or not len(right):
        return
    codes = int(max(left.max(), right.max())) + 1
    counts = np.bincount(right, minlength=codes)
    starts = np.cumsum(counts) - counts
    is_sorted = bool(np.all(right[1:] >= right[:-1]))
    by_code = np.arange(len(right)) if is_sorted else stable_order(right)
    partners = counts[left]
    ends = np.cumsum(partners)
    for low in range(0, int(ends[-1]), at_most):
        high = min(low + at_most, int(ends[-1]))
        first, last = np.searchsorted(ends, [low, high - 1], side="right")
        some = np.arange(first, last + 1)
        begin = np.maximum(ends[some] - partners[some], low)
        length = np.minimum(ends[some], high) - begin
        driver = np.repeat(some, length)
        nth = np.arange(low, high) - (ends[driver] - partners[driver])
        yield Pairs(driver, by_code[starts[left[driver]] + nth])
