"""The four kinds of a changelog row, and the sign each one carries (pure).

Kinds are signs: ``+I`` and ``+U`` weigh +1, ``-U`` and ``-D`` weigh -1. Consumers decide by the
sign alone; which of the two kinds of a sign a row has is for people and for CDC formats.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upsert.errors import ChangelogError

ROW_KIND_COLUMN: Final = "_row_kind"
"""Name of the column, always the last one, that holds the kind of each row of a changelog."""
KIND_FIELD: Final = pa.field(ROW_KIND_COLUMN, pa.string(), nullable=False)


class RowKind(StrEnum):
    """Kind of one row of a changelog.

    >>> RowKind("-U").sign
    -1
    """

    INSERT = "+I"
    UPDATE_BEFORE = "-U"
    UPDATE_AFTER = "+U"
    DELETE = "-D"

    @property
    def sign(self) -> int:
        """+1 for a row that is now there, -1 for a row that no longer is."""
        return 1 if self.value[0] == "+" else -1


INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = range(len(RowKind))
"""Places of the kinds in `every_kind`."""

SIGNS: Final = np.array([kind.sign for kind in RowKind], dtype=np.int8)


@cache
def every_kind() -> pa.Array:
    """The four kinds as an Arrow array, where a small number stands for each.

    It is made on use: the first array that pyarrow makes loads pandas, which costs a process 0.2 s.

    >>> every_kind().to_pylist()
    ['+I', '-U', '+U', '-D']
    """
    return pa.array([kind.value for kind in RowKind])


def with_row_kind(rows: pa.Table, kinds: int | npt.NDArray[np.integer[Any]]) -> pa.Table:
    """The rows with ``_row_kind`` last, by places in `every_kind`: one for all rows, or one for each.

    >>> with_row_kind(pa.table({"k": [1, 2]}), np.array([INSERT, DELETE])).column("_row_kind").to_pylist()
    ['+I', '-D']
    """
    if isinstance(kinds, int):
        column = pa.repeat(every_kind()[kinds], rows.num_rows)
    else:
        column = every_kind().take(pa.array(kinds))
    return rows.append_column(KIND_FIELD, column)


def places(kinds: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int8]:
    """The place in `every_kind` of each kind in an Arrow string column.

    Raises:
        ChangelogError: a kind is NULL or none of ``+I``, ``-U``, ``+U``, ``-D``.

    >>> places(pa.array(["+I", "-D"])).tolist()
    [0, 3]
    """
    codes = pc.index_in(kinds, value_set=every_kind())
    if codes.null_count:
        unknown = pc.filter(kinds, pc.is_null(codes))[0].as_py()
        raise ChangelogError(
            f"{ROW_KIND_COLUMN} must be one of {[kind.value for kind in RowKind]}, got {unknown!r}"
        )
    position = codes.combine_chunks() if isinstance(codes, pa.ChunkedArray) else codes
    found: npt.NDArray[np.int8] = position.to_numpy(zero_copy_only=False).astype(np.int8)
    return found


def signs(kinds: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int8]:
    """The sign of each kind in an Arrow string column.

    Raises:
        ChangelogError: a kind is NULL or none of ``+I``, ``-U``, ``+U``, ``-D``.

    >>> signs(pa.array(["+I", "-D"])).tolist()
    [1, -1]
    """
    found: npt.NDArray[np.int8] = SIGNS[places(kinds)]
    return found
