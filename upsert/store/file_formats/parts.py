"""How rows are cut into parts of a file that are compressed, and decoded, on their own (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from upsert.store.file_formats.retyped import retyped

PART_BYTES: Final = 4 << 20
"""In memory. A lookup decodes the parts that its rows lie in; a merge holds a few of each file."""

_LEAST_ROWS: Final = 1024


def part_starts(rows: pa.RecordBatch) -> tuple[int, ...]:
    """Number of the first row of each part, and after these the number of rows.

    >>> part_starts(pa.record_batch({"a": range(1_000_000)}))
    (0, 524288, 1000000)
    """
    a_part = max(_LEAST_ROWS, int(PART_BYTES * rows.num_rows / max(1, rows.nbytes)))
    return (*range(0, rows.num_rows, a_part), rows.num_rows)


def batch_of(
    schema: pa.Schema, found: pa.Table | pa.RecordBatch, names: Sequence[str], rows: int
) -> pa.RecordBatch:
    """Some decoded columns, one batch under the types that were written."""
    if not names:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
    fields = [schema.field(name) for name in names]
    arrays = [retyped(_one_array(found.column(field.name)), field.type) for field in fields]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
