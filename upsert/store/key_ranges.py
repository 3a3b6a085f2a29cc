"""Several sorted inputs cut into ranges of keys, so that each range can be merged on its own (pure).

What is merged may be larger than memory: inputs are memory-mapped files, of which a range has views, or
compressed ones, of which it is decoded. A cut lies at the middle key of the largest input; ranges are halved
until each is small enough. As a key is never cut in two, whatever can be said of the rows of a key can be
said range by range.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from upsert.store.layout import Layout
from upsert.store.merge import SortedRows
from upsert.store.row_keys import key_bytes

_LEAST_BYTES_A_ROW: Final = 32
"""Sorting a row takes about so much, however narrow it is."""


def weight(run: SortedRows) -> int:
    """About how many bytes of memory it takes to merge or to write these rows."""
    least: int = _LEAST_BYTES_A_ROW * run.rows.num_rows
    return least if run.rows.nbytes < least else int(run.rows.nbytes)


class Cuttable(Protocol):
    """Sorted rows that can be cut before they are read."""

    def __len__(self) -> int:
        """Number of rows."""
        ...

    @property
    def size(self) -> int:
        """About how many bytes of memory they take."""
        ...

    def key(self, row: int) -> bytes:
        """The key of one of them, see ``row_keys.key_bytes``."""
        ...

    def slice(self, start: int, length: int) -> Cuttable:
        """Some of them."""
        ...

    def load(self) -> SortedRows:
        """The rows themselves."""
        ...


def key_ranges(
    layout: Layout, inputs: Sequence[SortedRows | Cuttable], max_bytes: int
) -> Iterator[list[SortedRows]]:
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
    yield from _ranges(
        [_Held(run, layout) if isinstance(run, SortedRows) else run for run in inputs], max_bytes
    )


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
    yield from halves(_slice(run, 0, rows // 2), max_bytes)
    yield from halves(_slice(run, rows // 2, rows - rows // 2), max_bytes)


def _weight(run: Cuttable) -> int:
    return max(_LEAST_BYTES_A_ROW * len(run), run.size)


def _cut(inputs: Sequence[Cuttable]) -> list[int] | None:
    """How many rows of each input lie below a key near the middle; None if all have one key."""
    for largest in sorted(inputs, key=_weight, reverse=True):
        keys, count = _Keys(largest), len(largest)
        cut = _rows_below(inputs, keys[count // 2])
        if any(cut):
            return cut
        # the lower half is one key: cut above it
        if (above := bisect_right(keys, keys[0], 0, count)) < count:
            return _rows_below(inputs, keys[above])
    return None


def _rows_below(inputs: Sequence[Cuttable], key: bytes) -> list[int]:
    return [bisect_left(_Keys(run), key, 0, len(run)) for run in inputs]


class _Keys:
    """The keys of a run by row number; each is read when it is asked for."""

    def __init__(self, run: Cuttable) -> None:
        self._run = run

    def __len__(self) -> int:
        return len(self._run)

    def __getitem__(self, row: int) -> bytes:
        return self._run.key(row)


class _Held:
    """Rows that are there already, in memory or mapped."""

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
        return _Held(_slice(self._run, start, length), self._layout)

    def load(self) -> SortedRows:
        return self._run


def _slice(run: SortedRows, start: int, length: int) -> SortedRows:
    kinds = None if run.kinds is None else run.kinds[start : start + length]
    return SortedRows(run.rows.slice(start, length), kinds)
