"""Rows of Arrow as what shows them takes them: Python's values, and texts where Python has none.

Python's times end with microseconds, and its years with 9999. A VARIANT is the value that it holds, which
PySpark reads; where it cannot, it is the bytes of Spark's form.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from upsert import types


def rows_of(rows: pa.Table) -> list[tuple[Any, ...]]:
    """The rows, each with the values of its columns."""
    return list(zip(*map(values_of, rows.columns), strict=True))


def values_of(column: pa.ChunkedArray) -> list[Any]:
    """The values of a column.

    >>> values_of(pa.chunked_array([pa.array([1, 3_000_000], pa.date32())]))
    [datetime.date(1970, 1, 2), '+10183-09-21']
    >>> values_of(pa.chunked_array([pa.array([36_000_000_000_001], pa.time64("ns"))]))
    ['10:00:00.000000001']
    """
    if not any(map(_needs_care, types.within(column.type))):
        with suppress(OverflowError, ValueError):  # one of them is beyond Python's years
            found: list[Any] = column.to_pylist()
            return found
    return [_value(one) for one in column]


def _needs_care(type_: pa.DataType) -> bool:
    """Whether Python has values of a type in another form, whatever they are."""
    return type_ == pa.time64("ns") or types.is_variant(type_)


def _value(one: pa.Scalar) -> Any:
    type_ = one.type
    if not one.is_valid:
        return None
    if types.is_variant(type_):
        return _of_variant(*(one[number].as_py() for number in range(2)))
    if pa.types.is_struct(type_):
        return {field.name: _value(one[number]) for number, field in enumerate(type_)}
    if pa.types.is_map(type_):
        return [(_value(entry[0]), _value(entry[1])) for entry in one.values]
    if pa.types.is_list(type_):
        return [_value(element) for element in one.values]
    if type_ == pa.time64("ns") and one.value % 1000:
        return one.cast(pa.string()).as_py()
    try:
        return one.as_py()
    except (OverflowError, ValueError):
        return _far(one)


def _of_variant(value: bytes, metadata: bytes) -> Any:
    from pyspark.sql.types import VariantVal

    try:
        return VariantVal(value, metadata).toPython()
    except (ValueError, OverflowError):  # a time beyond Python's years, or what PySpark does not know
        return {"value": value, "metadata": metadata}


def _far(one: pa.Scalar) -> str:
    """A date or a time of a year that Python does not have, or not in its zone, as ISO 8601 writes it."""
    if pa.types.is_date(one.type):
        day, rest = one.value, ""
    else:
        day, micros = divmod(one.value, 86_400 * 10**6)
        zone = "" if one.type.tz is None else "+00:00"
        rest = f"T{(datetime.min + timedelta(microseconds=micros)).time().isoformat()}{zone}"
    text = str(np.datetime64(day, "D"))
    needs_sign = not text.startswith("-") and len(text) > len("9999-12-31")
    return f"{'+' * needs_sign}{text}{rest}"


def text_of(value: Any) -> str:
    """A value, other than NULL, as tables in terminals and notebooks show it.

    >>> text_of(True), text_of([date(2013, 1, 31), None]), text_of(datetime(2013, 1, 31, 8))
    ('true', '["2013-01-31", null]', '2013-01-31 08:00:00.000')
    """
    if isinstance(value, datetime):
        return value.isoformat(" ", "microseconds" if value.microsecond % 1000 else "milliseconds")
    shown = plain(value)
    return shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)


_CONTROLS: Final = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160))}
_CONTROLS_IN_LINES: Final = {code: text for code, text in _CONTROLS.items() if chr(code) not in "\n\t"}


def visible(text: str, *, has_lines: bool = False) -> str:
    r"""A text for a terminal, which it must not command: control characters are shown as Python writes them.

    Of a text that ``has_lines`` their ends and tabs stay.

    >>> print(visible("\x1b[2Jtea"))
    \x1b[2Jtea
    """
    return text.translate(_CONTROLS_IN_LINES if has_lines else _CONTROLS)


def plain(value: Any) -> Any:
    """A value as JSON can say it without loss: times in ISO 8601, decimals and NaN as text, bytes in hex.

    >>> plain({"at": date(2013, 1, 31), "price": Decimal("1.50"), "raw": b"a"})
    {'at': '2013-01-31', 'price': '1.50', 'raw': '61'}
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | timedelta):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value
