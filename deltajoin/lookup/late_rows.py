"""Rows of many small replies, made into columns all at once (pure).

A table of Arrow with one row takes some twenty microseconds and two kilobytes to make, a tenth of what a
request by HTTP takes. So a client may leave the few rows of a reply as they came, and the engine makes the
columns of all replies of a batch together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from deltajoin.lookup.protocol import Positions


@dataclass(frozen=True, eq=False, slots=True)
class LateRows:
    """A few rows whose values have been checked: Arrow takes each of them for its column.

    Attributes:
        schema: of the rows.
        rows: a tuple for each row, in the order of the schema.
    """

    schema: pa.Schema
    rows: list[tuple[Any, ...]]

    @property
    def num_rows(self) -> int:
        """How many there are, as of a table."""
        return len(self.rows)


Rows = Any
"""A table, or `LateRows`."""


def as_table(rows: Rows) -> pa.Table:
    """Rows as a table, which they may be already.

    >>> as_table(LateRows(pa.schema({"id": pa.int64()}), [(7,)])).to_pylist()
    [{'id': 7}]
    """
    if not isinstance(rows, LateRows):
        return rows
    # one array of structs: a column each would cost a small reply more than all the rest
    return pa.Table.from_struct_array(pa.array(rows.rows, pa.struct(list(rows.schema))))


def joined(schema: pa.Schema, parts: Sequence[tuple[Positions, Rows]]) -> tuple[Positions, pa.Table]:
    """Pieces of an answer as one; rows stay beside their positions, pieces come in any order."""
    late = [part for part in parts if isinstance(part[1], LateRows)]
    pieces = [part for part in parts if not isinstance(part[1], LateRows)]
    if late:
        rows = list(chain.from_iterable(each.rows for _, each in late))
        pieces.append((np.concatenate([at for at, _ in late]), as_table(LateRows(schema, rows))))
    positions = np.concatenate([np.empty(0, np.int64), *(at for at, _ in pieces)])
    return positions, pa.concat_tables([schema.empty_table(), *(rows for _, rows in pieces)])
