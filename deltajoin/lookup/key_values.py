"""Keys as Python values that a ``dict`` can hold, for what has to be one entry a key (pure)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert.store.hashing import fixed_width, one_array


def key_values(keys: pa.Table) -> list[Hashable]:
    """A value for each row, equal for equal keys; None for a key that has a NULL.

    Equal is what Spark's joins take for equal: -0.0 equals 0.0, NaN equals NaN. Columns must be scalar.

    >>> key_values(pa.table({"a": [7, None], "b": ["x", "y"]}))
    [(7, 'x'), None]
    >>> first, second = key_values(pa.table({"a": [0.0, -0.0]}))
    >>> first == second
    True
    """
    columns = [one_array(column) for column in keys.columns]
    values = [_values(column) for column in columns]
    found: list[Any] = values[0] if len(values) == 1 else list(zip(*values, strict=True))
    if any(column.null_count for column in columns):
        usable = pc.is_valid(columns[0])
        for column in columns[1:]:
            usable = pc.and_(usable, pc.is_valid(column))
        for at in np.flatnonzero(~usable.to_numpy(zero_copy_only=False)).tolist():
            found[at] = None
    return found


def _values(column: pa.Array) -> list[Any]:
    type_ = column.type
    if pa.types.is_string(type_) or pa.types.is_binary(type_) or pa.types.is_decimal(type_):
        values: list[Any] = column.to_pylist()
        return values
    # Numbers as such, times as what they are counted in, floats as their normalised bits.
    return fixed_width(column).tolist()  # type: ignore[no-any-return]
