r"""Arrow columns as the text format of PostgreSQL's COPY: all rows at once, by Arrow's kernels (pure).

Columns are separated by tabs, rows end with a line feed, NULL is ``\N``, and a backslash escapes what would
be taken for one of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.arrays import one_array

_NULL: Final = "\\N"
_ESCAPES: Final = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))
_HEX: Final = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint16)
"""The two digits of each byte, as one number."""


def copy_text(columns: Sequence[pa.ChunkedArray | pa.Array]) -> bytes:
    r"""The rows of these columns, which are scalar and as long as each other.

    >>> copy_text([pa.array([1, None]), pa.array(["a\tb", ""])])
    b'1\ta\\tb\n\\N\t\n'
    """
    *texts, last = (_texts(one_array(column)).fill_null(_NULL) for column in columns)
    joined = _joined(*texts, _joined(last, "\n", by=""), by="\t")
    offsets = np.frombuffer(joined.buffers()[1], np.int64)
    start, end = offsets[joined.offset], offsets[joined.offset + len(joined)]
    data = joined.buffers()[2]
    return b"" if data is None else data[start:end].to_pybytes()


def _joined(*parts: pa.Array | str, by: str) -> pa.Array:
    texts = (*parts, by)
    return pc.binary_join_element_wise(
        *(pa.scalar(text, pa.large_string()) if isinstance(text, str) else text for text in texts)
    )


def _texts(column: pa.Array) -> pa.Array:
    """Each value as a text, escaped; NULL stays."""
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return _hexadecimal(column.cast(pa.large_binary()))
    texts = types.instant_texts(column) if column.type == types.TIMESTAMP else column
    texts = texts.cast(pa.large_string())
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        for char, escape in _ESCAPES:
            texts = pc.replace_substring(texts, char, escape)
    return texts


def _hexadecimal(column: pa.Array) -> pa.Array:
    r"""Bytes as PostgreSQL reads them: ``\x``, then two digits a byte, the backslash escaped."""
    offsets = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column) + 1]
    data = column.buffers()[2]
    given = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    digits = _HEX[given[offsets[0] : offsets[-1]]]
    buffers = [None, pa.py_buffer((offsets - offsets[0]) * 2), pa.py_buffer(digits)]
    texts = pa.Array.from_buffers(pa.large_string(), len(column), buffers)
    return pc.if_else(column.is_valid(), _joined("\\\\x", texts, by=""), pa.scalar(None, pa.large_string()))
