"""How rows are cut into parts of a file that are compressed, and decoded, on their own (pure)."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

PART_BYTES: Final = 4 << 20
"""In memory. A lookup decodes the parts that its rows lie in; a merge holds a few of each file."""

_LEAST_ROWS: Final = 1024


def rows_of_part(rows: pa.RecordBatch) -> int:
    """How many rows a part of a file with these rows has, but for the last one."""
    if not rows.num_rows:
        return _LEAST_ROWS
    return max(_LEAST_ROWS, int(PART_BYTES * rows.num_rows / max(1, rows.nbytes)))


def part_starts(rows: pa.RecordBatch) -> tuple[int, ...]:
    """Number of the first row of each part, and after these the number of rows.

    >>> part_starts(pa.record_batch({"a": range(1_000_000)}))
    (0, 524288, 1000000)
    """
    return (*range(0, rows.num_rows, rows_of_part(rows)), rows.num_rows)
