"""Compaction: merge some runs of some buckets and publish the result in their place.

The ladder: a *policy* says which of a bucket's runs to merge next (``Chosen``); ``plan`` makes a *job* of it;
``execute`` runs jobs in this process, ``write`` a part of one anywhere; ``publish`` commits what they wrote.
Readers and change streams do not notice: the rows stay the same. Appends never wait for it, for their files
are none of its inputs. If an overwrite or another compaction has taken the inputs away meanwhile, the files
it wrote are dropped and nothing is published; that is no error.

The policies are those of RocksDB and Paimon. *Universal*: runs are ordered from the newest to the oldest, and
what is merged are always the newest ones, so the result keeps its place in that order. Three rules, the first
that applies decides:

1. *size amplification*: the runs above the oldest one have grown too large beside it; merge all;
2. *size ratio*: beginning with the newest, merge as long as the next run is not much larger;
3. *number of runs*: there are more than the trigger; merge so many that it is met again, then go on as in 2.

The result goes to the level just above the next older run; to the highest one if there is none.

*Leveled* (FLIP-188) picks files of one level and those of the next whose keys overlap theirs. Sections are
groups of files whose keys overlap, with nothing in common between groups: only files of one section have to
be merged with each other, and what is alone in its section needs no rewriting.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain
from typing import Final

from upsert.errors import CommitConflictError, CorruptTableError, StaleWriterError
from upsert.failpoints import reach
from upsert.schema import TableSchema
from upsert.store.commit import append
from upsert.store.commit.change import Change, removed_file_that_is_not_live
from upsert.store.commit.committer import Committer
from upsert.store.commit.staging import StagedFiles
from upsert.store.files.data_file import rows_of_file
from upsert.store.files.writing import write_run
from upsert.store.metadata.file_entry import FileEntry, Run
from upsert.store.metadata.file_set import FileSet
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.paths import BucketId
from upsert.store.rows.layout import Layout
from upsert.store.rows.merge import SortedRows, key_ranges, merge_runs, present
from upsert.store.rows.partitions import is_within, specified
from upsert.store.storage.local import synced_together
from upsert.store.table_options import TARGET_BYTES, TableOptions


def sections(files: Iterable[FileEntry]) -> list[tuple[FileEntry, ...]]:
    """The files by section, ascending by key; files that share just one key are in one section."""
    found: list[list[FileEntry]] = []
    last = b""
    for entry in sorted(files, key=lambda entry: (entry.first_key, entry.last_key)):
        if found and entry.first_key <= last:
            found[-1].append(entry)
            last = max(last, entry.last_key)
        else:
            found.append([entry])
            last = entry.last_key
    return [tuple(section) for section in found]


def overlapping(files: Iterable[FileEntry], others: Sequence[FileEntry]) -> list[FileEntry]:
    """Of ``files`` those whose keys may lie between the first and the last key of all ``others``."""
    if not others:
        return []
    first = min(entry.first_key for entry in others)
    last = max(entry.last_key for entry in others)
    return [entry for entry in files if entry.first_key <= last and first <= entry.last_key]


@dataclass(frozen=True)
class Chosen:
    """Files to merge with each other, and the level where the result goes."""

    files: tuple[FileEntry, ...]
    output_level: int


@dataclass(frozen=True)
class RunSize:
    """What the policy needs to know about a sorted run."""

    level: int
    bytes: int


@dataclass(frozen=True)
class Pick:
    """Merge the newest ``runs`` runs and put the result on ``output_level``."""

    runs: int
    output_level: int


@dataclass(frozen=True)
class Universal:
    """The universal policy with its three settings, see ``table_options``."""

    trigger: int = 8
    max_size_amplification_percent: int = 200
    size_ratio: int = 1

    @property
    def max_level(self) -> int:
        """The highest level; there are enough levels for as many runs as the trigger allows."""
        return self.trigger

    def choose(self, runs: Sequence[Run]) -> Chosen | None:
        """What to merge now, of the runs of a bucket, newest first; None if it is in good shape."""
        pick = self.pick([RunSize(run[0].level, sum(entry.bytes for entry in run)) for run in runs])
        if pick is None:
            return None
        return Chosen(tuple(entry for run in runs[: pick.runs] for entry in run), pick.output_level)

    def pick(self, runs: Sequence[RunSize]) -> Pick | None:
        """What to merge now, newest run first; None if the bucket is in good shape.

        >>> Universal(trigger=3).pick([RunSize(0, 1), RunSize(1, 1), RunSize(2, 1), RunSize(3, 50)])
        Pick(runs=3, output_level=2)
        """
        if len(runs) < self.trigger:
            return None
        count = (
            self.by_size_amplification(runs)
            or self.by_size_ratio(runs, 1, is_forced=False)
            or self.by_number_of_runs(runs)
        )
        if count is None:
            return None
        found = self.with_output_level(runs, count)
        is_done = found.runs == 1 and runs[0].level == found.output_level
        return None if is_done else found

    def by_size_amplification(self, runs: Sequence[RunSize]) -> int | None:
        """All runs, if those above the oldest are too large beside it."""
        above = sum(run.bytes for run in runs[:-1])
        is_due = above * 100 > self.max_size_amplification_percent * runs[-1].bytes
        return len(runs) if is_due else None

    def by_size_ratio(self, runs: Sequence[RunSize], count: int, *, is_forced: bool) -> int | None:
        """The newest ``count`` runs and those after them that are not much larger than what is there.

        None if that is only the newest one and nothing forces a merge. Once something will be merged, runs
        up to level 1 are taken along whatever their size: a result cannot stay on level 0.
        """
        size = sum(run.bytes for run in runs[:count])
        for run in runs[count:]:
            is_triggered = is_forced or count > 1
            is_larger = size * (100 + self.size_ratio) < run.bytes * 100
            if is_larger and (not is_triggered or run.level > 1):
                break
            size += run.bytes
            count += 1
        return count if is_forced or count > 1 else None

    def by_number_of_runs(self, runs: Sequence[RunSize]) -> int | None:
        """So many of the newest runs that the trigger is met again, if there are more than it allows."""
        if len(runs) <= self.trigger:
            return None
        return self.by_size_ratio(runs, len(runs) - self.trigger + 1, is_forced=True)

    def with_output_level(self, runs: Sequence[RunSize], count: int) -> Pick:
        """Where the newest ``count`` runs go; takes along more if they had to stay on level 0."""
        level = self.max_level if count == len(runs) else max(0, runs[count].level - 1)
        while level == 0 and count < len(runs):
            level = runs[count].level
            count += 1
        return Pick(count, self.max_level if count == len(runs) else level)


MAX_LEVEL: Final = 6
"""The lowest level, of any size."""


@dataclass(frozen=True)
class Leveled:
    """The leveled policy with its three settings, see ``table_options``."""

    trigger: int = 4
    base_bytes: int = 256 << 20
    multiplier: int = 10

    max_level = MAX_LEVEL

    def choose(self, runs: Sequence[Run]) -> Chosen | None:
        """What to merge now, of the runs of a bucket, newest first; None if it is in good shape.

        >>> Leveled().choose([]) is None
        True
        """
        flushed = [entry for run in runs for entry in run if entry.level == 0]
        levels = {run[0].level: run for run in runs if run[0].level}
        if sum(run[0].level == 0 for run in runs) >= self.trigger:
            return Chosen((*flushed, *overlapping(levels.get(1, ()), flushed)), 1)
        for level in sorted(levels):
            size = sum(entry.bytes for entry in levels[level])
            if level < MAX_LEVEL and size > self.largest(level):
                below = levels.get(level + 1, ())
                entry = min(levels[level], key=partial(_cost, below))
                return Chosen((entry, *overlapping(below, [entry])), level + 1)
        return None

    def largest(self, level: int) -> int:
        """Bytes that a level from 1 on may have.

        >>> Leveled(base_bytes=1000, multiplier=5).largest(3)
        25000
        """
        largest: int = self.base_bytes * self.multiplier ** (level - 1)
        return largest


def _cost(below: Run, entry: FileEntry) -> float:
    """Bytes of the next level that have to be rewritten for each byte that leaves this one."""
    return sum(other.bytes for other in overlapping(below, [entry])) / max(1, entry.bytes)


_MAX_ROWS_PER_COMMIT: Final = 2_000_000
"""A full compaction publishes after about so many rows, so that a conflict costs little."""

SMALL: Final = 0.7
"""A file below this share of the target size is merged with its neighbours when there is an occasion."""


@dataclass(frozen=True)
class Group:
    """Files to merge with each other, newest first; ``is_oldest``: nothing older may hold their keys."""

    files: tuple[FileEntry, ...]
    is_oldest: bool


@dataclass(frozen=True)
class CompactionJob:
    """What is to be done with some files of a bucket, so that they come to one level.

    Keys of different ``groups`` do not overlap; files of ``moved`` only change their level.
    """

    bucket_id: BucketId
    groups: tuple[Group, ...]
    moved: tuple[FileEntry, ...]
    output_level: int
    target_bytes: int = TARGET_BYTES

    @property
    def inputs(self) -> tuple[FileEntry, ...]:
        """All files that the result replaces."""
        return (*(entry for group in self.groups for entry in group.files), *self.moved)

    @property
    def rows(self) -> int:
        """Stored rows to read."""
        return sum(entry.rows for group in self.groups for entry in group.files)


def policy_of(options: TableOptions) -> Universal | Leveled:
    """The policy that a table's options ask for."""
    if options.compaction_policy == "leveled":
        return Leveled(options.level0_trigger, options.level_base_bytes, options.level_multiplier)
    return Universal(options.compaction_trigger, options.max_size_amplification_percent, options.size_ratio)


def due(files: FileSet, options: TableOptions) -> list[CompactionJob]:
    """What the policy wants merged, the smallest merge first."""
    policy = policy_of(options)
    found = []
    for bucket_id, runs in files.groups.items():
        if chosen := policy.choose(runs):
            found.append(plan(bucket_id, runs, chosen, options.target_file_size))
    return sorted(found, key=lambda merge: merge.rows)


def full(files: FileSet, options: TableOptions) -> list[CompactionJob]:
    """What remains to be merged until each bucket is one run; some engines keep its deletions."""
    keeps_deletions = options.merge.keeps_deletions
    max_level = policy_of(options).max_level
    found = []
    for bucket_id, runs in files.groups.items():
        if len(runs) > 1 or (not keeps_deletions and any(entry.deletes for entry in runs[0])):
            every = tuple(entry for run in runs for entry in run)
            level = max(max_level, *(entry.level for entry in every))
            found.append(plan(bucket_id, runs, Chosen(every, level), options.target_file_size))
    return found


def plan(bucket_id: BucketId, runs: Sequence[Run], chosen: Chosen, target_bytes: int) -> CompactionJob:
    """How to bring the chosen files to their level with as little rewriting as possible.

    Files that overlap are merged, and small ones with their neighbours. A file of good size that overlaps
    none only changes its level, unless it has deletions with nothing left to hide.
    """
    older = [entry for run in runs for entry in run if entry.level > chosen.output_level]
    groups: list[Group] = []
    moved: list[FileEntry] = []
    together: list[FileEntry] = []

    def close() -> None:
        if len(together) == 1 and may_stay(together[0]):
            moved.extend(together)
        elif together:
            files = tuple(sorted(together, key=lambda entry: entry.age))
            groups.append(Group(files, not overlapping(older, files)))
        together.clear()

    def may_stay(entry: FileEntry) -> bool:
        return not entry.deletes or bool(overlapping(older, [entry]))

    for section in sections(chosen.files):
        if len(section) == 1 and section[0].size >= SMALL * target_bytes and may_stay(section[0]):
            close()
            moved.extend(section)
        else:
            together.extend(section)
    close()
    moving = tuple(entry for entry in moved if entry.level != chosen.output_level)
    return CompactionJob(bucket_id, tuple(groups), moving, chosen.output_level, target_bytes)


def execute(
    committer: Committer, jobs: Sequence[CompactionJob], *, has_just_looked: bool = False
) -> SnapshotInfo | None:
    """Merge and publish, as one snapshot; None if all inputs were taken away meanwhile.

    ``has_just_looked`` as for ``Committer.commit``, where little is merged.
    """
    history = committer.history
    base = (history.seen_just_now() if has_just_looked else history.latest()).id
    root, layout = history.root, history.layout
    written: list[list[FileEntry]] = []
    with synced_together():
        try:
            for merge in jobs:
                written.append([])
                for group in merge.groups:
                    written[-1] += write(root, layout, base, merge, group)
        except Exception as failure:
            append.discard_left(committer, [StagedFiles(history.uuid, tuple(chain.from_iterable(written)))])
            if not isinstance(failure, CorruptTableError):
                raise
            live = history.live(history.latest())
            if all(entry.file in live for merge in jobs for entry in merge.inputs):
                raise
            return None  # an overwrite has replaced inputs, and they have expired
        reach("compact.after-write")
        return publish(committer, jobs, written, has_just_looked=has_just_looked)


def publish(
    committer: Committer,
    jobs: Sequence[CompactionJob],
    written: Sequence[Sequence[FileEntry]],
    *,
    yields: bool = True,
    has_just_looked: bool = False,
) -> SnapshotInfo | None:
    """Put the files written for each merge in the place of its inputs, as one snapshot.

    A job of which an input has gone meanwhile is a no-op, and its files are deleted; None if all were no-ops.
    Unless it ``yields``, that is a ``CommitConflictError`` that names the commit in between, when the others
    are published. ``written`` has for each job the files that ``write`` gave for its groups.
    """
    proposed: list[list[int]] = [[]]

    def change(numbers: Sequence[int]) -> Change:
        moved = [(jobs[n], entry) for n in numbers for entry in jobs[n].moved]
        added = [entry for n in numbers for entry in written[n]]
        added += [replace(entry, level=merge.output_level) for merge, entry in moved]
        return Change("compact", tuple(added), tuple(entry for n in numbers for entry in jobs[n].inputs))

    def propose(latest: SnapshotInfo) -> Change | None:
        buckets = [job.bucket_id for job in jobs]
        live = {entry.file: entry for entry in committer.history.files(latest).within(buckets).entries}
        gone = [removed_file_that_is_not_live(live, job.inputs) for job in jobs]
        proposed[0] = [n for n, entry in enumerate(gone) if entry is None]
        return change(proposed[0]) if proposed[0] else None

    uuid, every = committer.history.uuid, tuple(chain.from_iterable(written))
    info: SnapshotInfo | None = None
    needed: set[str] = set()
    try:
        with append.discarded_if_failed(committer, lambda: [StagedFiles(uuid, every)]):
            done = committer.commit(propose, has_just_looked=has_just_looked)
        info, needed = done.info, {entry.file for entry in done.added}
    except (CommitConflictError, StaleWriterError):
        if not yields:
            raise
        # the next compaction sees what came in between
        every = ()
    reach("compact.after-publish")
    # drops what was not published; what was is still needed and stays
    if files := tuple(entry for entry in every if entry.file not in needed):
        append.discard_left(committer, [StagedFiles(uuid, files)])
    if not yields and len(proposed[0]) < len(jobs):
        # once more without looking: the check that every commit must pass says what came in between
        committer.commit(lambda _: change([n for n in range(len(jobs)) if n not in proposed[0]]))
    return info if proposed[0] else None


def write(root: str, layout: Layout, base: int, merge: CompactionJob, group: Group) -> list[FileEntry]:
    """Merge the files of one group of a merge and write the result, range by range; publishes nothing."""
    written = write_run(
        root,
        layout,
        _merged(root, layout, group, merge.target_bytes // 2),
        merge.bucket_id,
        level=merge.output_level,
        base=base,
        target_bytes=merge.target_bytes,
        within=(min(e.first_key for e in group.files), max(e.last_key for e in group.files)),
    )
    newest = max(entry.sequence for entry in group.files)
    return [replace(entry, sequence=newest) for entry in written]


def _merged(root: str, layout: Layout, group: Group, max_bytes: int) -> Iterator[SortedRows]:
    inputs = [rows_of_file(root, layout, entry) for entry in reversed(group.files)]
    for within in key_ranges(layout, inputs, max_bytes):
        merged = merge_runs(layout, within)
        # where no older run is left there is none that a deletion could hide, but rows may come late
        is_whole = group.is_oldest and not layout.merge.keeps_deletions
        yield SortedRows(present(layout, merged), None) if is_whole else merged


def compact_fully(
    committer: Committer, options: TableOptions, is_wanted: Callable[[BucketId], bool]
) -> SnapshotInfo | None:
    """Merge until each wanted bucket is one run; the last snapshot published, or None if there was no work.

    The caller holds the table's compaction lock, so only an overwrite can take inputs away.
    """
    done: SnapshotInfo | None = None
    history = committer.history
    while jobs := full(wanted(history.files(history.latest()), is_wanted), options):
        done = execute(committer, first_of(jobs, _MAX_ROWS_PER_COMMIT) or jobs[:1]) or done
    return done


def in_buckets(
    schema: TableSchema, partition: Mapping[str, object] | None, buckets: Collection[int] | None
) -> Callable[[BucketId], bool]:
    """Whether a bucket is among those of a partition specification and of a list of numbers."""
    spec = specified(schema, partition or {}, of="compact")
    return lambda bucket_id: is_within(bucket_id[0], spec) and (buckets is None or bucket_id[1] in buckets)


def wanted(files: FileSet, is_wanted: Callable[[BucketId], bool]) -> FileSet:
    """The live files of the wanted buckets."""
    return files.within(filter(is_wanted, files.buckets()))


def first_of(jobs: Sequence[CompactionJob], max_rows: int) -> Sequence[CompactionJob]:
    """The first jobs that have not more rows in all."""
    rows = accumulate(job.rows for job in jobs)
    return [job for job, total in zip(jobs, rows, strict=True) if total <= max_rows]
