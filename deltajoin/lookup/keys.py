"""The distinct keys of a batch, their rows for every row of it, and keys as Python values (pure)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from deltajoin.core.keys import have_values
from deltajoin.errors import LookupFailedError
from deltajoin.lookup.protocol import Answer
from upsert import types
from upsert.arrays import Positions, is_null, one_array
from upsert.errors import SchemaError
from upsert.store.rows.codes import codes_of_keys, first_of_each
from upsert.store.rows.hashing import fixed_width, normalised_floats


def key_values(keys: pa.Table) -> list[Hashable]:
    """A value for each row, equal for equal keys; None for a key that has a NULL.

    Equal is what Spark's joins take for equal: -0.0 equals 0.0, NaN equals NaN. Columns must be scalar.

    >>> key_values(pa.table({"a": [7, None], "b": ["x", "y"]}))
    [(7, 'x'), None]
    >>> first, second = key_values(pa.table({"a": [0.0, -0.0]}))
    >>> first == second
    True
    """
    values = [_values(one_array(column)) for column in keys.columns]
    found: list[Any] = values[0] if len(values) == 1 else list(zip(*values, strict=True))
    for at in np.flatnonzero(~have_values(keys, keys.column_names)).tolist():
        found[at] = None
    return found


def _values(column: pa.Array) -> list[Any]:
    type_ = column.type
    if pa.types.is_string(type_) or pa.types.is_binary(type_) or pa.types.is_decimal(type_):
        values: list[Any] = column.to_pylist()
        return values
    # Numbers as such, times as what they are counted in, floats as their normalised bits.
    return fixed_width(column).tolist()  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class DistinctKeys:
    """The keys of a batch, each once, in order of first appearance: none has a NULL, -0.0 is 0.0, NaN is one.

    ``codes`` has for every row of the batch the position of its key; -1 where it has a NULL.
    """

    keys: pa.Table
    codes: Positions

    def spread(self, answer: Answer) -> Answer:
        """An answer about the distinct keys as one about the rows of the batch, in the order of these.

        >>> batch = distinct_keys(pa.table({"k": [7, 5, 7, None]}), pa.schema({"k": pa.int64()}))
        >>> batch.keys["k"].to_pylist()
        [7, 5]
        >>> found = batch.spread(Answer(np.array([1, 0]), pa.table({"k": [5, 7]})))
        >>> found.positions.tolist(), found.rows["k"].to_pylist()
        ([0, 1, 2], [7, 5, 7])
        """
        order = np.argsort(answer.positions, kind="stable")
        counts = np.bincount(answer.positions, minlength=self.keys.num_rows)
        starts = np.cumsum(counts) - counts
        asked = np.flatnonzero(self.codes >= 0)
        codes = self.codes[asked]
        of_each = counts[codes]
        ends = np.cumsum(of_each)
        nth = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - of_each, of_each)
        taken = order[np.repeat(starts[codes], of_each) + nth]
        rows = answer.rows.take(pa.array(taken))
        return Answer(np.repeat(asked, of_each), rows, self._spread_failures(answer))

    def _spread_failures(self, answer: Answer) -> Mapping[int, LookupFailedError]:
        if not answer.failures:
            return {}
        has_failed = np.zeros(self.keys.num_rows + 1, dtype=np.bool_)  # the last one is of code -1
        has_failed[list(answer.failures)] = True
        failed = np.flatnonzero(has_failed[self.codes])
        return {
            at: answer.failures[code]
            for at, code in zip(failed.tolist(), self.codes[failed].tolist(), strict=True)
        }


def distinct_keys(keys: pa.Table, fields: pa.Schema) -> DistinctKeys:
    """The distinct keys of a batch, which must have the names and types of these fields, in their order."""
    if keys.column_names != fields.names or keys.schema.types != fields.types:
        raise SchemaError(
            f"lookup: keys must have the columns {_shown(fields)}, got {_shown(keys.schema)}; "
            "select, rename and cast them"
        )
    columns = [comparable(one_array(column)) for column in keys.columns]
    asked = np.flatnonzero(have_values(keys, keys.column_names))
    codes = np.full(keys.num_rows, -1, dtype=np.int64)
    if len(asked) < keys.num_rows:
        columns = [column.take(pa.array(asked)) for column in columns]
    codes[asked] = codes_of_keys(columns)
    firsts = pa.array(first_of_each(codes[asked]))
    return DistinctKeys(
        pa.Table.from_arrays([column.take(firsts) for column in columns], schema=fields), codes
    )


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {types.sql_name(field.type)}" for field in schema)


def comparable(column: pa.Array) -> pa.Array:
    """Key values such that equal ones are the same to every reader: -0.0 is 0.0, and all NaN are one."""
    if not pa.types.is_floating(column.type):
        return column
    return pa.array(normalised_floats(column), mask=is_null(column))
