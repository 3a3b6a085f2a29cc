"""The four kinds of a changelog row, and the sign each one carries (pure).

Kinds are signs: ``+I`` and ``+U`` weigh +1, ``-U`` and ``-D`` weigh -1. Consumers decide by the
sign alone; which of the two kinds of a sign a row has is for people and for CDC formats.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upsert.errors import ChangelogError

ROW_KIND_COLUMN: Final = "_row_kind"
"""Name of the column, always the last one, that holds the kind of each row of a changelog."""


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


_KINDS: Final = pa.array([kind.value for kind in RowKind])
_SIGNS: Final = np.array([kind.sign for kind in RowKind], dtype=np.int8)


def signs(kinds: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int8]:
    """The sign of each kind in an Arrow string column.

    Raises:
        ChangelogError: a kind is NULL or none of ``+I``, ``-U``, ``+U``, ``-D``.

    >>> signs(pa.array(["+I", "-D"])).tolist()
    [1, -1]
    """
    codes = pc.index_in(kinds, value_set=_KINDS)
    if codes.null_count:
        unknown = pc.filter(kinds, pc.is_null(codes))[0].as_py()
        raise ChangelogError(
            f"{ROW_KIND_COLUMN} must be one of {[kind.value for kind in RowKind]}, got {unknown!r}"
        )
    position = codes.combine_chunks() if isinstance(codes, pa.ChunkedArray) else codes
    found: npt.NDArray[np.int8] = _SIGNS[position.to_numpy(zero_copy_only=False)]
    return found
