"""The order of a key's rows that ``sequence.field`` declares (pure): the highest is last, NULL is lowest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upsert.arrays import Positions
from upsert.store.hashing import one_array
from upsert.store.row_keys import Column, order_by


def sequence_codes(rows: pa.Table, columns: Sequence[str]) -> list[Column]:
    """Columns without NULL that put rows into the order of their sequence."""
    codes: list[Column] = []
    for name in columns:
        values = one_array(rows.column(name))
        known = values.drop_null()
        codes.append(pc.is_valid(values).cast(pa.int8()))
        if len(known):
            codes.append(pc.fill_null(values, known[0]))
    return codes


def in_sequence(rows: pa.Table, columns: Sequence[str], group_of: Positions) -> Positions:
    """The rows group by group, within each by sequence, rows of one sequence in input order.

    >>> rows = pa.table({"s": [2, None, 1, 2]})
    >>> in_sequence(rows, ["s"], np.array([0, 0, 0, 0])).tolist()
    [1, 2, 0, 3]
    """
    return order_by([pa.array(group_of), *sequence_codes(rows, columns)]).rows


def last_of_each(ordered_groups: Positions) -> npt.NDArray[np.bool_]:
    """Of rows ordered by group, which are the last ones of theirs."""
    if not len(ordered_groups):
        return np.zeros(0, dtype=np.bool_)
    return np.append(ordered_groups[1:] != ordered_groups[:-1], True)
