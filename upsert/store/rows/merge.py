"""Many sorted runs into one (pure): of each key the newest row wins; counts of equal rows are summed.

What is merged may be larger than memory. ``key_ranges`` cuts it at the middle key of the largest input, and
halves ranges until each is small enough. As a key is never cut in two, whatever can be said of the rows of a
key can be said range by range.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.arrays import Kinds, Mask, Positions, one_array, taken_rows
from upsert.errors import ChangelogError
from upsert.store.rows.hashing import is_text
from upsert.store.rows.keys import key_bytes, order_by, same_values
from upsert.store.rows.layout import COUNT_COLUMN, ROW_HASH_COLUMN, Layout

_INTERNAL: Final = (ROW_HASH_COLUMN, COUNT_COLUMN)

_MAX_BYTES: Final = 1 << 30
"""Arrow's texts end at 2 GB an array; what is larger is gathered piece by piece."""


class SortedRows(NamedTuple):
    """Rows ascending by key, each key once.

    ``kinds`` says of each row whether it is there (0) or its key deleted (1); None if none is deleted.
    A table without primary key has no kinds: its ``_count`` may be negative.
    """

    rows: pa.Table
    kinds: Kinds | None

    @property
    def is_there(self) -> Mask:
        """Which rows are no deletions."""
        return np.ones(self.rows.num_rows, np.bool_) if self.kinds is None else self.kinds == 0

    def slice(self, start: int, length: int) -> SortedRows:
        """Some of the rows, not copied."""
        kinds = None if self.kinds is None else self.kinds[start : start + length]
        return SortedRows(self.rows.slice(start, length), kinds)


def joined(runs: Sequence[SortedRows]) -> SortedRows:
    """The rows of some runs, at least one, one after the other."""
    rows = pa.concat_tables([run.rows for run in runs])
    if all(run.kinds is None for run in runs):
        return SortedRows(rows, None)
    return SortedRows(rows, np.concatenate([~run.is_there for run in runs]).view(np.int8))


def deletions(layout: Layout, rows: pa.Table) -> SortedRows:
    """What takes stored rows away: whole rows, for a reader of deletions wants to know what is gone."""
    if not layout.is_counted:
        return SortedRows(rows, np.ones(rows.num_rows, np.int8))
    position = rows.column_names.index(COUNT_COLUMN)
    counts = pc.negate(rows.column(position))
    return SortedRows(rows.set_column(position, rows.field(position), counts), None)


def merge_runs(layout: Layout, runs: Sequence[SortedRows]) -> SortedRows:
    """One sorted run that says what ``runs`` say together: at least one, oldest first, of the same columns.

    Deletions are kept, for they may hide rows of a still older run; counts of zero are not.
    """
    if len(runs) == 1:
        return runs[0]
    rows, kinds = joined(runs)
    order = order_by([rows.column(name) for name in layout.key])
    if layout.is_counted:
        return _sum_counts(rows, order.firsts, order.starts, order.rows)
    winners = order.lasts
    return SortedRows(gather(rows, winners), None if kinds is None else kinds[winners])


def present(layout: Layout, run: SortedRows) -> pa.Table:
    """Existing rows: without deletions; counts stay in ``_count``."""
    if layout.is_counted:
        counts = one_array(run.rows.column(COUNT_COLUMN)).to_numpy()
        check_counts(run.rows, counts)
        return run.rows if counts.all() else run.rows.filter(pa.array(counts > 0))
    if run.kinds is None or not run.kinds.any():
        return run.rows
    return run.rows.filter(pa.array(run.kinds == 0))


def check_counts(rows: pa.Table, counts: npt.NDArray[np.int64]) -> None:
    """Refuse counts below zero."""
    if (counts < 0).any():
        worst = int(np.argmin(counts))
        shown = {k: v for k, v in rows.slice(worst, 1).to_pylist()[0].items() if k not in _INTERNAL}
        raise ChangelogError(
            f"row {shown!r} of a table without primary key must have a count of at least 0, got "
            f"{counts[worst]}; more such rows were deleted than inserted: correct the producer and load the "
            "table again"
        )


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
    """``rows.take(positions)``, also where a text column is larger than one Arrow array may be.

    Nothing is copied where these are all rows as they stand: sorted rows, for instance.
    """
    if len(positions) == rows.num_rows and (positions == np.arange(len(positions))).all():
        return rows
    if rows.nbytes < _MAX_BYTES:
        return taken_rows(rows, positions)
    batches = rows.to_batches()
    starts = np.cumsum([0, *(batch.num_rows for batch in batches)])
    length = max(1, int(len(positions) * _MAX_BYTES / (4 * rows.nbytes)))
    pieces = [
        gather_parts(starts, positions[first : first + length], batches.__getitem__)
        for first in range(0, len(positions), length)
    ]
    return pa.Table.from_batches(pieces, rows.schema)


def gather_parts(
    starts: Positions, positions: npt.NDArray[np.integer[Any]], part: Callable[[int], pa.RecordBatch]
) -> pa.RecordBatch:
    """Some rows, at least one, of parts that begin at ``starts``: one take of each, then into their order."""
    part_of = np.searchsorted(starts, positions, side="right") - 1
    taken, asked = [], []
    for number in np.unique(part_of).tolist():
        at = np.flatnonzero(part_of == number)
        taken.append(part(number).take(pa.array(positions[at] - starts[number])))
        asked.append(at)
    if len(taken) == 1:
        return taken[0]
    order = np.empty(len(positions), dtype=np.int64)
    order[np.concatenate(asked)] = np.arange(len(positions))
    return pa.concat_batches(taken).take(pa.array(order))


def same_rows(one: pa.Table, of_one: Positions, other: pa.Table, of_other: Positions) -> Positions:
    """Which pairs (row ``of_one[i]``, row ``of_other[i]``) have the same values in all columns of ``one``.

    Equal are NULL and NULL, NaN and NaN, maps with the same entries in any order; not -0.0 and 0.0. A column
    is looked at only where all before it were equal, the cheap ones first: rows that differ mostly do so
    soon.

    >>> rows = pa.table({"a": [1, 1, None, None]})
    >>> same_rows(rows, np.array([0, 1, 2]), rows, np.array([1, 2, 3])).tolist()
    [0, 2]
    """
    same = np.arange(len(of_one))
    for field in sorted(one.schema, key=lambda field: cost_to_compare(field.type)):
        if not len(same):
            break
        left, right = (
            gather(one.select([field.name]), of_one[same]),
            gather(other.select([field.name]), of_other[same]),
        )
        same = same[same_values(one_array(left.column(0)), one_array(right.column(0)))]
    return same


def cost_to_compare(type_: pa.DataType) -> int:
    """Which values of two types to compare first: those of the lower cost."""
    return 2 if not types.is_scalar(type_) else int(is_text(type_))


_LEAST_BYTES_A_ROW: Final = 32
"""Sorting a row takes about so much, however narrow it is."""


def weight(run: SortedRows) -> int:
    """About how many bytes of memory it takes to merge or to write these rows."""
    return max(_LEAST_BYTES_A_ROW * int(run.rows.num_rows), int(run.rows.nbytes))


class Cuttable(Protocol):
    """Sorted rows that can be cut before they are read."""

    def __len__(self) -> int:
        """Number of rows."""

    @property
    def size(self) -> int:
        """About how many bytes of memory they take."""

    def key(self, row: int) -> bytes:
        """The key of one of them, see ``keys.key_bytes``."""

    def slice(self, start: int, length: int) -> Cuttable:
        """Some of them."""

    def load(self) -> SortedRows:
        """The rows themselves."""


def key_ranges(
    layout: Layout, inputs: Sequence[SortedRows | Cuttable], max_bytes: int
) -> Iterator[list[SortedRows]]:
    """The inputs range by range, ascending: of each input its rows of that range, if there are any.

    Rows ascend by key, which an input may have several times. No range has more than ``max_bytes`` of
    ``weight``, but for one that is the rows of a single key.
    """
    runs = [_Held(run, layout) if isinstance(run, SortedRows) else run for run in inputs]
    yield from _ranges(runs, max_bytes)


def _ranges(inputs: Sequence[Cuttable], max_bytes: int) -> Iterator[list[SortedRows]]:
    given = [run for run in inputs if len(run)]
    cut = _cut(given) if sum(map(_weight, given)) > max_bytes else None
    if cut is None:
        if given:
            yield [run.load() for run in given]
        return
    yield from _ranges([run.slice(0, at) for run, at in zip(given, cut, strict=True)], max_bytes)
    above = [run.slice(at, len(run) - at) for run, at in zip(given, cut, strict=True)]
    yield from _ranges(above, max_bytes)


def halves(run: SortedRows, max_bytes: int) -> Iterator[SortedRows]:
    """The rows in order, halved until each part has at most this ``weight`` or one row."""
    rows = run.rows.num_rows
    if rows <= 1 or weight(run) <= max_bytes:
        if rows:
            yield run
        return
    yield from halves(run.slice(0, rows // 2), max_bytes)
    yield from halves(run.slice(rows // 2, rows - rows // 2), max_bytes)


def _weight(run: Cuttable) -> int:
    return max(_LEAST_BYTES_A_ROW * len(run), run.size)


def _cut(inputs: Sequence[Cuttable]) -> list[int] | None:
    """How many rows of each input lie below a key near the middle; None if all have one key."""
    for largest in sorted(inputs, key=_weight, reverse=True):
        count = len(largest)
        cut = _rows_below(inputs, largest.key(count // 2))
        if any(cut):
            return cut
        # the lower half is one key: cut above it
        if (above := bisect_right(range(count), largest.key(0), key=largest.key)) < count:
            return _rows_below(inputs, largest.key(above))
    return None


def _rows_below(inputs: Sequence[Cuttable], key: bytes) -> list[int]:
    return [bisect_left(range(len(run)), key, key=run.key) for run in inputs]


class _Held:
    """Rows in memory or mapped."""

    def __init__(self, run: SortedRows, layout: Layout) -> None:
        self._run = run
        self._layout = layout
        self._columns = [run.rows.column(name) for name in layout.key]

    def __len__(self) -> int:
        return int(self._run.rows.num_rows)

    @property
    def size(self) -> int:
        return int(self._run.rows.nbytes)

    def key(self, row: int) -> bytes:
        return key_bytes([column.slice(row, 1) for column in self._columns])

    def slice(self, start: int, length: int) -> _Held:
        return _Held(self._run.slice(start, length), self._layout)

    def load(self) -> SortedRows:
        return self._run
