"""Format ``raw``: the bytes of a message are the value of the only field, as Flink's ``raw`` has it (pure).

Booleans and numbers have the width of their type: BOOLEAN and TINYINT 1 byte, SMALLINT 2, INT and FLOAT 4,
BIGINT and DOUBLE 8; the first byte of a BOOLEAN is 0 for false.
"""

from __future__ import annotations

import codecs
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert import options, types
from upsert.arrays import one_array
from upsert.errors import SchemaError
from upsert.formats.base import BadMessage, Decoded, Format, FormatContext
from upsert.formats.binary_columns import bytes_of
from upsert.options import Option

_BIG: Final = "big-endian"
_UTF8: Final = "utf-8"
_NUMPY: Final = {
    pa.bool_(): "u1",
    pa.int8(): "i1",
    pa.int16(): "i2",
    pa.int32(): "i4",
    pa.int64(): "i8",
    pa.float32(): "f4",
    pa.float64(): "f8",
}


def charset(value: str) -> str:
    """The name under which Python knows a charset.

    >>> charset("UTF-8"), charset("ISO-8859-1")
    ('utf-8', 'iso8859-1')
    """
    try:
        found = codecs.lookup(value)
        "a".encode(found.name)  # refuses the codecs that are no charsets, such as base64
    except (LookupError, ValueError):
        raise ValueError("the name of a charset, like UTF-8") from None
    return found.name


OPTIONS: Final = (
    Option("charset", charset, "encoding of a STRING", _UTF8),
    Option("endianness", options.one_of(_BIG, "little-endian"), "order of the bytes of a number", _BIG),
)


def check(context: FormatContext) -> None:
    """Refuse all but one field of a type that has a plain form."""
    fields = context.fields
    if len(fields) != 1:
        raise SchemaError(
            f"raw: a {context.side} must be one column, got {', '.join(fields.names) or 'none'}; choose "
            "another format, or keep the key's columns out by 'value.fields-include' = 'EXCEPT_KEY'"
        )
    if fields[0].type not in (*_NUMPY, pa.string(), pa.binary()):
        raise SchemaError(
            f"raw: column {fields[0].name!r} must be STRING, BINARY, BOOLEAN, a whole number, FLOAT or "
            f"DOUBLE, got {types.sql_name(fields[0].type)}"
        )


class _RawDecoder:
    def __init__(self, context: FormatContext) -> None:
        self._fields = context.fields
        self._type = context.fields[0].type
        self._charset = context.options["charset"]
        self._dtype = _dtype(context)

    def decode(self, messages: pa.Array) -> Decoded:
        """One row a message. Bad is what is too short or too long for a number, or no text of the charset."""
        positions = np.flatnonzero(pc.is_valid(messages).to_numpy(zero_copy_only=False))
        present = messages.drop_null()
        reasons: dict[int, str] = {}
        if self._type == pa.binary():
            values = present
        elif self._type == pa.string():
            values, reasons = self._texts(present)
        else:
            values, reasons = self._numbers(present)
        bad = (BadMessage(int(positions[place]), reason) for place, reason in reasons.items())
        good = np.delete(positions, np.array(list(reasons), np.int64))
        return Decoded.at(good, len(messages), pa.table([values], schema=self._fields), bad)

    def _texts(self, present: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        if self._charset == _UTF8:
            try:
                return present.cast(pa.string()), {}
            except pa.ArrowInvalid:  # one of them is not UTF-8: find out which
                pass
        texts: list[str] = []
        reasons: dict[int, str] = {}
        for place, message in enumerate(present.to_pylist()):
            try:
                text = message.decode(self._charset)
                text.encode()  # half of a surrogate pair is a text in UTF-7, and in no column
            except UnicodeError as cause:
                reasons[place] = f"no text: {cause}"
            else:
                texts.append(text)
        return pa.array(texts, pa.string()), reasons

    def _numbers(self, present: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        width = self._dtype.itemsize
        lengths = pc.binary_length(present).to_numpy()
        is_good = lengths == width
        reasons = {
            int(place): f"{types.sql_name(self._type)} has {width} bytes, got {lengths[place]}"
            for place in np.flatnonzero(~is_good)
        }
        fitting = present.filter(pa.array(is_good)) if reasons else present
        values = bytes_of(fitting)[0].view(self._dtype)
        if self._type == pa.bool_():
            return pa.array(values != 0), reasons
        return pa.array(values.astype(self._dtype.newbyteorder("=")), self._type), reasons


class _RawEncoder:
    def __init__(self, context: FormatContext) -> None:
        self._name = context.fields[0].name
        self._type = context.fields[0].type
        self._charset = context.options["charset"]
        self._dtype = _dtype(context)

    def encode(self, rows: pa.Table, kinds: pa.Array | None = None) -> pa.Array:  # noqa: ARG002
        column = rows.column(self._name)
        if column.null_count:
            raise SchemaError(f"raw: column {self._name!r} must not be NULL, which the format cannot write")
        if self._type == pa.binary():
            return one_array(column)
        if self._type == pa.string():
            return self._texts(column)
        numbers = column.cast(pa.uint8()) if self._type == pa.bool_() else column
        data = pa.py_buffer(numbers.to_numpy().astype(self._dtype).tobytes())
        fixed = pa.Array.from_buffers(pa.binary(self._dtype.itemsize), len(column), [None, data])
        return fixed.cast(pa.binary())

    def _texts(self, column: pa.ChunkedArray) -> pa.Array:
        if self._charset == _UTF8:
            return one_array(column.cast(pa.binary()))
        try:
            return pa.array([text.encode(self._charset) for text in column.to_pylist()], pa.binary())
        except UnicodeError as cause:
            raise SchemaError(
                f"raw: column {self._name!r} must be {self._charset} text: {cause}; change option 'charset'"
            ) from cause


def _dtype(context: FormatContext) -> np.dtype[Any]:
    """How numpy lays a number out; for texts and bytes any."""
    plain = np.dtype(_NUMPY.get(context.fields[0].type, "u1"))
    return plain.newbyteorder(">" if context.options["endianness"] == _BIG else "<")


FORMAT: Final = Format("raw", OPTIONS, check, _RawDecoder, _RawEncoder)
