"""Order and equality of keys, column by column and without a loop over rows (pure).

Keys compare as Spark compares them: numbers by value with NaN equal to itself and above all others, texts by
their UTF-8 bytes, binaries by unsigned bytes. Where values are compared as a key, in PRIMARY KEYs,
partitions, joins, groups and whole rows of a table without a PRIMARY KEY, -0.0 equals 0.0, as in Spark; a
table's keys are stored, and a group's come out, as 0.0. Any other column keeps its values: a row whose -0.0
becomes 0.0 has changed. NaN is one value everywhere, whatever its bits. In the order that ``sequence.field``
declares for the rows of a key the highest is last, and NULL is lowest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isqrt
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.arrays import Mask, Positions, decimal_words, is_null, one_array
from upsert.store.rows.hashing import (
    canonical_bytes,
    fixed_bytes,
    fixed_width,
    is_text,
    normalised_floats,
)

Column: TypeAlias = pa.Array | pa.ChunkedArray

_MAX_BYTES: Final = 1 << 30
"""Arrow's texts end at 2 GB an array, whatever the chunks of a column; larger ones need wider offsets."""


class KeyOrder(NamedTuple):
    """A stable order of rows by key: row numbers, and whether each begins a new key."""

    rows: npt.NDArray[np.int64]
    is_first: npt.NDArray[np.bool_]

    @property
    def firsts(self) -> Positions:
        """Of each key, the row that came first in the input; keys ascending."""
        return self.rows[self.is_first]

    @property
    def lasts(self) -> Positions:
        """Of each key, the row that came last in the input; keys ascending."""
        return self.rows[np.append(self.is_first[1:], True)] if len(self.rows) else self.rows

    @property
    def numbers(self) -> Positions:
        """Of each row the number of its key, keys ascending from 0."""
        found = np.empty(len(self.rows), dtype=np.int64)
        found[self.rows] = np.cumsum(self.is_first) - 1
        return found

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """Where in ``rows`` each key begins."""
        return np.flatnonzero(self.is_first)


def order_by(columns: Sequence[Column]) -> KeyOrder:
    """The rows in ascending order of these columns, rows of equal keys in input order; no NULLs.

    >>> order = order_by([pa.array(["b", "a", "b"])])
    >>> order.rows.tolist(), order.lasts.tolist()
    ([1, 0, 2], [1, 2])
    """
    if len(columns) == 1 and is_text(columns[0].type):
        return _text_order(columns[0])
    codes = [code for column in columns for code in _codes(column)]
    rows = _in_order(codes)
    is_first = np.ones(len(rows), dtype=np.bool_)
    if len(rows):
        is_first[1:] = False
        for code in codes:
            ordered = code[rows]
            is_first[1:] |= ordered[1:] != ordered[:-1]
    return KeyOrder(rows, is_first)


_FEW_ROWS: Final = 1024
_LENGTH_OF_RUNS: Final = 64
"""Of sorted runs that are longer a stable sort makes one faster than a plain sort."""

_REPEATED: Final = 4
"""Of eight times as many rows as the root of their number, so many repeats show that one in ten repeats."""


def _in_order(codes: Sequence[npt.NDArray[Any]]) -> Positions:
    """The rows in ascending order of some codes, the first of them most significant; equal rows as they come.

    Often the first of several codes alone tells nearly all rows apart. Then they are sorted by that, and
    those that have the same one by the others: in half of the time that it takes to sort all rows by all
    codes, or in an eighth, if they come in sorted runs.
    """
    first, *others = codes
    if not others:
        return np.argsort(first, kind="stable")
    count = len(first)
    is_in_runs = bool(np.count_nonzero(first[1:] < first[:-1]) * _LENGTH_OF_RUNS < count)
    if count < _FEW_ROWS or _repeats(first, is_in_runs=is_in_runs):
        return np.lexsort(codes[::-1])  # which takes the most significant code last
    rows = np.argsort(first, kind="stable" if is_in_runs else None)
    ordered = first[rows]
    is_as_before = ordered[1:] == ordered[:-1]
    if is_as_before.any():
        is_tied = np.append(False, is_as_before)
        is_tied[:-1] |= is_as_before
        at = np.flatnonzero(is_tied)
        some = rows[at]
        rows[at] = some[np.lexsort([some, *(code[some] for code in others[::-1]), ordered[at]])]
    return rows


def _repeats(code: npt.NDArray[Any], *, is_in_runs: bool) -> bool:
    """Whether many rows seem to have the code of another one."""
    count = len(code)
    if is_in_runs and 10 * np.count_nonzero(code[1:] == code[:-1]) > count:
        return True
    some = np.sort(code[:: max(1, isqrt(count) // 8)])
    return bool(np.count_nonzero(some[1:] == some[:-1]) > _REPEATED)


def grouped_by(columns: Sequence[Column]) -> KeyOrder:
    """As ``order_by``, rows of equal keys in any order: for one column of integers in a third of the time."""
    if len(columns) > 1 or not is_integer_like(columns[0].type):
        return order_by(columns)
    values = fixed_width(one_array(columns[0]))
    rows = np.argsort(values)
    ordered = values[rows]
    is_first = np.ones(len(rows), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return KeyOrder(rows, is_first)


def equal_rows(left: Sequence[Column], right: Sequence[Column]) -> npt.NDArray[np.bool_]:
    """Where all columns of ``left`` equal those of ``right``; NULL equals nothing."""
    equal = np.ones(len(left[0]), dtype=np.bool_)
    for one, other in zip(left, right, strict=True):
        equal &= _equal(one_array(one), one_array(other))
    return equal


def equal_at(values: pa.Array, others: pa.Array, at: Positions) -> Mask:
    """Where values equal others at some positions; NULL equals nothing."""
    if not _is_fixed(values.type):
        return _equal(values, others.take(pa.array(at)))
    found: Mask = fixed_width(values) == fixed_width(others)[at]
    if values.null_count:
        found &= ~is_null(values)
    if others.null_count:
        found &= ~is_null(others)[at]
    return found


def _is_fixed(type_: pa.DataType) -> bool:
    """Whether equal values of a type have equal numbers of `fixed_width`."""
    return not (is_text(type_) or pa.types.is_decimal(type_) or pa.types.is_fixed_size_binary(type_))


def _equal(one: pa.Array, other: pa.Array) -> npt.NDArray[np.bool_]:
    if not _is_fixed(one.type):
        same = pc.fill_null(pc.equal(one, other), False)
        texts: npt.NDArray[np.bool_] = same.to_numpy(zero_copy_only=False)
        return texts
    numbers: npt.NDArray[np.bool_] = fixed_width(one) == fixed_width(other)
    for array in (one, other):
        if array.null_count:
            numbers &= ~is_null(array)
    return numbers


def same_values(left: pa.Array, right: pa.Array) -> Mask:
    """Where two arrays of one type hold the same value, or NULL both; -0.0 is not 0.0."""
    return same_keys(as_values(left), as_values(right))


def same_keys(left: pa.Array, right: pa.Array) -> Mask:
    """Where two arrays of one type hold equal keys, or NULL both; -0.0 equals 0.0."""
    if not types.is_scalar(left.type):
        pairs = zip(canonical_bytes(left), canonical_bytes(right), strict=True)
        return np.fromiter((one == other for one, other in pairs), np.bool_, len(left))
    same = equal_rows([left], [right])
    if left.null_count and right.null_count:
        same |= is_null(left) & is_null(right)
    return same


def key_bytes(columns: Sequence[Column]) -> bytes:
    """The key in the one row of these columns, as bytes that compare as the keys do; no NULLs."""
    return b"".join(_ordered_bytes(one_array(column)) for column in columns)


def key_of_row(rows: pa.Table | pa.RecordBatch, key: Sequence[str], row: int) -> bytes:
    """``key_bytes`` of one row by the columns of a key; -1 is the last row."""
    at = row % rows.num_rows
    return key_bytes([rows.column(name).slice(at, 1) for name in key])


MAX_BOUND: Final = 1024
"""Bytes of a key of a file's first or last row that its manifest repeats."""


def lower_bound(key: bytes) -> bytes:
    """A key as a bound from below, cut where it is long: no key of which it is the beginning is less."""
    return key[:MAX_BOUND]


def upper_bound(key: bytes) -> bytes:
    """A key as a bound from above, cut where it is long and then more than any key with that beginning.

    >>> upper_bound(b"a" * 2000) > b"a" * 2000, len(upper_bound(b"a" * 2000)), upper_bound(b"a")
    (True, 1024, b'a')
    """
    if len(key) <= MAX_BOUND:
        return key
    beginning = key[:MAX_BOUND].rstrip(b"\xff")
    return beginning[:-1] + bytes([beginning[-1] + 1]) if beginning else key


def _ordered_bytes(array: pa.Array) -> bytes:
    if is_text(array.type):
        text: bytes = array.view(pa.binary())[0].as_py()
        # a mark ends the text, so that a text goes before those that it is the beginning of
        return text.replace(b"\0", b"\0\xff") + b"\0\0"
    words = []
    for (code,) in _codes(array):
        bits = 8 * code.itemsize
        value = int(code) + (1 << (bits - 1) if code.dtype.kind == "i" else 0)
        words.append(value.to_bytes(code.itemsize, "big"))
    return b"".join(words)


def is_integer_like(type_: pa.DataType) -> bool:
    """Whether values are integers in memory whose order is the key's order."""
    return bool(pa.types.is_integer(type_) or pa.types.is_date32(type_) or pa.types.is_timestamp(type_))


def _codes(column: Column) -> list[npt.NDArray[Any]]:
    """Numbers in the order of the column's values; several arrays where one is too narrow."""
    type_ = column.type
    if is_text(type_):
        order = _text_order(column)
        ranks = np.empty(len(order.rows), dtype=np.int64)
        ranks[order.rows] = np.cumsum(order.is_first)
        return [ranks]
    array = one_array(column)
    if pa.types.is_fixed_size_binary(type_):
        words = np.ascontiguousarray(fixed_bytes(array)).view(">u8").astype(np.uint64)
        return [words[:, 0], words[:, 1]]
    if pa.types.is_decimal(type_):
        low, high = decimal_words(array)
        return [low] if type_.precision <= 18 else [high, low.view(np.uint64)]
    values = fixed_width(array)
    if pa.types.is_floating(type_):
        # bits of negative floats count downwards; flipping all but the sign turns them round
        mask = values.dtype.type(np.iinfo(values.dtype).max)
        values = np.where(values < 0, values ^ mask, values)
    return [values]


def _text_order(column: Column) -> KeyOrder:
    if column.nbytes > _MAX_BYTES:
        column = column.cast(pa.large_string() if pa.types.is_string(column.type) else pa.large_binary())
    rows = pc.sort_indices(column).to_numpy().astype(np.int64)
    is_first = np.ones(len(rows), dtype=np.bool_)
    if len(rows):
        ordered = column.take(pa.array(rows))
        is_first[1:] = pc.not_equal(ordered[1:], ordered[:-1]).to_numpy(zero_copy_only=False)
    return KeyOrder(rows, is_first)


def as_key(array: pa.Array) -> pa.Array:
    """The array with every -0.0 in it as 0.0, and with one NaN; floats inside nested values, too."""
    return _with_floats(array, normalised_floats)


def as_values(array: pa.Array) -> pa.Array:
    """The array with its floats as whole numbers, the same for the same value and for nothing else.

    What compares keys compares values where it is given these.
    """
    return _with_floats(array, _bits)


def orderable(value: pa.Array) -> pa.Array:
    """Values that Arrow orders as Spark does these: NaN is the greatest number, and -0.0 goes before 0.0."""
    if pa.types.is_boolean(value.type):
        return value.cast(pa.int8())
    if pa.types.is_floating(value.type):
        return _turned(as_values(value))
    return value


def of_orderable(numbers: pa.Array, type_: pa.DataType) -> pa.Array:
    """The values of a type of which ``orderable`` gave these.

    >>> of_orderable(orderable(pa.array([-0.0, 1.5, None])), pa.float64()).to_pylist()
    [-0.0, 1.5, None]
    """
    if pa.types.is_floating(type_):
        return _turned(numbers).view(type_)
    return numbers.cast(type_)


def _turned(bits: pa.Array) -> pa.Array:
    """Bits of numbers in the order of these, or such bits as they were before."""
    # those of negative numbers count downwards
    turned = pc.bit_wise_xor(bits, pa.scalar(np.iinfo(bits.type.to_pandas_dtype()).max, bits.type))
    return pc.if_else(pc.less(bits, 0), turned, bits)


def _bits(array: pa.Array) -> npt.NDArray[Any]:
    numbers = normalised_floats(array)
    raw = array.fill_null(0.0).to_numpy(zero_copy_only=False)
    bits: npt.NDArray[Any] = numbers.view(np.int32 if numbers.dtype == np.float32 else np.int64)
    bits[(numbers == 0) & np.signbit(raw)] = np.iinfo(bits.dtype).min
    return bits


def _with_floats(array: pa.Array, change: Callable[[pa.Array], npt.NDArray[Any]]) -> pa.Array:
    type_ = array.type
    if not has_floats(type_):
        return array
    if pa.types.is_floating(type_):
        return pa.array(change(array), mask=is_null(array))
    array = array.take(pa.array(np.arange(len(array)))) if array.offset else array
    mask = pa.array(is_null(array))
    if pa.types.is_struct(type_):
        children = [_with_floats(child, change) for child in array.flatten()]
        names = [field.name for field in type_]
        return pa.StructArray.from_arrays(children, names=names, mask=mask)
    if pa.types.is_map(type_):
        parts = [_with_floats(part, change) for part in (array.keys, array.items)]
        return pa.MapArray.from_arrays(array.offsets, *parts, mask=mask)
    return pa.ListArray.from_arrays(array.offsets, _with_floats(array.values, change), mask=mask)


def has_floats(type_: pa.DataType) -> bool:
    """Whether values of a type are, or hold, floating-point numbers."""
    return any(map(pa.types.is_floating, types.within(type_)))


def sequence_codes(rows: pa.Table, columns: Sequence[str]) -> list[Column]:
    """Columns without NULL that put rows into the order of their sequence."""
    codes: list[Column] = []
    for name in columns:
        values = one_array(rows.column(name))
        known = values.drop_null()
        codes.append(pc.is_valid(values).cast(pa.int8()))
        if len(known):
            codes.append(pc.fill_null(values, known[0]))
    return codes


def in_sequence(rows: pa.Table, columns: Sequence[str], group_of: Positions) -> Positions:
    """The rows group by group, within each by sequence, rows of one sequence in input order."""
    return order_by([pa.array(group_of), *sequence_codes(rows, columns)]).rows


def last_of_each(ordered_groups: Positions) -> npt.NDArray[np.bool_]:
    """Of rows ordered by group, which are the last ones of theirs."""
    if not len(ordered_groups):
        return np.zeros(0, dtype=np.bool_)
    return np.append(ordered_groups[1:] != ordered_groups[:-1], True)
