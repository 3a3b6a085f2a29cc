"""What rows find on another side by their keys, and which pairs of both meet the condition (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from deltajoin import conditions
from deltajoin.bundles import PROBE, Bundle, Mask, equal_keys
from deltajoin.expressions import Condition
from deltajoin.pairs import equal_pairs
from deltajoin.plans import Attach, Equal
from deltajoin.row_codes import Ints


@dataclass(frozen=True)
class Chunk:
    """Rows of some keys and what these keys found: row i has key ``keys[i]``, a position among the keys."""

    rows: Bundle
    positions: Ints
    keys: Ints
    found: Bundle | None
    step: Attach

    def joined(self, piece: int) -> Iterator[tuple[Ints, Ints, Bundle]]:
        """Matches in pieces: positions in ``rows``, positions in ``found``, and the joined rows."""
        if self.found is None:
            return
        for pairs in equal_pairs(self.keys, self.found.parts[PROBE].at, at_most=piece):
            joined = self.rows.take(pairs.left).beside(self.found.take(pairs.right))
            if not self.step.equal and self.step.where is None:
                yield pairs.left, pairs.right, joined
                continue
            holds = fulfilled(joined, self.step.equal, self.step.where)
            if holds.all():
                yield pairs.left, pairs.right, joined
            else:
                yield pairs.left[holds], pairs.right[holds], joined.where(holds)

    def counts(self, piece: int) -> Ints:
        """Number of matches of each row."""
        if self.found is None:
            return np.zeros(len(self.rows), np.int64)
        if not self.step.equal and self.step.where is None:
            of_key = np.bincount(self.found.parts[PROBE].at, minlength=int(self.keys.max()) + 1)
            return of_key[self.keys]
        counts = np.zeros(len(self.rows), np.int64)
        for own, _, _ in self.joined(piece):
            counts += np.bincount(own, minlength=len(counts))
        return counts

    def others(self, positions: Ints) -> Bundle:
        """Rows of ``found``, with the marks of all rows of their key."""
        assert self.found is not None
        marks = np.zeros(int(self.keys.max()) + 1, np.uint8)
        np.bitwise_or.at(marks, self.keys, self.rows.marks)
        rows = self.found.take(positions)
        return replace(rows, marks=marks[rows.parts[PROBE].at])


def fulfilled(rows: Bundle, equal: Equal, where: Condition | None) -> Mask:
    """Which rows agree in these columns and meet the condition."""
    mask = equal_keys(rows, equal)
    if where is None or not len(rows):
        return mask
    return mask & conditions.mask(where, rows.column, len(rows))
