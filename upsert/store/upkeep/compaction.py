"""Compaction: merge some runs of some buckets and publish the result in their place.

The ladder: a *policy* (``policies``) says which of a bucket's runs to merge next (``Chosen``); ``plan`` makes
a *job* of it; ``execute`` runs jobs in this process, ``write`` a part of one anywhere; ``publish`` commits
what they wrote.

Readers and change streams do not notice: the rows stay the same. Appends never wait for it, for their files
are none of its inputs. If an overwrite or another compaction has taken the inputs away meanwhile, the files
it wrote are dropped and nothing is published; that is no error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

from upsert.errors import CommitConflictError, StaleWriterError, UnknownOutcomeError
from upsert.failpoints import reach
from upsert.schema import TableSchema
from upsert.store.commit import append
from upsert.store.commit.change import Change, removed_file_that_is_not_live
from upsert.store.commit.committer import Committer
from upsert.store.commit.staging import StagedFiles
from upsert.store.files.data_file import rows_of_file
from upsert.store.files.writing import write_run
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.metadata.manifest import FileSet, Run
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.paths import BucketId
from upsert.store.rows.layout import Layout
from upsert.store.rows.merge import SortedRows, key_ranges, merge_runs, present
from upsert.store.rows.partitions import is_within, specified
from upsert.store.table_options import TARGET_BYTES, TableOptions
from upsert.store.upkeep.policies import Chosen, Leveled, Policy, Universal, overlapping, sections

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


def policy_of(options: TableOptions) -> Policy:
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


def execute(committer: Committer, jobs: Sequence[CompactionJob]) -> SnapshotInfo | None:
    """Merge and publish, as one snapshot; None if all inputs were taken away meanwhile."""
    history = committer.history
    root, layout, base = history.root, history.layout, history.latest().id
    written = [
        [entry for group in merge.groups for entry in write(root, layout, base, merge, group)]
        for merge in jobs
    ]
    reach("compact.after-write")
    return publish(committer, jobs, written)


def publish(
    committer: Committer,
    jobs: Sequence[CompactionJob],
    written: Sequence[Sequence[FileEntry]],
    *,
    yields: bool = True,
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
        live = committer.history.live(latest)
        gone = [removed_file_that_is_not_live(live, job.inputs) for job in jobs]
        proposed[0] = [n for n, entry in enumerate(gone) if entry is None]
        return change(proposed[0]) if proposed[0] else None

    info: SnapshotInfo | None
    try:
        info = committer.commit(propose).info
    except (CommitConflictError, StaleWriterError):
        if not yields:
            raise
        # the next compaction sees what came in between
        info = None
    except UnknownOutcomeError:
        written = ()  # the files may be needed yet
        raise
    finally:
        reach("compact.after-publish")
        # drops what was not published; what was is still needed and stays
        files = tuple(entry for files in written for entry in files)
        append.discard(committer, [StagedFiles(committer.history.uuid, files)])
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


def of_buckets(files: FileSet, buckets: Collection[BucketId]) -> FileSet:
    """The live files of some buckets only."""
    return FileSet({bucket_id: files.groups[bucket_id] for bucket_id in buckets if bucket_id in files.groups})


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
    return of_buckets(files, [bucket_id for bucket_id in files.groups if is_wanted(bucket_id)])


def first_of(jobs: Sequence[CompactionJob], max_rows: int) -> Sequence[CompactionJob]:
    """The first jobs that have not more rows in all."""
    rows = accumulate(job.rows for job in jobs)
    return [job for job, total in zip(jobs, rows, strict=True) if total <= max_rows]
