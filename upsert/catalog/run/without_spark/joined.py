"""The rows of joined tables, a piece at a time (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert.arrays import Ints, Mask, Positions, indices, one_array, row_bytes
from upsert.catalog.run.without_spark.relations import Join, JoinKind
from upsert.catalog.run.without_spark.rows import Among, Rows, in_memory
from upsert.catalog.run.without_spark.settings import MOST_BYTES
from upsert.store.rows.computed import NotInArrowError
from upsert.store.rows.pairs import EqualRows

_AT_ONCE: Final = 1 << 18
"""So many joined rows are made at a time."""

_BYTES_AT_ONCE: Final = 1 << 24
"""They are fewer where they would take more: each long text of one side may meet every row of the other."""

_LEAST_BYTES: Final = 8
"""What a joined row counts at least: one that is a bit takes as long to be made."""

_FEW_BYTES: Final = 1 << 16
"""A side of so few bytes has few rows, so a join has few, too: those of the other are found by its values."""


@dataclass(frozen=True)
class _Side:
    """One of the two sides of a join.

    Attributes:
        keys: its columns that equal those of the other side.
        names: its columns that are needed.
        gives_met: whether its rows that meet some of the other side come out, each once.
        gives_unmet: whether those come out that meet none.
    """

    rows: Rows
    keys: tuple[str, ...]
    names: tuple[str, ...]
    gives_met: bool
    gives_unmet: bool

    def keys_of(self, rows: pa.Table) -> list[pa.Array]:
        """The columns of some rows that are compared."""
        return [one_array(rows.column(name)) for name in self.keys]

    @property
    def gives(self) -> bool:
        """Whether rows come out without one of the other side."""
        return self.gives_met or self.gives_unmet

    def given(self, is_met: Mask) -> Positions:
        """Which ones."""
        return np.flatnonzero(is_met if self.gives_met else ~is_met)


@dataclass(frozen=True)
class Joined:
    """The rows of a join: those of the smaller side are kept in memory, and the others asked for them.

    Attributes:
        most: how many bytes of joined rows this process makes sooner than Spark.
    """

    left: Rows
    right: Rows
    join: Join
    most: int

    @property
    def types(self) -> Mapping[str, pa.DataType]:
        """Of the columns of both sides, and of those that are made of two."""
        merged = {name: self.left.types[left] for name, (left, _) in self.join.made.items()}
        return {**self.left.types, **(self.right.types if self.join.kind.has_pairs else {}), **merged}

    def size(self, among: Among) -> int:
        """Of both sides; where one of few rows decides which rows there are, of that one."""
        left, right = self.left.size(among), self.right.size(among)
        kind = self.join.kind
        deciding = [] if kind.keeps_right else [left]
        deciding += [] if kind.keeps_left or kind is JoinKind.ANTI else [right]
        return min((size for size in deciding if size <= _FEW_BYTES), default=left + right)

    def pieces(
        self,
        names: Sequence[str],
        among: Among,
        *,
        ends_soon: bool,  # noqa: ARG002
    ) -> Iterator[pa.Table]:
        """The rows, see `Rows`."""
        made = 0
        for columns in self._pieces(names, among):
            piece = pa.table({name: columns[name] for name in names})
            made += max(piece.nbytes, _LEAST_BYTES * piece.num_rows)
            if made > self.most:
                raise NotInArrowError("more joined rows than one process makes")
            yield piece

    def _pieces(self, names: Sequence[str], among: Among) -> Iterator[dict[str, pa.Array]]:
        kept, asked = self._sides(names)
        if self.left.size(among) > self.right.size(among):
            kept, asked = asked, kept
        table = in_memory(kept.rows, kept.names, MOST_BYTES, among).combine_chunks()
        found, is_met = EqualRows(kept.keys_of(table)), np.zeros(table.num_rows, np.bool_)
        if not asked.gives_unmet:
            values = map(pc.drop_null, map(pc.unique, kept.keys_of(table)))
            among = {**among, **dict(zip(asked.keys, values, strict=True))}
        bytes_of_table = _bytes_of(table)
        for piece in asked.rows.pieces(asked.names, among, ends_soon=False):
            met, bytes_of_piece = found.met(asked.keys_of(piece)), _bytes_of(piece)
            for own, other in found.pairs(met, _AT_ONCE) if self.join.kind.has_pairs else ():
                for part in _parts(bytes_of_piece[own] + bytes_of_table[other]):
                    yield self._made(names, {**_taken(piece, own[part]), **_taken(table, other[part])})
            if asked.gives:
                yield self._made(names, _taken(piece, asked.given(met.counts > 0)))
            if kept.gives:
                is_met[found.rows(met)] = True
        if kept.gives:
            yield self._made(names, _taken(table, kept.given(is_met)))

    def _sides(self, names: Sequence[str]) -> tuple[_Side, _Side]:
        kind, (lefts, rights) = self.join.kind, zip(*self.join.equal, strict=True)
        asked = {*names, *lefts, *rights}
        left = tuple(name for name in self.left.types if name in asked)
        right = tuple(name for name in self.right.types if name in asked)
        is_unmet = kind.keeps_left or kind is JoinKind.ANTI
        return (
            _Side(self.left, lefts, left, gives_met=kind is JoinKind.SEMI, gives_unmet=is_unmet),
            _Side(self.right, rights, right, gives_met=False, gives_unmet=kind.keeps_right),
        )

    def _made(self, names: Sequence[str], found: dict[str, pa.Array]) -> dict[str, pa.Array]:
        """Columns of rows that come out, NULL where they have no row of a side."""
        count = len(next(iter(found.values())))
        for name in {*names, *(own for pair in self.join.made.values() for own in pair)} - {*self.join.made}:
            if name not in found:
                found[name] = pa.nulls(count, self.types[name])
        for name, (left, right) in self.join.made.items():
            found[name] = pc.coalesce(found[left], found[right])
        return found


def _taken(rows: pa.Table, at: Positions) -> dict[str, pa.Array]:
    """Some of the rows, by the names of their columns."""
    taken = indices(at)
    return {name: one_array(rows.column(name)).take(taken) for name in rows.column_names}


def _bytes_of(rows: pa.Table) -> Ints:
    """How many bytes each of the rows takes."""
    return sum((row_bytes(one_array(column)) for column in rows.columns), np.zeros(rows.num_rows, np.int64))


def _parts(sizes: Ints) -> Iterator[slice]:
    """Rows of these sizes, not many bytes at a time."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + _BYTES_AT_ONCE, side="right")))
        yield slice(start, stop)
        start = stop
