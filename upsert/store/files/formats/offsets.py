"""Offsets of strings, bytes and nested values in memory that was not decoded (pure): checked before use.

The columns of an uncompressed Arrow file are views of it. Arrow follows their offsets unseen: after a changed
byte it would read outside of the file, which ends the process.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_OFFSETS: Final[dict[pa.DataType, np.dtype[Any]]] = {
    pa.string(): np.dtype("<i4"),
    pa.binary(): np.dtype("<i4"),
    pa.large_string(): np.dtype("<i8"),
    pa.large_binary(): np.dtype("<i8"),
}


def has_offsets(type_: pa.DataType) -> bool:
    """Whether values of a type, or values within them, differ in length.

    >>> has_offsets(pa.int64()), has_offsets(pa.string()), has_offsets(pa.struct([("a", pa.binary())]))
    (False, True, True)
    """
    return type_ in _OFFSETS or pa.types.is_nested(type_) or pa.types.is_dictionary(type_)


Some = npt.NDArray[np.integer[Any]] | slice
"""Some rows of a column, as numpy takes them."""

EVERY: Final = slice(None)
"""All rows of a column."""


def check_offsets(column: pa.Array, rows: Some = EVERY) -> None:
    """Refuse offsets of some rows that do not ascend, or that lead out of the column's bytes.

    A nested column is looked at as a whole, its text too.

    Raises:
        ValueError: one does; this includes ``pa.ArrowInvalid``.

    >>> check_offsets(pa.array(["a", "bc"]))
    >>> offsets, text = pa.array([0, 9, 1], pa.int32()).buffers()[1], pa.py_buffer(b"a")
    >>> check_offsets(pa.StringArray.from_buffers(2, offsets, text), np.array([1]))
    Traceback (most recent call last):
    ValueError: row 1 lies in bytes 9 to 1 of 1
    """
    if (dtype := _OFFSETS.get(column.type)) is None:
        column.validate(full=True)
        return
    _, offsets, content = column.buffers()
    if not len(column) or offsets is None:
        return
    bounds = np.frombuffer(offsets, dtype, len(column) + 1, column.offset * dtype.itemsize)
    starts, stops = bounds[:-1][rows], bounds[1:][rows]
    size = 0 if content is None else content.size
    wrong = (starts < 0) | (starts > stops) | (stops > size)
    if wrong.any():
        at = int(np.argmax(wrong))
        row = np.arange(len(column))[rows][at]
        raise ValueError(f"row {row} lies in bytes {starts[at]} to {stops[at]} of {size}")
