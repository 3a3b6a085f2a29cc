"""Arrays of Arrow as one piece and as numpy sees them, and the names of their types (pure)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Positions = npt.NDArray[np.int64]
"""Numbers of rows."""

Mask = npt.NDArray[np.bool_]
"""For each row whether something is true of it."""

Kinds = npt.NDArray[np.int8]
"""The kind of each row, by number."""


def one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The column as one array; copies only what lies in several chunks."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


def is_null(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Mask of the NULLs of an array."""
    mask: npt.NDArray[np.bool_] = pc.is_null(array).to_numpy(zero_copy_only=False)
    return mask
