"""Zeros with a sign, and NaN: equal in a key, told apart as values (pure).

Where values are compared as a key, in PRIMARY KEYs, partitions, joins, groups and whole rows of a table
without a PRIMARY KEY, -0.0 equals 0.0, as in Spark; a table's keys are stored, and a group's come out, as
0.0. Any other column keeps its values: a row whose -0.0 becomes 0.0 has changed. NaN is one value
everywhere, whatever its bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upsert.store.hashing import is_null, normalised_floats

_Numbers = npt.NDArray[Any]


def as_key(array: pa.Array) -> pa.Array:
    """The array with every -0.0 in it as 0.0, and with one NaN; floats inside nested values, too.

    >>> as_key(pa.array([[-0.0, None], None])).to_pylist()
    [[0.0, None], None]
    """
    return _with_floats(array, normalised_floats)


def as_values(array: pa.Array) -> pa.Array:
    """The array with its floats as whole numbers, the same for the same value and for nothing else.

    What compares keys compares values where it is given these.

    >>> zeros = as_values(pa.array([0.0, -0.0]))
    >>> zeros[0] == zeros[1]
    False
    """
    return _with_floats(array, _bits)


def _bits(array: pa.Array) -> _Numbers:
    numbers = normalised_floats(array)
    raw = array.to_numpy(zero_copy_only=False) if array.null_count == 0 else array.fill_null(0.0).to_numpy()
    is_negative_zero = (numbers == 0) & np.signbit(raw)
    if numbers.dtype == np.float32:
        return np.where(is_negative_zero, np.iinfo(np.int32).min, numbers.view(np.int32)).astype(np.int32)
    return np.where(is_negative_zero, np.iinfo(np.int64).min, numbers.view(np.int64))


def _with_floats(array: pa.Array, change: Callable[[pa.Array], _Numbers]) -> pa.Array:
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
    if pa.types.is_nested(type_):
        return any(has_floats(type_.field(number).type) for number in range(type_.num_fields))
    return bool(pa.types.is_floating(type_))
