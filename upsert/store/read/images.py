"""The images of the keys that a step touches, at its base and at its target, and the changes that they make.

Which keys a step touches and where their rows lie says nothing of columns. Of a small step both that and the
columns that were read are kept in the process: the stages of a view, and all views over one table, read the
same steps, each with other columns and other filters.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final, NamedTuple, Self, TypeVar

import numpy as np
import pyarrow as pa

from upsert.arrays import Mask, Positions, one_array
from upsert.rowkind import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, with_row_kind
from upsert.store.files.data_file import DataFile
from upsert.store.kept import ENTRY_BYTES, KeptArrays
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.read.snapshot import Place, Snapshot
from upsert.store.rows.keys import order_by, same_values
from upsert.store.rows.merge import SortedRows, cost_to_compare, gather, joined, same_rows

_T = TypeVar("_T")

KEPT_BYTES: Final = 32 << 20
"""What a process keeps of all steps."""


class Touched(NamedTuple):
    """The keys of the rows of a step: each once, the number of its newest row, and whether that is there.

    It may say that the key is gone.
    """

    keys: pa.Table
    newest: Positions
    is_after: Mask

    @classmethod
    def by(cls, key: Sequence[str], runs: Sequence[SortedRows]) -> Self:
        """The keys of some runs of a table with a primary key, oldest first."""
        rows, kinds = joined([SortedRows(run.rows.select(list(key)), run.kinds) for run in runs])
        rows = rows.combine_chunks()
        if len(runs) == 1:
            newest, keys = np.arange(rows.num_rows), rows
        else:
            newest = order_by([rows.column(name) for name in key]).lasts
            keys = gather(rows, newest)
        is_after = np.ones(len(newest), np.bool_) if kinds is None else kinds[newest] == 0
        return cls(keys, newest, is_after)


@dataclass(frozen=True)
class Images:
    """The images of some keys, of which none has a column yet.

    Attributes:
        newest: of each key the number of its newest row among those of the step.
        is_after: whether that row is there at the target.
        before_of: of each key the number of its row at the base; -1 for none.
    """

    newest: Positions
    is_after: Mask
    before_of: Positions

    @classmethod
    def of(cls, touched: Touched, of_rows: Positions) -> Self:
        """Of the keys of a step; ``of_rows`` says of each row at the base which of them it has."""
        before_of = np.full(len(touched.newest), -1, np.int64)
        before_of[of_rows] = np.arange(len(of_rows))
        return cls(touched.newest, touched.is_after, before_of)

    @cached_property
    def both(self) -> Positions:
        """The keys that have both images."""
        return np.flatnonzero(self.is_after & (self.before_of >= 0))

    def changes(self, before: pa.Table, after: pa.Table, same: Positions | Mask) -> pa.Table:
        """Signed rows: of each key that has changed its images, the old one just before the new one.

        Args:
            before: the rows at the base.
            after: those of the step.
            same: which of the keys that have ``both`` images have not changed.
        """
        if not before.num_rows:  # nothing but new keys, as in a log of events
            return with_row_kind(gather(after, self.newest[self.is_after]), INSERT)
        is_changed = np.ones(len(self.newest), np.bool_)
        is_changed[self.both[same]] = False
        leaves, comes = (self.before_of >= 0) & is_changed, self.is_after & is_changed
        leaving, coming = np.flatnonzero(leaves), np.flatnonzero(comes)
        stop = np.cumsum(leaves.astype(np.int64) + comes)
        old, new = stop[leaving] - 1 - comes[leaving], stop[coming] - 1
        rows, kinds = np.empty(len(old) + len(new), np.int64), np.empty(len(old) + len(new), np.int8)
        rows[old], rows[new] = self.before_of[leaving], self.newest[coming] + before.num_rows
        kinds[old] = np.where(self.is_after[leaving], UPDATE_BEFORE, DELETE)
        kinds[new] = np.where(self.before_of[coming] >= 0, UPDATE_AFTER, INSERT)
        images = pa.concat_tables([pa.Table.from_arrays(before.columns, schema=after.schema), after])
        return with_row_kind(gather(images, rows), kinds)


def changes_since(base: Snapshot, runs: Sequence[SortedRows], names: Sequence[str]) -> pa.Table:
    """The changes of the keys of some runs since a base: of a table with a primary key, oldest run first.

    The rows have these columns and the key's.
    """
    key = base.layout.key
    touched = Touched.by(key, runs)
    positions, before = base.match(key, touched.keys, select=names)
    images = Images.of(touched, positions)
    after = joined(runs).rows.select(list(names)).combine_chunks()
    values = before.select([name for name in names if name not in key])
    pairs = images.before_of[images.both], images.newest[images.both]
    return images.changes(before, after, same_rows(values, pairs[0], after, pairs[1]))


class _Column(NamedTuple):
    """A column of the rows at the base, and of the newest rows of a step; copies, see ``KeptArrays``."""

    before: pa.Array
    after: pa.Array

    @property
    def nbytes(self) -> int:
        return int(self.before.nbytes + self.after.nbytes)


class _Found(NamedTuple):
    """Which keys a step touches in a bucket, and where their rows lie at its base.

    Of the rows of the step only the ``newest`` ones, by their numbers, are those that ``images`` names.
    """

    images: Images
    places: tuple[Place, ...]
    newest: Positions

    @property
    def nbytes(self) -> int:
        images = self.images
        arrays = [self.newest, images.newest, images.is_after, images.before_of, images.both]
        arrays += [array for place in self.places for array in (place.numbers, place.of_key)]
        return sum(array.nbytes for array in arrays) + ENTRY_BYTES * len(self.places)


_KEPT = KeptArrays[tuple[Hashable, ...], Any](KEPT_BYTES, lambda kept: int(kept.nbytes))
"""What was found of steps, their columns, and in which pairs of rows a column has the same value."""


@dataclass(frozen=True)
class KeptStep:
    """A small step of a bucket, of which what is read is kept.

    Attributes:
        base: the table at the base.
        root: folder of the table's files.
        old: files of the base that have gone, in which keys are touched too.
        new: the files of the step, oldest first.
    """

    base: Snapshot
    root: str
    old: tuple[FileEntry, ...]
    new: tuple[FileEntry, ...]

    def changes(self, names: Sequence[str]) -> pa.Table:
        """Signed rows of these columns."""
        layout, found = self.base.layout, self._found
        images, columns = found.images, self._columns(found, names)
        schema = pa.schema([layout.stored.field(name) for name in names])
        before, after = (pa.Table.from_arrays(list(one), schema=schema) for one in zip(*columns, strict=True))
        same = np.ones(len(images.both), np.bool_)
        values = [pair for pair in zip(names, columns, strict=True) if pair[0] not in layout.key]
        for name, column in sorted(values, key=lambda pair: cost_to_compare(pair[1].after.type)):
            if not same.any():
                break
            same = same & self._kept(partial(_same, images, column), name, "same")
        return images.changes(before, after, same)

    @cached_property
    def _known_by(self) -> tuple[Hashable, ...]:
        """What is the same only for the same rows: a file's name means one content for ever."""
        files = tuple(entry.file for entry in self.old), tuple(entry.file for entry in self.new)
        return self.root, self.base.info.uuid, self.base.layout.identity, *files

    def _kept(self, make: Callable[[], _T], *more: str) -> _T:
        key = (self._known_by, *more)
        found: _T | None = _KEPT.get(key)
        if found is None:
            found = make()
            _KEPT.put(key, found)
        return found

    @property
    def _found(self) -> _Found:
        return self._kept(self._find)

    def _find(self) -> _Found:
        key = self.base.layout.key
        gone = [SortedRows(self._rows(entry, key), np.ones(entry.rows, np.int8)) for entry in self.old]
        came = [SortedRows(self._rows(entry, key), self._open(entry).kinds) for entry in self.new]
        touched = Touched.by(key, [*gone, *came])
        places = [
            Place(entry, numbers.copy(), of_key) for entry, numbers, of_key in self.base.places(touched.keys)
        ]
        of_rows = [np.empty(0, np.int64), *(place.of_key for place in places)]
        newest_alone = touched._replace(newest=np.arange(len(touched.newest)))
        return _Found(Images.of(newest_alone, np.concatenate(of_rows)), tuple(places), touched.newest)

    def _columns(self, found: _Found, names: Sequence[str]) -> list[_Column]:
        columns: dict[str, _Column] = {}
        for name in names:
            if (kept := _KEPT.get((self._known_by, name))) is not None:
                columns[name] = kept
        if missing := [name for name in names if name not in columns]:
            before = self.base.rows_at(found.places, missing)
            rows = pa.concat_tables([self._rows(entry, missing) for entry in (*self.old, *self.new)])
            after = rows.combine_chunks().take(pa.array(found.newest))  # a copy, also of all rows
            for name in missing:
                column = _Column(one_array(before.column(name)), one_array(after.column(name)))
                _KEPT.put((self._known_by, name), column)
                columns[name] = column
        return [columns[name] for name in names]

    def _open(self, entry: FileEntry) -> DataFile:
        return DataFile.open(self.root, self.base.layout, entry)

    def _rows(self, entry: FileEntry, names: Sequence[str]) -> pa.Table:
        return pa.Table.from_batches([self._open(entry).select(names)])


def _same(images: Images, column: _Column) -> Mask:
    """In which keys with both images a column has the same value in both."""
    both = images.both
    before = column.before.take(pa.array(images.before_of[both]))
    return same_values(before, column.after.take(pa.array(images.newest[both])))
