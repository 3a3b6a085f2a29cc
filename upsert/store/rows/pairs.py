"""Which rows of one table have the values of rows of another one (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upsert.arrays import Ints, Mask, Positions, is_null
from upsert.store.rows.codes import comparable


class Met(NamedTuple):
    """Of each of some rows how many it meets, and where the first of these stands in their order."""

    first: Positions
    counts: Positions


class EqualRows:
    """Rows by the values of some columns, which others are asked for that have columns of the same types.

    Values are equal as those of keys: NaN equals itself, -0.0 equals 0.0, and NULL equals nothing. What is
    made of the rows is made once, so others may come a piece at a time.

    >>> rows = EqualRows([pa.array(["a", "b", None, "b"])])
    >>> asked = rows.met([pa.array(["b", "c", None, "a"])])
    >>> asked.counts.tolist()
    [2, 0, 0, 1]
    >>> [(mine.tolist(), theirs.tolist()) for mine, theirs in rows.pairs(asked, most=2)]
    [([0, 0], [1, 3]), ([3], [0])]
    >>> rows.rows(asked).tolist()
    [0, 1, 3]
    """

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        known = np.flatnonzero(~_has_null(columns))
        encoded = [comparable(column.take(pa.array(known))).dictionary_encode() for column in columns]
        self._values = [one.dictionary for one in encoded]
        self._steps = list[Ints]()
        """Behind the first column the codes of all before, so that codes stay small, in ascending order."""
        codes, *others = (one.indices.to_numpy().astype(np.int64) for one in encoded)
        for other, values in zip(others, self._values[1:], strict=True):
            step, codes = np.unique(codes * len(values) + other, return_inverse=True)
            self._steps.append(step)
        self._count = np.bincount(codes, minlength=1)
        self._first = np.cumsum(self._count) - self._count
        self._order = known[np.argsort(codes, kind="stable")]

    def met(self, columns: Sequence[pa.Array]) -> Met:
        """The rows that each of some rows equals."""
        codes = self._codes(columns)
        is_known = codes >= 0
        first, counts = (np.where(is_known, own[codes], 0) for own in (self._first, self._count))
        return Met(first, counts)

    def _codes(self, columns: Sequence[pa.Array]) -> Ints:
        """The code of each row, -1 for one that is not there."""
        codes, *others = (
            pc.index_in(comparable(column), value_set=values).fill_null(-1).to_numpy().astype(np.int64)
            for column, values in zip(columns, self._values, strict=True)
        )
        for other, values, step in zip(others, self._values[1:], self._steps, strict=True):
            is_known = (codes >= 0) & (other >= 0)
            asked = codes * len(values) + other
            at = np.minimum(np.searchsorted(step, asked), max(0, len(step) - 1))
            is_known[is_known] = step[at[is_known]] == asked[is_known]
            codes = np.where(is_known, at, -1)
        found: Ints = codes
        return found

    def rows(self, met: Met) -> Positions:
        """The rows that any of those which have been asked meets, each once."""
        asked = np.flatnonzero(met.counts)
        first, at = np.unique(met.first[asked], return_index=True)
        counts = met.counts[asked[at]]
        ends = np.cumsum(counts)
        within = np.arange(int(counts.sum())) + np.repeat(first - (ends - counts), counts)
        found: Positions = self._order[within]
        return found

    def pairs(self, met: Met, most: int) -> Iterator[tuple[Positions, Positions]]:
        """Each row that has been asked with each that it meets, by their positions; so many at a time."""
        ends = np.cumsum(met.counts)
        for start in range(0, int(ends[-1]) if len(ends) else 0, most):
            stop = min(start + most, int(ends[-1]))
            low, high = np.searchsorted(ends, [start, stop - 1], side="right")
            within = slice(low, high + 1)
            bounds = np.clip(np.append(ends[low] - met.counts[low], ends[within]), start, stop)
            mine = np.repeat(np.arange(low, high + 1), np.diff(bounds))
            at = np.arange(start, stop) - (ends - met.counts)[mine]
            yield mine, self._order[met.first[mine] + at]


def _has_null(columns: Sequence[pa.Array]) -> Mask:
    found: npt.NDArray[np.bool_] = np.logical_or.reduce([is_null(column) for column in columns])
    return found
