"""Several sorted inputs cut into ranges of keys, so that each range can be merged on its own (pure).

What is merged may be larger than memory: inputs are memory-mapped files, and a range is a list of views of
them. A cut lies at the middle key of the largest input; ranges are halved until each is small enough. As a
key is never cut in two, whatever can be said of the rows of a key can be said range by range.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

from upsert.store.layout import Layout
from upsert.store.merge import SortedRows
from upsert.store.row_keys import key_bytes

_LEAST_BYTES_A_ROW: Final = 32
"""Sorting a row takes about so much, however narrow it is."""


def weight(run: SortedRows) -> int:
    """About how many bytes of memory it takes to merge or to write these rows."""
    least: int = _LEAST_BYTES_A_ROW * run.rows.num_rows
    return least if run.rows.nbytes < least else int(run.rows.nbytes)


def key_ranges(layout: Layout, inputs: Sequence[SortedRows], max_bytes: int) -> Iterator[list[SortedRows]]:
    """The inputs range by range, ascending: of each input its rows of that range, if there are any.

    Args:
        layout: the table's layout.
        inputs: rows ascending by key, the same key as often as it likes; in an order that the ranges keep.
        max_bytes: largest ``weight`` of a range; only the rows of a single key may weigh more.

    >>> import pyarrow as pa
    >>> from upsert.schema import TableSchema
    >>> layout = Layout.of(TableSchema.of({"id": pa.int64()}, primary_key=["id"]))
    >>> inputs = [SortedRows(pa.table({"id": ids}), None) for ids in ([1, 4, 5, 9], [4, 8])]
    >>> [[run.rows["id"].to_pylist() for run in found] for found in key_ranges(layout, inputs, 96)]
    [[[1, 4], [4]], [[5, 9], [8]]]
    """
    given = [run for run in inputs if run.rows.num_rows]
    cut = _cut(layout, given) if sum(map(weight, given)) > max_bytes else None
    if cut is None:
        if given:
            yield given
        return
    below = [_slice(run, 0, at) for run, at in zip(given, cut, strict=True)]
    above = [_slice(run, at, run.rows.num_rows - at) for run, at in zip(given, cut, strict=True)]
    yield from key_ranges(layout, below, max_bytes)
    yield from key_ranges(layout, above, max_bytes)


def halves(run: SortedRows, max_bytes: int) -> Iterator[SortedRows]:
    """The rows in order, halved until each part has at most this ``weight`` or one row."""
    rows = run.rows.num_rows
    if rows <= 1 or weight(run) <= max_bytes:
        if rows:
            yield run
        return
    yield from halves(_slice(run, 0, rows // 2), max_bytes)
    yield from halves(_slice(run, rows // 2, rows - rows // 2), max_bytes)


def _cut(layout: Layout, inputs: Sequence[SortedRows]) -> list[int] | None:
    """How many rows of each input lie below a key near the middle; None if all have one key."""
    for largest in sorted(inputs, key=weight, reverse=True):
        keys, count = _Keys(layout, largest), largest.rows.num_rows
        cut = _rows_below(layout, inputs, keys[count // 2])
        if any(cut):
            return cut
        # the lower half is one key: cut above it
        if (above := bisect_right(keys, keys[0], 0, count)) < count:
            return _rows_below(layout, inputs, keys[above])
    return None


def _rows_below(layout: Layout, inputs: Sequence[SortedRows], key: bytes) -> list[int]:
    return [bisect_left(_Keys(layout, run), key, 0, run.rows.num_rows) for run in inputs]


class _Keys:
    """The keys of a run as bytes, by row number; each is read when it is asked for."""

    def __init__(self, layout: Layout, run: SortedRows) -> None:
        self._columns = [run.rows.column(name) for name in layout.key]

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, row: int) -> bytes:
        return key_bytes([column.slice(row, 1) for column in self._columns])


def _slice(run: SortedRows, start: int, length: int) -> SortedRows:
    kinds = None if run.kinds is None else run.kinds[start : start + length]
    return SortedRows(run.rows.slice(start, length), kinds)
