"""Cleaning up after processes that died: files that nothing names.

A snapshot is published *before* anything is deleted. It carries the lowest base a committer may have
(``fence``), so a writer that is still at work on files as old as those loses an ordinary race for the next
id, looks again, and sees that it came too late; see docs/decisions/0003. What is needed is looked at twice,
before the fence and after it. If a snapshot, a tag or a manifest that should exist does not, nothing is
deleted.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from typing import Final

from upsert.errors import (
    ConfigurationError,
    CorruptTableError,
    SnapshotExpiredError,
    StorageError,
    UpsertError,
)
from upsert.failpoints import reach
from upsert.store import paths
from upsert.store.commit.append import LeftoverWarning
from upsert.store.commit.change import Change
from upsert.store.commit.committer import Committer
from upsert.store.log.lifecycle import drop_log
from upsert.store.metadata import table_file
from upsert.store.metadata.history import History
from upsert.store.metadata.snapshot import SnapshotInfo, refs_of
from upsert.store.storage import FileStat, Found, storage_of
from upsert.store.storage.local import is_temporary

DEFAULT_AGE_S: Final = 86_400.0

_PUT_INTO: Final = (
    "",
    paths.SNAPSHOT_FOLDER,
    paths.DEFINITION_FOLDER,
    paths.TAG_FOLDER,
    paths.CONSUMER_FOLDER,
    paths.LOG_FOLDER,
)
"""Folders in which files appear under a temporary name first."""


def clean(committer: Committer, older_than_s: float = DEFAULT_AGE_S) -> int:
    """Delete files that no retained snapshot and no tag needs, if old enough; how many there were.

    They come from processes that died, or from commits that failed. A writer that is still at work on files
    as old as these gets a ``StaleWriterError``; so give it more time than the longest write takes. Nothing is
    deleted if something that is needed is missing or damaged.
    """
    if not 0 <= older_than_s < inf:
        raise ConfigurationError(f"clean: older_than_s must be at least 0 and finite, got {older_than_s!r}")
    history = committer.history
    limit = committer.environment.now() - older_than_s
    found = [(file.name, base) for file, base in based_files(history.root) if _is_old(file.stat(), limit)]
    head, needed = _needed(history)
    waste = {name: base for name, base in found if name not in needed and base <= head.id}
    reach("clean.after-list")
    fence = 1 + max(waste.values(), default=-1)

    def propose(latest: SnapshotInfo) -> Change | None:
        return Change("clean", fence=fence) if fence > latest.fence else None

    committer.commit(propose)
    reach("clean.after-publish")
    # nothing below the fence can be adopted any more: what is still not needed never will be
    head, needed = _needed(history)
    root, stat = history.root, storage_of(history.root).stat
    gone = list(_leftover_snapshots(history, head, limit))
    gone += [name for name in temporary_files(root) if _is_old(stat(os.path.join(root, name)), limit)]
    gone += sorted(waste.keys() - needed)
    return sum(_delete(root, name) for name in gone)


def _needed(history: History) -> tuple[SnapshotInfo, frozenset[str]]:
    """The latest snapshot, and the names of all that retained snapshots and tags need at this moment."""
    while True:
        head = history.latest()
        history.check_kept(head)
        try:
            return head, _needed_by(history, head)
        except SnapshotExpiredError:
            continue  # one expired while it was being looked at, so there is a newer boundary


def _needed_by(history: History, head: SnapshotInfo) -> frozenset[str]:
    data = history.files_since(0, head)
    known = (*history.retained(head), *history.kept_by_tags(head))
    manifests = {ref.name for info in known for ref in refs_of(info)}
    return frozenset({*manifests, *data, *(paths.index_file(name) for name in data)})


def based_files(root: str) -> Iterator[tuple[Found, int]]:
    """Every manifest, staging, data and index file on the disk, and what it was based on."""
    for found in storage_of(root).walk(root):
        if (base := paths.base_of(found.name)) is not None:
            yield found, base


def _leftover_snapshots(history: History, head: SnapshotInfo, limit: float) -> Iterator[str]:
    """Expired snapshots that are still there, ascending: looking for the latest relies on that order."""
    stat = storage_of(history.root).stat
    for number in history.listed_ids():
        name = paths.snapshot_file(number)
        if number >= head.oldest or not _is_old(stat(os.path.join(history.root, name)), limit):
            return
        yield name


def temporary_files(root: str) -> Iterator[str]:
    """Files under the temporary names that they have before they are published; file systems have some."""
    storage = storage_of(root)
    if storage.has_temporary_names:
        for found in storage.walk(root):
            if is_temporary(found.name.rpartition("/")[2]):
                yield found.name
    if not storage.is_local:
        return
    for folder in _PUT_INTO:
        for name in paths.named_files(root, folder, ""):
            if is_temporary(name):
                yield f"{folder}/{name}" if folder else name


def _is_old(found: FileStat | None, limit: float) -> bool:
    # where there is none, another clean-up was faster
    return found is not None and found.modified_ns <= limit * 1e9


def _delete(root: str, name: str) -> bool:
    if not storage_of(root).delete(paths.resolve(root, name)):
        return False
    reach("clean.after-delete")
    return True


def hidden_tables(root: str) -> Iterator[str]:
    """Folders of the tables within a table's: those of a view, and of queries that write into the table.

    Not those that a refresh deletes, or whose process died while it did: the next one deletes what is left.
    """
    storage, inside = storage_of(root), storage_of(root).names(root)
    for folder in (paths.STAGES_FOLDER, paths.KEPT_ROWS_FOLDER):
        for name in sorted(storage.names(os.path.join(root, folder))) if folder in inside else ():
            path = os.path.join(root, folder, name)
            is_dropped = name.startswith(paths.DROPPED)
            if not is_dropped and storage.exists(os.path.join(path, paths.TABLE_FILE)):
                yield path


def sweep(folder: str) -> int:
    """Delete what dropped tables, and queries that died, have left under a name; how many folders.

    A folder that is named by a uuid gets its files after ``table.json`` has named it, and is named by no
    other one later. So one that exists, and is not named *afterwards*, will never be needed. Nothing is
    deleted if it is unknown what the name means.
    """
    storage = storage_of(folder)
    left = [name for name in storage.names(folder) if paths.is_unique(name)]
    named = table_file.named_folders(table_file.value_in(folder)) if left else frozenset[str]()
    return sum(_delete_folder(folder, name) for name in left if name not in named)


def _delete_folder(folder: str, name: str) -> bool:
    """Delete one after its log, of which only its files know."""
    path = os.path.join(folder, name)
    if not logs_are_gone(path, lambda: drop_log(paths.filling_folder(folder, name))):
        return False
    storage_of(folder).delete_folder(path)
    return True


@contextmanager
def only_warned_of(folder: str) -> Iterator[None]:
    """A block that deletes what a table had which is dropped already: its failure may not deny that."""
    try:
        yield
    except (OSError, UpsertError) as failure:
        warnings.warn(
            f"a table was dropped, and what it had in {folder!r} could not be deleted: {failure}; it goes "
            "with the next table that is dropped there, or delete it yourself",
            LeftoverWarning,
            stacklevel=5,
        )


def logs_are_gone(folder: str, drop: Callable[[], None]) -> bool:
    """Whether the logs of what was in a folder could be dropped; a warning tells of those that could not."""
    try:
        # a damaged file does not say where a log is, and its table must be able to go
        with suppress(CorruptTableError):
            drop()
    except StorageError:
        raise  # the disk or the store failed: its files, which alone know of the log, stay
    except UpsertError as failure:
        warnings.warn(
            f"a table was dropped, and its log could not be: {failure}; it goes with the next table that is "
            f"dropped there, or delete it yourself, and {folder!r}",
            LeftoverWarning,
            stacklevel=6,
        )
        return False
    return True
