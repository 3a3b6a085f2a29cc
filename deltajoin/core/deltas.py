"""Plans at work: the changes of one table carried up the tree, other tables looked up on the way (pure).

Rows stream through INNER joins in pieces of bounded size. Below an outer join whose other side may gain or
lose its last match, the moving side's rows are collected first (as positions), because all that moves under
one key counts at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, assert_never

import numpy as np
import pyarrow as pa

from deltajoin.core.keys import KeyChunks, equal_pairs, have_values
from deltajoin.core.plans import (
    Attach,
    Delta,
    Equal,
    InnerDelta,
    InnerLookup,
    LeafDelta,
    LeafLookup,
    Lookup,
    OuterDelta,
    OuterLookup,
    WhereDelta,
    WhereLookup,
)
from deltajoin.core.rows import (
    PROBE,
    Bundle,
    Changes,
    Marks,
    TablePart,
    concatenated,
    equal_keys,
    keys_of,
)
from deltajoin.expressions import Condition
from upsert.arrays import Ints, Mask, taken_rows
from upsert.conditions import evaluate as conditions
from upsert.errors import ChangelogError
from upsert.rowkind import DELETE, INSERT
from upsert.store.rows.codes import numbers_of_keys


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
            joined = self.rows.take(pairs.left).beside(self.found, pairs.right)
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


Match = Callable[[Sequence[str], pa.Table, Sequence[str]], tuple[Ints, pa.Table]]
"""A lookup in one table at a pinned version: columns, distinct keys of them (no NULL), columns to bring ->
for each row found which key it matches, and the rows."""

LOOKUP_PIECE: Final = 1_048_576
"""Pairs of a subtree's lookup that are made at once."""


@dataclass(frozen=True)
class PathVersions:
    """What one path sees: every table at the version that it has for this path.

    ``marks`` gives the marks of keys of a table, by columns; None where nothing can cancel. ``piece`` is how
    many rows are carried at once at most.
    """

    match: Mapping[int, Match]
    marks: Callable[[int, Sequence[str], pa.Table], Marks] | None
    schemas: Mapping[int, pa.Schema]
    piece: int

    def changes(self, plan: Delta, changes: Changes) -> Iterator[Bundle]:
        """Signed rows of the join that the changes of the plan's table bring, in pieces."""
        match plan:
            case LeafDelta(table):
                if changes.rows.num_rows:
                    yield Bundle.of({table: TablePart.all_of(changes.images)}, changes.kinds)
            case WhereDelta(child, condition):
                for rows in self.changes(child, changes):
                    yield rows.where(fulfilled(rows, (), condition))
            case InnerDelta(child, equal, where, steps):
                is_free = not equal and where is None
                for rows in self.changes(child, changes):
                    own = rows if is_free else rows.where(fulfilled(rows, equal, where))
                    yield from self._steps(own, steps, None)
            case OuterDelta():
                yield from self._outer(plan, changes)
            case _:
                assert_never(plan)

    def lookup(self, plan: Lookup, keys: pa.Table) -> tuple[Bundle, Marks]:
        """Rows that have one of the distinct keys, the keys beside them; and the marks of each key."""
        match plan:
            case LeafLookup():
                return self._leaf(plan, keys)
            case WhereLookup(child, condition):
                rows, marks = self.lookup(child, keys)
                return rows.where(fulfilled(rows, (), condition)), marks
            case InnerLookup(steps):
                marks = np.zeros(keys.num_rows, np.uint8)
                probe = Bundle.of({PROBE: TablePart.all_of(keys)})
                return self._collected(plan, keys, self._steps(probe, steps, marks)), marks
            case OuterLookup():
                marks = np.zeros(keys.num_rows, np.uint8)
                return self._collected(plan, keys, self._outer_rows(plan, keys, marks)), marks

    def _leaf(self, plan: LeafLookup, keys: pa.Table) -> tuple[Bundle, Marks]:
        by = [ref.column for ref in plan.by]
        at, rows = self.match[plan.table](by, keys.rename_columns(by), plan.select)
        marks = np.zeros(keys.num_rows, np.uint8) if self.marks is None else self.marks(plan.table, by, keys)
        parts = {PROBE: TablePart(keys, at), plan.table: TablePart.all_of(rows.combine_chunks())}
        return Bundle.of(parts), marks

    def _collected(self, plan: Lookup, keys: pa.Table, pieces: Iterator[Bundle]) -> Bundle:
        found = [rows for rows in pieces if len(rows)]
        if found:
            return concatenated(found)
        nothing = Bundle.of({PROBE: TablePart(keys, np.empty(0, np.int64))})
        return nothing.padded(_tables(plan), self.schemas)

    def _outer_rows(self, plan: OuterLookup, keys: pa.Table, noted: Marks) -> Iterator[Bundle]:
        probe = Bundle.of({PROBE: TablePart.all_of(keys)})
        for rows in self._steps(probe, (plan.start,), noted):
            for chunk in self._matches(rows, plan.other, noted):
                has_pairs = plan.own in ("pad", None)
                counts = np.zeros(len(chunk.rows), np.int64)
                for own, _, joined in chunk.joined(self.piece):
                    counts += np.bincount(own, minlength=len(counts))
                    if has_pairs:
                        yield joined.where(equal_keys(joined, plan.equal))
                rest = self._own(chunk.rows, plan.own, counts, plan.pads)
                yield rest.where(equal_keys(rest, plan.equal))

    def _steps(self, rows: Bundle, steps: Sequence[Attach], noted: Marks | None) -> Iterator[Bundle]:
        if not len(rows):
            return
        if not steps:
            yield rows
            return
        for chunk in self._matches(rows, steps[0], noted):
            for _, _, joined in chunk.joined(self.piece if noted is None else LOOKUP_PIECE):
                yield from self._steps(joined, steps[1:], noted)

    def _matches(self, rows: Bundle, step: Attach, noted: Marks | None) -> Iterator[Chunk]:
        """Each row once, with what its key finds; rows whose key has a NULL find nothing."""
        keys = keys_of(rows, step.sources)
        usable = have_values(keys, keys.column_names)
        if not usable.all():
            lonely = np.flatnonzero(~usable)
            yield Chunk(rows.take(lonely), lonely, np.zeros(len(lonely), np.int64), None, step)
            if len(lonely) == len(rows):
                return
            keys = keys.filter(pa.array(usable))
        at = np.flatnonzero(usable)
        chunks = KeyChunks(numbers_of_keys([column.combine_chunks() for column in keys.columns]))
        for chunk in chunks:
            distinct = taken_rows(keys, chunk.first)
            found, marks = self.lookup(step.lookup, distinct)
            chunks.found(len(found))
            positions = at[chunk.positions]
            own = rows.take(positions)
            own = replace(own, marks=own.marks | marks[chunk.keys])
            if noted is not None:
                np.bitwise_or.at(noted, own.parts[PROBE].at, own.marks)
            yield Chunk(own, positions, chunk.keys, found, step)

    def _outer(self, plan: OuterDelta, changes: Changes) -> Iterator[Bundle]:
        pieces = self.changes(plan.child, changes)
        if plan.turned is not None:
            collected = [rows for rows in pieces if len(rows)]
            pieces = iter([concatenated(collected)] if collected else [])
        for rows in pieces:
            for chunk in self._matches(rows, plan.other, None):
                yield from (out for out in self._outer_chunk(plan, chunk) if len(out))

    def _outer_chunk(self, plan: OuterDelta, chunk: Chunk) -> Iterator[Bundle]:
        """Pairs, own rows and turned rows of some keys, all of whose moving rows are in the chunk."""
        counts = np.zeros(len(chunk.rows), np.int64)
        others = 0 if chunk.found is None else len(chunk.found)
        change, is_touched = np.zeros(others, np.int64), np.zeros(others, np.bool_)
        for own, other, joined in chunk.joined(self.piece):
            counts += np.bincount(own, minlength=len(counts))
            if plan.turned is not None:
                sign = joined.signs
                change += np.bincount(other[sign > 0], minlength=others)
                change -= np.bincount(other[sign < 0], minlength=others)
                is_touched[other] = True
            if plan.has_pairs:
                yield joined
        yield self._own(chunk.rows, plan.own, counts, plan.other_tables)
        if is_touched.any():
            yield self._turned(plan, chunk.others(np.flatnonzero(is_touched)), change[is_touched])

    def _own(self, rows: Bundle, own: str | None, counts: Ints, pads: frozenset[int]) -> Bundle:
        """What comes out of rows for having so many matches."""
        match own:
            case "pad":
                return rows.where(counts == 0).padded(pads, self.schemas)
            case "semi":
                return rows.where(counts > 0)
            case "anti":
                return rows.where(counts == 0)
            case _:
                return rows.take(np.empty(0, np.int64)).padded(pads, self.schemas)

    def _turned(self, plan: OuterDelta, rows: Bundle, change: Ints) -> Bundle:
        """What comes out of the other side's rows for their number of matches having changed."""
        assert plan.back is not None
        before, rows = self._counted(rows, plan.back)
        after = before + change
        if (after < 0).any():
            raise ChangelogError(
                "delta join: changes delete rows that the old version of their table does not have; "
                "the table was changed by other means than commits"
            )
        weight = (after == 0).astype(np.int64) - (before == 0)
        weight = -weight if plan.turned == "semi" else weight
        turned = rows.only(plan.other_tables).take(np.flatnonzero(weight))
        kinds = np.where(weight[weight != 0] > 0, INSERT, DELETE).astype(np.int8)
        turned = replace(turned, kinds=kinds)
        return turned.padded(plan.own_tables, self.schemas) if plan.turned == "pad" else turned

    def _counted(self, rows: Bundle, step: Attach) -> tuple[Ints, Bundle]:
        """How many rows match each row; and the rows with the marks of these lookups."""
        counts, marks = np.zeros(len(rows), np.int64), rows.marks.copy()
        for chunk in self._matches(rows, step, None):
            counts[chunk.positions] = chunk.counts(self.piece)
            marks[chunk.positions] |= chunk.rows.marks
        return counts, replace(rows, marks=marks)


def _tables(plan: Lookup) -> frozenset[int]:
    """Tables whose parts the rows of a lookup have."""
    match plan:
        case LeafLookup(table):
            return frozenset((table,))
        case WhereLookup(child):
            return _tables(child)
        case InnerLookup(steps):
            return frozenset().union(*(_tables(step.lookup) for step in steps))
        case OuterLookup(start, _, _, pads):
            return _tables(start.lookup) | pads
