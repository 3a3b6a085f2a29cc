"""What the footer of a Parquet file says about the values in each row group (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from upsert import types
from upsert.store.file_formats.base import Bounds


def scalar_columns(footer: Any, schema: pa.Schema) -> dict[str, int]:
    """Where the footer keeps the statistics of each column of single values.

    A column ``a.b`` beside a column ``a`` with a field ``b`` is left out: to Parquet they have one name.
    """
    paths = [footer.schema.column(number).path for number in range(footer.num_columns)]
    often = Counter(paths)
    numbers = {path: number for number, path in enumerate(paths) if often[path] == 1}
    return {f.name: numbers[f.name] for f in schema if f.name in numbers and types.is_scalar(f.type)}


def group_bounds(footer: Any, column: int, type_: pa.DataType) -> Bounds:
    """Smallest and largest value of a column in each row group.

    Writers may cut a text, so that it is a bound and no value; NaN does not count; an unknown bound is NULL.
    """
    low, high = [], []
    value_of = _reader(type_)
    for group in range(footer.num_row_groups):
        found = footer.row_group(group).column(column).statistics
        is_known = found is not None and found.has_min_max
        low.append(value_of(found, "min") if is_known else None)
        high.append(value_of(found, "max") if is_known else None)
    return _array(low, type_), _array(high, type_)


def _reader(type_: pa.DataType) -> Callable[[Any, str], Any]:
    if pa.types.is_decimal128(type_):
        return getattr
    # Python's times end in the year 9999, the numbers that Parquet keeps do not
    raw: Callable[[Any, str], Any] = lambda found, which: getattr(found, f"{which}_raw")  # noqa: E731
    if type_ == pa.string():
        return lambda found, which: _text(raw(found, which))
    return raw


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None  # cut within a letter


def _array(values: list[Any], type_: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(type_):
        return pa.array(values, pa.int64()).cast(type_)
    return pa.array(values, pa.int32()).cast(type_) if type_ == pa.date32() else pa.array(values, type_)
