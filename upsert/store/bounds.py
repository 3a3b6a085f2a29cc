"""What a manifest says about the values in a data file, so that readers can skip it (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.store.layout import Layout

_TEXT_LENGTH: Final = 64


def bounds(layout: Layout, batch: pa.RecordBatch) -> tuple[dict[int, Any], dict[int, Any]]:
    """Smallest and largest value of each scalar column of a file, by the column's field id.

    None for none, or if it is not known.

    NaN does not count. Texts are cut, for every manifest repeats them.
    """
    low: dict[int, Any] = {}
    high: dict[int, Any] = {}
    for column in layout.schema.columns:
        if types.is_scalar(column.type):
            bounds = pc.min_max(batch.column(column.name))
            low[column.id] = _lower_bound(bounds["min"])
            high[column.id] = _upper_bound(bounds["max"])
    return low, high


def _lower_bound(value: pa.Scalar) -> Any:
    bound = _python_value(value)
    return bound[:_TEXT_LENGTH] if isinstance(bound, str | bytes) else bound


def _upper_bound(value: pa.Scalar) -> Any:
    bound = _python_value(value)
    if isinstance(bound, str | bytes) and len(bound) > _TEXT_LENGTH:
        return None  # the beginning of a text is below it, so it bounds nothing
    return bound


def _python_value(value: pa.Scalar) -> Any:
    """The value, or None where Python has none (a time beyond the year 9999) or it does not compare (NaN)."""
    try:
        plain = value.as_py()
    except (ValueError, OverflowError):
        return None
    return None if plain != plain else plain


class StoredBounds(Mapping[int, Any]):
    """The bounds of one file, by field id, as a row of a manifest's columns: made Python values on use.

    A manifest has bounds of all columns of all files, and a reader asks for those of one column or two.
    """

    __slots__ = ("_columns", "_row")

    def __init__(self, columns: Mapping[int, _Values], row: int) -> None:
        self._columns = columns
        self._row = row

    def __getitem__(self, id: int) -> Any:
        return self._columns[id]()[self._row]

    def __iter__(self) -> Iterator[int]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        return repr(dict(self))

    def __reduce__(self) -> tuple[type, tuple[dict[int, Any]]]:
        """Another process gets the values of this file, not the manifest."""
        return dict, (dict(self),)


_Values = Callable[[], list[Any]]
"""The values of a column, computed when it is called first."""


def bounds_of(array: pa.StructArray) -> list[StoredBounds]:
    """The bounds of each file of a manifest; the struct's fields are named by field id.

    >>> bounds_of(pa.array([{"1": 5, "2": "a"}]))
    [{1: 5, 2: 'a'}]
    """
    columns = {int(field.name): cache(values.to_pylist) for field, values in _children(array)}
    return [StoredBounds(columns, row) for row in range(len(array))]


def _children(array: pa.StructArray) -> list[tuple[pa.Field, pa.Array]]:
    return list(zip(array.type, array.flatten(), strict=True))
