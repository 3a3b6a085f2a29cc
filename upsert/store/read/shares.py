"""Which rows of a bucket each of several readers of a step needs, found once in a process for all of them.

A reader of a step may want the changes of some keys alone, as a task of a join does: those whose columns, the
join key, have a certain number. Files are in the order of the primary key, so all rows are looked at to find
these. The tasks that a process runs one after the other look at the same files; so what the first one finds
is kept: the places of all touched rows, those of one number together. It follows from files, which never
change, and from the base's rows, which do not change either.

Where the columns belong to the primary key, the images of a row have one number, and nothing but these
columns is read. Otherwise an update may take a row from one number to another. Then the newest row of each
key is found, and of what it replaces these columns alone are looked up: a reader needs the key if either
image has its number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upsert.arrays import Positions, one_array
from upsert.store.files.data_file import DataFile
from upsert.store.kept import KeptArrays
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.paths import Partition
from upsert.store.read.images import Touched
from upsert.store.read.snapshot import PinnedTable, Snapshot
from upsert.store.rows.layout import KIND_COLUMN, Layout
from upsert.store.rows.merge import SortedRows, gather, joined, key_ranges
from upsert.store.version import MAX_HASH

Numbers = npt.NDArray[np.int64]

Limits = tuple[int, int]
"""Smallest and largest hash of a range of keys, both inside."""

PIECE_BYTES: Final = 8 << 20
"""Of the files of a bucket so much is compared at a time: each time uses the same memory, near at hand."""


@dataclass(frozen=True)
class KeyShare:
    """The keys that one of several readers of a step wants: those of which an image has its number.

    Attributes:
        columns: columns that the number of a row follows from.
        number: the reader's own.
        count: how many numbers there are, from 0.
        numbers: gives the number of each row of these columns; equal where it gives the same.
        is_of_key: whether all images of a key have the same values there, because the columns belong to the
            primary key, or the table has none, so that its rows never change.
    """

    columns: tuple[str, ...]
    number: int
    count: int
    numbers: Callable[[pa.Table], Numbers]
    is_of_key: bool = True


class TouchedFile(NamedTuple):
    """A file with touched keys; ``is_old`` says that its rows were replaced or dropped."""

    entry: FileEntry
    is_old: bool


def rows_within(file: DataFile, limits: Limits) -> Positions | None:
    """Numbers of the rows of a file with a key in a range, ascending; None for all."""
    return None if limits == (0, MAX_HASH) else file.rows_of_hashes(*limits)


class TouchedBucket(NamedTuple):
    """A bucket's files with touched keys, oldest first, and in which range of hashes a reader wants them."""

    files: tuple[TouchedFile, ...]
    limits: Limits


class SharedRows(NamedTuple):
    """The rows of some buckets that a reader needs: for each file its numbers of them, ascending.

    ``are_new`` says that none of them is known to replace anything.
    """

    of_files: list[Positions]
    are_new: bool


def shared_rows(
    table: PinnedTable, base: Snapshot | None, buckets: Sequence[TouchedBucket], share: KeyShare
) -> SharedRows:
    """The rows that a reader needs, of the files of some buckets in their order.

    ``base`` has what the rows replace; None for nothing. Of a key that is not only in one file, all rows are
    given or the newest one.
    """
    known_by = (
        table.published.uuid,
        table.layout.identity,
        None if base is None else base.id,
        tuple((limits, *((file.entry.file, file.is_old) for file in files)) for files, limits in buckets),
        (share.columns, share.count, share.numbers, share.is_of_key),
    )
    count = sum(len(bucket.files) for bucket in buckets)
    if (known := _CUTS.get(known_by)) is not None:
        return _rows_of([cut.own(share.number) for cut in known], count, all(cut.are_new for cut in known))
    # the reader's own rows of each bucket, and all of each only as long as they can be kept
    own, cuts, are_new, first = [], [], True, 0
    for bucket in buckets:
        cut = _Cut.of(_places(table, base, bucket, first, share), share.count)
        own.append(cut.own(share.number).copy())
        cuts.append(cut)
        are_new, first = are_new and cut.are_new, first + len(bucket.files)
        if sum(each.size for each in cuts) > KEPT_BYTES:
            cuts.clear()
    if len(cuts) == len(buckets):
        _CUTS.put(known_by, tuple(cuts))
    return _rows_of(own, count, are_new)


def _rows_of(places: Sequence[npt.NDArray[np.int64]], files: int, are_new: bool) -> SharedRows:
    """The rows at some places in each of so many files."""
    if not files:
        return SharedRows([], are_new)
    own = np.sort(np.concatenate(places))
    ends = np.searchsorted(own, np.arange(1, files) << _ROW_BITS).tolist()
    rows = own & _ROW
    return SharedRows([rows[low:high] for low, high in pairwise((0, *ends, len(rows)))], are_new)


class _Touched(NamedTuple):
    """Numbers of some rows, and the place of each: its file's position, and above it in 32 bits its row.

    ``are_new`` says that they were looked up at the base, and none of them replaces anything.
    """

    numbers: Numbers
    places: npt.NDArray[np.int64]
    are_new: bool = False


class _Cut(NamedTuple):
    """The places of touched rows, those of one number together; number n begins at ``starts[n]``.

    ``are_new`` says that they were looked up, and none of them replaces anything.
    """

    places: npt.NDArray[np.int64]
    starts: Positions
    are_new: bool

    @classmethod
    def of(cls, found: Iterator[_Touched], count: int) -> _Cut:
        """Put what was found into the order of numbers, of which there are so many."""
        parts = [_Touched(np.empty(0, np.int64), np.empty(0, np.int64), are_new=True), *found]
        numbers = np.concatenate([part.numbers for part in parts])
        # sixteen bits are put in order without comparing them
        short = numbers.astype(np.uint16) if count <= 1 << 16 else numbers
        places = np.concatenate([part.places for part in parts])[np.argsort(short, kind="stable")]
        starts = np.cumsum([0, *np.bincount(numbers, minlength=count)])
        return cls(places, starts, all(part.are_new for part in parts))

    def own(self, number: int) -> npt.NDArray[np.int64]:
        """The places of the rows of a number."""
        return self.places[self.starts[number] : self.starts[number + 1]]

    @property
    def size(self) -> int:
        """What it takes in memory."""
        return int(self.places.nbytes + self.starts.nbytes)


_ROW_BITS: Final = 32
_ROW: Final = (1 << _ROW_BITS) - 1

KEPT_BYTES: Final = 32 << 20
"""What a process keeps of all shares."""

_CUTS: Final = KeptArrays[tuple[Any, ...], tuple[_Cut, ...]](
    KEPT_BYTES, lambda cuts: sum(cut.size for cut in cuts)
)
"""Those of the buckets of a step by all that they follow from."""


def forget_shares() -> None:
    """Drop what this process has found of shares; the next reader looks at the files again."""
    _CUTS.clear()


def _places(
    table: PinnedTable, base: Snapshot | None, bucket: TouchedBucket, first: int, share: KeyShare
) -> Iterator[_Touched]:
    """All touched rows of a bucket with their numbers; a row that an update moves has two of them.

    ``first`` is the position of its first file among those of all buckets.
    """
    layout, root = table.layout, table.published.root
    names = list(dict.fromkeys([*(() if share.is_of_key else layout.key), *share.columns]))
    runs: dict[Partition, list[SortedRows]] = defaultdict(list)
    for position, (entry, is_old) in enumerate(bucket.files, first):
        file = DataFile.open(root, layout, entry)
        chosen = rows_within(file, bucket.limits)
        keys = pa.Table.from_batches([file.select(names) if chosen is None else file.take(names, chosen)])
        rows = np.arange(file.rows) if chosen is None else chosen
        places = rows + (position << _ROW_BITS)
        if share.is_of_key:
            yield _Touched(share.numbers(keys), places)
            continue
        kinds = np.ones(len(rows), np.int8) if is_old else file.kinds
        if not is_old and kinds is not None and chosen is not None:
            kinds = kinds[chosen]
        runs[entry.partition].append(SortedRows(keys.append_column(_PLACE, pa.array(places)), kinds))
    for of_partition in runs.values():
        for within in key_ranges(layout, of_partition, PIECE_BYTES):
            yield from _of_both_images(base, layout, within, share)


_PLACE: Final = KIND_COLUMN


def _of_both_images(
    base: Snapshot | None, layout: Layout, runs: Sequence[SortedRows], share: KeyShare
) -> Iterator[_Touched]:
    """The newest rows of some keys by what they are, and by what they replace where that differs."""
    columns = list(share.columns)
    touched = Touched.by(layout.key, runs)
    newest = gather(joined(runs).rows.select([*columns, _PLACE]), touched.newest)
    places = one_array(newest.column(_PLACE)).to_numpy()
    after = np.where(touched.is_after, share.numbers(newest.select(columns)), _NOWHERE)
    before = np.full(len(after), _NOWHERE)
    are_new = False
    if base is not None:
        positions, rows = base.match(list(layout.key), touched.keys, select=columns)
        before[positions] = share.numbers(rows)
        are_new = not len(positions)
    comes = after != _NOWHERE
    yield _Touched(after[comes], places[comes], are_new)
    leaves = (before != _NOWHERE) & (before != after)
    yield _Touched(before[leaves], places[leaves], are_new)


_NOWHERE: Final = -1
