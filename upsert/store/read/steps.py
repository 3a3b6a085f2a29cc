"""How far a reader of changes goes in one step: whole commits if they fit, else a range of keys.

A commit that takes files away, as an overwrite or the drop of a partition does, is a step of its own: of its
buckets all keys are compared, before and after, which the sizes of what it has added do not tell. A deletion
by conditions of rows only adds files. What a step touches is known from manifests; only where it ends between
two keys are the hashes of files read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from math import inf
from typing import Final, NamedTuple

import numpy as np

from upsert.store.files.data_file import DataFile
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.read.change_files import (
    EVERYTHING,
    Scope,
    change_files,
    check_all_tracked,
    check_tracked,
)
from upsert.store.read.snapshot import PinnedTable
from upsert.store.rows.hashing import Hashes
from upsert.store.version import MAX_HASH, Cursor, Version, step_between


@dataclass(frozen=True)
class StepLimit:
    """How much a step may touch at most; None: as much as there is.

    Attributes:
        rows: stored rows, so changed keys; a key may count several times.
        bytes: what they take in memory, as their files tell.
        bucket_bytes: what those of one bucket take, where a task reads a bucket.
    """

    rows: int | None = None
    bytes: int | None = None
    bucket_bytes: int | None = None

    @property
    def is_none(self) -> bool:
        """Whether it limits nothing."""
        return self == NO_LIMIT


NO_LIMIT: Final = StepLimit()


class _Room:
    """What is left of a limit while files are added to a step, and how much of that each of them takes.

    A row counts as the largest part of what is left: of the rows, of the bytes or of those of its bucket.
    """

    def __init__(self, limit: StepLimit) -> None:
        self._rows, self._bytes = (inf if one is None else one for one in (limit.rows, limit.bytes))
        of_bucket = inf if limit.bucket_bytes is None else limit.bucket_bytes
        self._buckets: dict[int, float] = defaultdict(lambda: of_bucket)

    def parts(self, files: Iterable[FileEntry]) -> list[float]:
        """Which part of what is left a row of each file takes, rows of a file being equally large."""
        return [
            max(
                _part(1, self._rows),
                _part(_row_bytes(one), min(self._bytes, self._buckets[one.bucket])),
            )
            for one in files
        ]

    def take(self, files: Sequence[FileEntry], rows: Sequence[int]) -> bool:
        """Use so many rows of each file up; False if they do not fit."""
        for one, count in zip(files, rows, strict=True):
            size = _row_bytes(one) * count
            self._rows -= count
            self._bytes -= size
            self._buckets[one.bucket] -= size
        return min(self._rows, self._bytes, *self._buckets.values(), inf) >= -_ROUNDING

    def copy(self) -> _Room:
        """Another one, to try whether files fit."""
        other = copy(self)
        other._buckets = self._buckets.copy()
        return other


_ROUNDING: Final = 1e-6


def _row_bytes(entry: FileEntry) -> float:
    return entry.size / max(1, entry.rows)


def _part(amount: float, room: float) -> float:
    return amount / room if room > 0 else inf


def advance(
    table: PinnedTable,
    version: Version,
    *,
    limit: StepLimit = NO_LIMIT,
    until: int | None = None,
    scope: Scope = EVERYTHING,
) -> Version:
    """The version at the end of a reader's next step; ``version`` itself when nothing is new.

    Whole commits as far as the limit allows; the first load, or a single larger commit, is cut between
    keys. A commit that takes files away is a step of its own. A step has at least one key, so a reader
    always gets on.

    ``until`` is the id of the snapshot beyond which the reader must not go; ``scope`` must be the same as
    when it reads the step.
    """
    if version.cursor is not None:
        table.check_cursor(version)
        return cut(table, version.base, version.target, version.cursor, limit, scope)
    latest = table.snapshot(until).info.data_version
    if latest <= version.base:
        return version
    if not version.base:
        return cut(table, 0, latest, (0, 0), limit, scope)
    target = _last_commit_within(table, version.base, latest, StepLimit(limit.rows), scope)
    end = cut(table, version.base, target, (0, 0), limit, scope)
    if end.is_complete or limit == StepLimit(limit.rows):
        return end
    # they are too many bytes: look at the commits one by one, which takes as long again
    fewer = _last_commit_within(table, version.base, target, limit, scope)
    return end if fewer == target else cut(table, version.base, fewer, (0, 0), limit, scope)


class StepSize(NamedTuple):
    """What a step touches at most; a key may count several times."""

    rows: int
    bytes: int


def step_size(table: PinnedTable, start: Version, end: Version) -> StepSize:
    """How many stored rows a step touches at most, and what they take in memory, without opening a file."""
    step = step_between(start, end)
    if step.is_empty:
        return StepSize(0, 0)
    files = change_files(table, step.base, step.target).all
    found = [entry for entry in files if step.hashes_of(entry.bucket) is not None]
    return StepSize(sum(one.rows for one in found), sum(one.size for one in found))


def touched_rows(table: PinnedTable, start: Version, end: Version) -> int:
    """How many stored rows a step touches at most."""
    return step_size(table, start, end).rows


def _last_commit_within(table: PinnedTable, base: int, latest: int, limit: StepLimit, scope: Scope) -> int:
    before = table.snapshot(base)  # tells a reader whose base has expired
    if table.has_gap(before, latest):
        return _oldest_state_after(table, base, latest)
    reached, rows, room = base, 0, _Room(replace(limit, rows=None))
    last: SnapshotInfo | None = None
    has_bytes = limit != StepLimit(limit.rows)
    for commit in table.data_commits(base, latest):
        is_alone = not commit.is_shown or _takes_files_away(table, commit)
        rows += commit.delta_rows
        fits = limit.rows is None or rows <= limit.rows
        if has_bytes and fits and not is_alone:
            added = table.published.delta(commit).added
            fits = room.take(added, [entry.rows for entry in added])
        # a place between two keys means nothing where ALTER TABLE has given rows other ones
        is_alike = last is None or table.published.lie_alike(last, commit)
        if reached > base and (is_alone or not fits or not is_alike):
            break
        check_tracked(table, commit, scope)
        reached, last = commit.id, commit
        if is_alone or not fits:
            break
    return reached


def _takes_files_away(table: PinnedTable, commit: SnapshotInfo) -> bool:
    return commit.kind in ("overwrite", "delete") and bool(table.published.delta(commit).removed)


def _oldest_state_after(table: PinnedTable, base: int, latest: int) -> int:
    """From where on commits exist for a reader that begins at a tag; it reads one difference till then."""
    head = table.published.seen
    found = table.published.info(head.oldest, head)
    state = min(found.data_version, latest)
    check_all_tracked(table, base, table.snapshot(state).info)
    return state


def cut(table: PinnedTable, base: int, target: int, low: Cursor, limit: StepLimit, scope: Scope) -> Version:
    """The version between a base and a target after as much as a limit allows from ``low`` on."""
    if limit.is_none:
        return Version.complete(target)
    by_bucket = change_files(table, base, target, scope).by_bucket
    room, is_first = _Room(limit), True
    for bucket in sorted(bucket for bucket in by_bucket if bucket >= low[0]):
        inside = [file.entry for file in by_bucket[bucket]]
        smallest = low[1] if bucket == low[0] else 0
        if smallest == 0 and (left := room.copy()).take(inside, [entry.rows for entry in inside]):
            room, is_first = left, False  # known without opening the files
            continue
        root = table.published.root
        files_inside = [DataFile.open(root, table.layout, entry) for entry in inside]
        starts = [file.keys_below(smallest) for file in files_inside]
        rest = [file.rows - start for file, start in zip(files_inside, starts, strict=True)]
        if (left := room.copy()).take(inside, rest):
            room, is_first = left, is_first and not any(rest)
            continue
        parts = room.parts(inside)
        # of each no more than that can lie below the limit, or above it and not fit
        fitting = [int((1 + _ROUNDING) / part) for part in parts]
        most = [min(file.rows, rows + 2) for file, rows in zip(files_inside, fitting, strict=True)]
        hashes = [
            file.key_hashes(start, start + rows)
            for file, start, rows in zip(files_inside, starts, most, strict=True)
        ]
        first = _largest_limit(hashes, parts, smallest, must_take=is_first)
        at = (bucket, first) if first <= MAX_HASH else (bucket + 1, 0)
        is_within = at[0] < table.buckets_between(base, target)
        return Version(base, target, at) if is_within else Version.complete(target)
    return Version.complete(target)


def _rows_below(hashes: Sequence[Hashes], limit: int) -> list[int]:
    """How many rows of each have a hash below ``limit``."""
    if limit > MAX_HASH:
        return [*map(len, hashes)]
    return [int(np.searchsorted(each, np.uint64(limit))) for each in hashes]


def _largest_limit(
    hashes: Sequence[Hashes], parts: Sequence[float], smallest: int, *, must_take: bool
) -> int:
    """The largest hash so that the rows below it, from ``smallest`` on, fit; each takes its part of the room.

    Rows of one hash stay together. If already the first ones are too many, the limit is just above them
    where ``must_take`` says so.
    """
    fits, exceeds = smallest, MAX_HASH + 1
    while exceeds - fits > 1:
        middle = (fits + exceeds) // 2
        taken = zip(_rows_below(hashes, middle), parts, strict=True)
        if sum(rows * part for rows, part in taken if rows) <= 1 + _ROUNDING:
            fits = middle
        else:
            exceeds = middle
    return exceeds if must_take and not any(_rows_below(hashes, fits)) else fits
