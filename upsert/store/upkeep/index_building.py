"""Storing the indexes that files lack: those that were added to the table after a file was written.

A file that lacks an index gets another name, and beside it a sidecar with all indexes; one commit puts names
in the place of others, as a compaction does. So what holds of compactions holds here: readers of changes do
not notice, a crash leaves nothing that a snapshot names, and of two processes that replace a file one has
nothing to do. Only a file whose columns have changed since is written again. See docs/decisions/0077.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final

from upsert.failpoints import reach
from upsert.schema import Index, TableSchema
from upsert.store.commit.committer import Committer
from upsert.store.files.data_file import DataFile
from upsert.store.files.writing import removed_if_failed, write_sidecar_again
from upsert.store.metadata.definition import Definition
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.metadata.file_set import FileSet
from upsert.store.metadata.history import History
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.paths import BucketId
from upsert.store.rows.layout import with_ids
from upsert.store.upkeep import compaction
from upsert.store.upkeep.compaction import CompactionJob, Group

MAX_ROWS_PER_COMMIT: Final = 2_000_000
"""An index shows in lookups after about so many rows of each level."""


def identity(index: Index, schema: TableSchema) -> tuple[object, ...]:
    """What tells an index from one that had its name before, or whose columns had other types."""
    columns = (schema.column(name) for name in index.columns)
    return index.name, *((column.id, column.type) for column in columns)


def lacks_index(old: Definition, new: Definition) -> bool:
    """Whether a file that was written under one definition lacks an index of another one."""
    if old.version == new.version:
        return False
    there = {identity(index, old.schema) for index in old.schema.indexes}
    return any(identity(index, new.schema) not in there for index in new.schema.indexes)


def lacking(history: History, files: FileSet, definition: Definition) -> list[CompactionJob]:
    """One job for each file that lacks an index, the smallest first."""
    old = _old_versions(history, files, definition)
    jobs = [
        _job(entry, definition) for entry in files.entries if entry.has_sidecar and entry.definition in old
    ]
    return sorted(jobs, key=lambda job: job.rows)


def _old_versions(history: History, files: FileSet, definition: Definition) -> set[int]:
    """Versions of the definition under which files were written whose sidecars lack an index."""
    versions = {entry.definition for entry in files.entries if entry.has_sidecar}
    return {version for version in versions if lacks_index(history.definition_at(version), definition)}


def _job(entry: FileEntry, definition: Definition) -> CompactionJob:
    # as one file again, also where the table's target has become a smaller one
    size = max(definition.options.target_file_size, 2 * entry.size)
    return CompactionJob(entry.bucket_id, (Group((entry,), False),), (), entry.level, size)


def is_needed(history: History, head: SnapshotInfo, added: Sequence[FileEntry] = ()) -> bool:
    """Whether a file of a snapshot lacks an index; ``added`` are those of its own commit.

    All files are looked at once for each definition.
    """
    definition = history.definition_at(head.definition)
    if not definition.schema.indexes:
        return False
    if history.indexed == definition.version:
        written = {entry.definition for entry in added if entry.has_sidecar}
        return any(lacks_index(history.definition_at(version), definition) for version in written)
    if _old_versions(history, history.files(head), definition):
        return True
    history.indexed = definition.version
    return False


def build(
    committer: Committer,
    is_wanted: Callable[[BucketId], bool] = lambda _: True,
    *,
    max_rows: int | None = None,
) -> SnapshotInfo | None:
    """Store what files of the wanted buckets lack; the last snapshot published, None if there was nothing.

    The caller holds the table's compaction lock. With ``max_rows`` nothing is done for more rows.
    """
    done: SnapshotInfo | None = None
    history = committer.history
    while True:
        head = history.latest()
        definition = history.definition_at(head.definition)
        jobs = lacking(history, compaction.wanted(history.files(head), is_wanted), definition)
        if not jobs or (max_rows is not None and sum(job.rows for job in jobs) > max_rows):
            return done
        # of one level: a commit that also replaced files of a lower one could put them above newer ones
        alike = [job for job in jobs if job.output_level == jobs[0].output_level]
        chosen = compaction.first_of(alike, MAX_ROWS_PER_COMMIT) or alike[:1]
        written = _with_indexes(history, definition, head.id, chosen)
        reach("compact.after-write")
        done = compaction.publish(committer, chosen, written) or done


def _with_indexes(
    history: History, definition: Definition, base: int, jobs: Sequence[CompactionJob]
) -> list[list[FileEntry]]:
    """The files of some jobs with all indexes beside them."""
    written: list[list[FileEntry]] = []
    with removed_if_failed(history.root, lambda: [entry.file for entry in chain.from_iterable(written)]):
        written.extend(_with_index(history, definition, base, job) for job in jobs)
    return written


def _with_index(history: History, definition: Definition, base: int, job: CompactionJob) -> list[FileEntry]:
    (group,) = job.groups
    (entry,) = group.files
    root, layout = history.root, definition.layout
    old = history.definition_at(entry.definition).layout
    is_same = with_ids(old).equals(with_ids(layout), check_metadata=True)
    if not is_same or old.is_searched_by_key != layout.is_searched_by_key:
        return compaction.write(root, layout, base, job, group)
    columns = list(dict.fromkeys(name for index in layout.indexes for name in index.columns))
    rows = DataFile.open(root, layout, entry).select(columns)
    return [write_sidecar_again(root, layout, entry, rows, base=base)]
