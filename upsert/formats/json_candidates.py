"""Which messages ``pyarrow.json`` takes for exactly the row that each of them is (pure).

It takes a message with two values for two rows, an unclosed one together with the next, NaN for a number; a
top-level ``null`` and some decimals make it crash. So a regular expression lets only messages pass that
begin with ``{``, end with ``}`` and have nothing but ``,``, ``}`` and ``]`` after any other ``}``. A line
break is no part of a string for that reader, hence between two messages it stands outside of all values, and
each message is exactly one row.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert.arrays import Mask, Positions
from upsert.formats.json_values import MAX_DEPTH

_SPACE: Final = r"[ \t\r\n]"
_NOT_AN_OBJECT: Final = rf"^{_SPACE}*(?:[^{{ \t\r\n]|$)|[^}} \t\r\n]{_SPACE}*$"
_MORE_AFTER_A_BRACE: Final = rf"\}}{_SPACE}*[^,\]}} \t\r\n]"
_NO_JSON: Final = (b"\x00", b"NaN", b"Inf")
_ODD_DECIMAL: Final = rf'[:,\["]{_SPACE}*[-+]?[0-9]*\.?[0-9]*[eE][-+]?[0-9]{{3}}'


def candidates(messages: pa.Array, *, has_decimal: bool) -> Positions:
    """Positions, ascending, of the messages whose rows that reader surely finds, if it can read them at all.

    Args:
        messages: texts as binary; NULL is no candidate.
        has_decimal: whether one of the columns to read is a DECIMAL.
    """
    is_candidate = _is_text(messages) & _is_object(messages)
    if has_decimal:
        is_candidate &= ~_matches(messages, _ODD_DECIMAL)
    is_candidate &= ~_matches(messages, _MORE_AFTER_A_BRACE)
    text = _data(messages)
    for word in _NO_JSON:
        if word in text:
            is_candidate &= ~_matches(messages, re.escape(word.decode()))
    # Each level takes a bracket that opens and one that closes.
    long = np.flatnonzero(_mask(pc.greater(pc.binary_length(messages), 2 * MAX_DEPTH)))
    if len(long):
        texts = messages.take(pa.array(long))
        opened = pc.add(pc.count_substring(texts, "{"), pc.count_substring(texts, "["))
        is_candidate[long] &= _mask(pc.less_equal(opened, MAX_DEPTH))
    return np.flatnonzero(is_candidate)


def _is_text(messages: pa.Array) -> Mask:
    try:
        messages.cast(pa.string())
    except pa.ArrowInvalid:
        return np.array([_is_utf8(message) for message in messages.to_pylist()], dtype=np.bool_)
    is_valid: Mask = messages.is_valid().to_numpy(zero_copy_only=False)
    return is_valid


def _is_object(messages: pa.Array) -> Mask:
    found = _mask(pc.and_(pc.starts_with(messages, "{"), pc.ends_with(messages, "}")))
    others = np.flatnonzero(~found)
    found[others] = ~_matches(messages.take(pa.array(others)), _NOT_AN_OBJECT)
    return found


def _matches(messages: pa.Array, pattern: str) -> Mask:
    return _mask(pc.match_substring_regex(messages, pattern=pattern))


def _mask(found: pa.Array) -> Mask:
    mask: Mask = found.fill_null(False).to_numpy(zero_copy_only=False).copy()
    return mask


def _data(messages: pa.Array) -> Any:
    """The bytes of all messages, one after the other."""
    ends = np.frombuffer(messages.buffers()[1], dtype=np.int32)[messages.offset :]
    first, last = int(ends[0]), int(ends[len(messages)])
    buffer = messages.buffers()[2]
    return b"" if buffer is None else buffer.slice(first, last - first).to_pybytes()


def _is_utf8(message: bytes | None) -> bool:
    try:
        return message is not None and message.decode() is not None
    except UnicodeDecodeError:
        return False
