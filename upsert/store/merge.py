"""Many sorted runs into one (pure): of each key the newest row wins; counts of equal rows are summed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upsert.arrays import Kinds, Positions
from upsert.errors import ChangelogError
from upsert.store.hashing import one_array
from upsert.store.layout import COUNT_COLUMN, ROW_HASH_COLUMN, Layout
from upsert.store.row_keys import order_by

_MAX_BYTES: Final = 1 << 30
"""Arrow's texts end at 2 GB an array; what is larger is gathered piece by piece."""


class SortedRows(NamedTuple):
    """Rows ascending by key, each key once.

    ``kinds`` says of each row whether it is there (0) or its key deleted (1); None if none is deleted.
    A table without primary key has no kinds: its ``_count`` may be negative.
    """

    rows: pa.Table
    kinds: Kinds | None


def merge_runs(layout: Layout, runs: Sequence[SortedRows]) -> SortedRows:
    """One sorted run that says what ``runs`` say together.

    Deletions are kept, for they may hide rows of a still older run; counts of zero are not.

    Args:
        layout: the table's layout.
        runs: oldest first, at least one. All have the same columns, among them those of the key and,
            without primary key, ``_count``.
    """
    if len(runs) == 1:
        return runs[0]
    rows = pa.concat_tables([run.rows for run in runs])
    order = order_by([rows.column(name) for name in layout.key])
    if layout.is_counted:
        return _sum_counts(rows, order.firsts, order.starts, order.rows)
    kinds = _all_kinds(runs)
    winners = order.lasts
    return SortedRows(gather(rows, winners), None if kinds is None else kinds[winners])


def present(layout: Layout, run: SortedRows) -> pa.Table:
    """The rows that are there: without deletions; counts stay in ``_count``.

    Raises:
        ChangelogError: a count is negative: more equal rows were deleted than inserted.
    """
    if layout.is_counted:
        counts = one_array(run.rows.column(COUNT_COLUMN)).to_numpy()
        check_counts(run.rows, counts)
        return run.rows if counts.all() else run.rows.filter(pa.array(counts > 0))
    if run.kinds is None or not run.kinds.any():
        return run.rows
    return run.rows.filter(pa.array(run.kinds == 0))


def check_counts(rows: pa.Table, counts: npt.NDArray[np.int64]) -> None:
    """Refuse counts below zero.

    Raises:
        ChangelogError: a count is negative; the message shows its row.
    """
    if (counts < 0).any():
        worst = int(np.argmin(counts))
        shown = {k: v for k, v in rows.slice(worst, 1).to_pylist()[0].items() if not _is_internal(k)}
        raise ChangelogError(
            f"row {shown!r} of a table without primary key must have a count of at least 0, got "
            f"{counts[worst]}; more such rows were deleted than inserted: correct the producer and load the "
            "table again"
        )


def _is_internal(name: str) -> bool:
    return name in (ROW_HASH_COLUMN, COUNT_COLUMN)


def _all_kinds(runs: Sequence[SortedRows]) -> Kinds | None:
    if all(run.kinds is None for run in runs):
        return None
    parts = [np.zeros(r.rows.num_rows, np.int8) if r.kinds is None else r.kinds for r in runs]
    return np.concatenate(parts)


def _sum_counts(rows: pa.Table, firsts: Positions, starts: Positions, order: Positions) -> SortedRows:
    if not len(order):
        return SortedRows(rows, None)
    counts = one_array(rows.column(COUNT_COLUMN)).to_numpy()
    sums = np.add.reduceat(counts[order], starts)
    kept = np.flatnonzero(sums)
    found = gather(rows, firsts[kept])
    position = found.column_names.index(COUNT_COLUMN)
    return SortedRows(found.set_column(position, found.field(position), pa.array(sums[kept])), None)


def gather(rows: pa.Table, positions: Positions) -> pa.Table:
    """``rows.take(positions)``, also where a text column is larger than one Arrow array may be."""
    if rows.nbytes < _MAX_BYTES:
        return rows.combine_chunks().take(pa.array(positions))
    batches = rows.to_batches()
    ends = np.cumsum([batch.num_rows for batch in batches])
    length = max(1, int(len(positions) * _MAX_BYTES / (4 * rows.nbytes)))
    pieces = [positions[start : start + length] for start in range(0, len(positions), length)]
    return pa.concat_tables([_gather_piece(batches, ends, piece) for piece in pieces] or [rows.slice(0, 0)])


def _gather_piece(batches: Sequence[pa.RecordBatch], ends: Positions, positions: Positions) -> pa.Table:
    """A few rows from batches that may not be concatenated: one take each, then into the asked order."""
    source = np.searchsorted(ends, positions, side="right")
    taken, asked = [], []
    for number in np.unique(source):
        at = np.flatnonzero(source == number)
        batch = batches[number]
        taken.append(batch.take(pa.array(positions[at] - (ends[number] - batch.num_rows))))
        asked.append(at)
    order = np.empty(len(positions), dtype=np.int64)
    order[np.concatenate(asked)] = np.arange(len(positions))
    table: pa.Table = pa.Table.from_batches(taken).combine_chunks().take(pa.array(order))
    return table


def is_sorted_by_key(layout: Layout, rows: pa.Table) -> bool:
    """Whether rows ascend by key without repeats: what every data file must hold."""
    order = order_by([rows.column(name) for name in layout.key])
    return bool(order.is_first.all() and (np.diff(order.rows) == 1).all())
