"""Carrying out a compaction: merge some runs of some buckets and publish the result in their place.

Readers and change streams do not notice: the rows stay the same. Appends never wait for it, for their files
are none of its inputs. If an overwrite or another compaction has taken the inputs away meanwhile, the work
was in vain and its files are dropped; that is no error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from upsert.errors import CommitConflictError, StaleWriterError
from upsert.store import append
from upsert.store.commit import Change, Committer
from upsert.store.compaction_policy import Pick, Policy, RunSize
from upsert.store.data_file import DataFile, FileEntry
from upsert.store.failpoints import reach
from upsert.store.file_set import FileSet, Run
from upsert.store.key_ranges import key_ranges
from upsert.store.history import History
from upsert.store.layout import Layout
from upsert.store.merge import SortedRows, merge_runs, present
from upsert.store.raw_changes import Place
from upsert.store.run_files import TARGET_BYTES, write_run
from upsert.store.snapshot_info import SnapshotInfo
from upsert.store.staging import StagedFiles
from upsert.store.table_options import TableOptions

_MAX_ROWS_PER_COMMIT = 2_000_000
"""A full compaction publishes after about so many rows, so that a conflict costs little."""


@dataclass(frozen=True)
class Merge:
    """Files of one bucket to merge, newest first, and where the result goes."""

    place: Place
    inputs: tuple[FileEntry, ...]
    output_level: int
    has_oldest: bool

    @property
    def rows(self) -> int:
        """Stored rows to read."""
        return sum(entry.rows for entry in self.inputs)


def policy_of(options: TableOptions) -> Policy:
    """The policy that a table's options ask for."""
    return Policy(options.compaction_trigger, options.max_size_amplification_percent, options.size_ratio)


def due(files: FileSet, policy: Policy) -> list[Merge]:
    """What the policy wants merged, the smallest merge first."""
    found = []
    for place, runs in files.groups.items():
        sizes = [RunSize(run[0].level, sum(entry.bytes for entry in run)) for run in runs]
        if pick := policy.pick(sizes):
            found.append(_merge(place, runs, pick))
    return sorted(found, key=lambda merge: merge.rows)


def full(files: FileSet, policy: Policy, *, keeps_deletions: bool = False) -> list[Merge]:
    """What remains to be merged until each bucket is one run, without deletions unless the table keeps them."""
    return [
        _merge(place, runs, Pick(len(runs), policy.max_level))
        for place, runs in files.groups.items()
        if len(runs) > 1 or (not keeps_deletions and any(entry.deletes for entry in runs[0]))
    ]


def _merge(place: Place, runs: Sequence[Run], pick: Pick) -> Merge:
    inputs = tuple(entry for run in runs[: pick.runs] for entry in run)
    return Merge(place, inputs, pick.output_level, has_oldest=pick.runs == len(runs))


def carry_out(committer: Committer, uuid: str, merges: Sequence[Merge]) -> SnapshotInfo | None:
    """Merge and publish, as one snapshot; None if all inputs were taken away meanwhile.

    Raises:
        ChangelogError: a count of a table without primary key is below zero.
        CorruptTableError: an input is missing or damaged.
    """
    history = committer.history
    base = history.latest().id
    outputs = [_write(history.root, history.layout, base, merge) for merge in merges]
    reach("compact.after-write")
    proposed: list[bool] = [False]

    def propose(latest: SnapshotInfo) -> Change | None:
        live = history.live(latest)
        left = [n for n, merge in enumerate(merges) if all(entry.file in live for entry in merge.inputs)]
        proposed[0] = bool(left)
        added = tuple(entry for n in left for entry in outputs[n])
        removed = tuple(entry for n in left for entry in merges[n].inputs)
        return Change("compact", added, removed) if left else None

    info: SnapshotInfo | None
    try:
        info = committer.commit(propose)
    except (CommitConflictError, StaleWriterError):
        # the merge gives way: the next compaction sees what came in between
        info = None
    reach("compact.after-publish")
    # drops what was not published; what was is still needed and stays
    append.discard(committer, [StagedFiles(uuid, tuple(entry for files in outputs for entry in files))], uuid)
    return info if proposed[0] else None


def _write(root: str, layout: Layout, base: int, merge: Merge) -> list[FileEntry]:
    partition, bucket = merge.place
    written = write_run(
        root,
        layout,
        _merged(root, layout, merge),
        partition=partition,
        bucket=bucket,
        level=merge.output_level,
        base=base,
    )
    newest = max(entry.sequence for entry in merge.inputs)
    return [replace(entry, sequence=newest) for entry in written]


def _merged(root: str, layout: Layout, merge: Merge) -> Iterator[SortedRows]:
    inputs = [_opened(root, layout, entry) for entry in reversed(merge.inputs)]
    for within in key_ranges(layout, inputs, TARGET_BYTES // 2):
        merged = merge_runs(layout, within)
        # where no older run is left there is none that a deletion could hide
        is_whole = merge.has_oldest and not layout.merge.keeps_deletions
        yield SortedRows(present(layout, merged), None) if is_whole else merged


def _opened(root: str, layout: Layout, entry: FileEntry) -> SortedRows:
    file = DataFile.open(root, layout, entry)
    return SortedRows(file.table, file.kinds)


def of_places(entries: Iterable[FileEntry], places: Collection[Place]) -> FileSet:
    """The live files of some buckets only."""
    return FileSet.of(entry for entry in entries if (entry.partition, entry.bucket) in places)


def compact_fully(committer: Committer, uuid: str, policy: Policy) -> SnapshotInfo | None:
    """Merge until each bucket is one run; the last snapshot published, or None if there was nothing to do.

    The caller holds the table's compaction lock, so only an overwrite can take inputs away.
    """
    done: SnapshotInfo | None = None
    history = committer.history
    while merges := _left_to_merge(history, policy):
        done = carry_out(committer, uuid, _within_limit(merges)) or done
    return done


def _left_to_merge(history: History, policy: Policy) -> list[Merge]:
    files = history.files(history.latest())
    return full(files, policy, keeps_deletions=history.layout.merge.keeps_deletions)


def _within_limit(merges: Sequence[Merge]) -> Sequence[Merge]:
    """The first merges with not too many rows in all, at least one."""
    rows = 0
    for number, merge in enumerate(merges):
        rows += merge.rows
        if number and rows > _MAX_ROWS_PER_COMMIT:
            return merges[:number]
    return merges
