"""Compaction, building of indexes and expiry after commits, without holding them up.

There is no long-lived writer. A committing process merges small buckets itself, after its commit; larger
ones are left to a child process, ``python -m upsert.store.compactor``. A lock file keeps compactions of one
table one after the other; a commit that does not get it goes on without. A failure cannot fail the commit,
which is published already: it becomes a ``CompactionWarning``, that of a child process at the next commit.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from upsert.errors import TableNotFoundError
from upsert.flock import FileLock, name_holder, telling_holder
from upsert.store import paths
from upsert.store.commit.committer import Committed, Committer
from upsert.store.metadata import table_file
from upsert.store.retention import expiry
from upsert.store.storage import storage_of
from upsert.store.storage.base import disk_errors_of
from upsert.store.table_options import TableOptions
from upsert.store.upkeep import compaction, index_building

MAX_FOREGROUND_ROWS: Final = 250_000
"""Rows that a committing process merges itself: about a tenth of a second."""

_LOWEST_PRIORITY: Final = 19
"""Commits and queries go first."""

_children: list[subprocess.Popen[bytes]] = []
"""Started compactors, kept so that each is reaped when it has ended."""


class CompactionWarning(UserWarning):
    """A compaction failed. The table is right and complete, and slower to read until one succeeds."""


class LongCompactionWarning(UserWarning):
    """A compaction, or ALTER TABLE, waits for that of another process to end, which may be stopped."""


@contextmanager
def compaction_lock(root: str, *, wait: bool) -> Iterator[int | None]:
    """Hold the table's compaction lock; yields the descriptor that holds it, None if it was not got.

    A process that dies lets go of it; a child process that has inherited the descriptor holds it on. It keeps
    processes of one machine off each other. Those of other machines may compact a table in an object store at
    the same time: the commit of one of them finds its inputs gone, and is a no-op.

    A wait gets a ``LongCompactionWarning`` each ten seconds. The kernel waits, for who looks again and again
    comes too late beside the service, which takes the lock a moment after it has released it.
    """
    path = storage_of(root).lock_file(root, paths.COMPACTION_LOCK)
    try:
        with disk_errors_of(path):
            if (lock := FileLock.take(path)) is None and wait:
                with telling_holder(path, partial(_tell_holder, root)):
                    lock = FileLock.take(path, wait=True)
    except FileNotFoundError as cause:
        raise TableNotFoundError(f"no table lies at {root!r}; was it dropped?") from cause
    if lock is None:
        yield None
        return
    with lock:
        name_holder(lock.descriptor)
        yield lock.descriptor


def _tell_holder(root: str, holder: str) -> None:
    warnings.warn(
        f"table {paths.name_of(root)!r}: a compaction must end first — it is that of {holder}; "
        "if that is no long one but stopped, let it continue (kill -CONT) or end it",
        LongCompactionWarning,
        stacklevel=2,
    )


def after_commit(committer: Committer, options: TableOptions, done: Committed) -> None:
    """Merge what a commit has made due in its buckets, here or in a child process; expire what is due.

    Files that lack an index are left to a child process.
    """
    if options.write_only or not done.added:
        return
    _compact(committer, options, done)
    expiry.after_commit(committer, options.retention)


def after_alter(committer: Committer, options: TableOptions) -> None:
    """Store an index that was added for existing files, here or in a child process."""
    folder = committer.history.folder
    try:
        head = committer.history.seen_just_now()
        if options.write_only or not index_building.is_needed(committer.history, head):
            return
        with compaction_lock(committer.root, wait=False) as lock:
            if lock is None:
                return
            index_building.build(committer, max_rows=MAX_FOREGROUND_ROWS)
            if index_building.is_needed(committer.history, committer.history.seen_just_now()):
                start_compactor(folder, lock)
    except Exception as failure:  # the definition is published: nothing that happens here may deny it
        _warn(folder, repr(failure))


def _compact(committer: Committer, options: TableOptions, done: Committed) -> None:
    root, folder = committer.root, committer.history.folder
    try:
        buckets = {entry.bucket_id for entry in done.added}
        files = committer.history.files(done.info).within(buckets)
        jobs = compaction.due(files, options)
        lacks_indexes = index_building.is_needed(committer.history, done.info, done.added)
        if not jobs and not lacks_indexes:
            return
        _tell_earlier_failure(folder)
        small = compaction.first_of(jobs, MAX_FOREGROUND_ROWS)
        with compaction_lock(root, wait=False) as lock:
            if lock is None:
                return
            if small:
                compaction.execute(committer, small, has_just_looked=True)
            if len(small) < len(jobs) or lacks_indexes:
                start_compactor(committer.history.folder, lock)
    except Exception as failure:  # the commit is published: nothing that happens here may deny it
        _warn(folder, repr(failure))


def start_compactor(folder: str, lock: int) -> None:
    """Start a process that merges whatever is due in the table and ends; the caller does not wait for it.

    It inherits the compaction lock, so that commits in the time that it needs to start begin no other.
    """
    _children[:] = [child for child in _children if child.poll() is None]
    code = Path(__file__).parents[3]
    search = os.pathsep.join(filter(None, (str(code), os.environ.get("PYTHONPATH", ""))))
    child = subprocess.Popen(
        [sys.executable, "-m", "upsert.store.compactor", folder],
        env={**os.environ, "PYTHONPATH": search},
        cwd=folder if storage_of(folder).is_local else None,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[lock],
        process_group=0,  # not a session: Linux weighs sessions against each other, whatever their niceness
    )
    name_holder(lock, child.pid)
    _children.append(child)
    os.setpriority(os.PRIO_PROCESS, child.pid, _LOWEST_PRIORITY)  # before it has threads of its own


def record_failure(folder: str, failure: str) -> None:
    """Leave word of a failed compaction for the next commit; the table may have been dropped meanwhile."""
    if not table_file.has_table(table_file.value_in(folder)):
        raise TableNotFoundError(f"no table lies at {folder!r}; was it dropped?")
    path = os.path.join(folder, paths.COMPACTION_ERROR)
    storage_of(folder).replace(path, failure.encode())


def _tell_earlier_failure(folder: str) -> None:
    path = os.path.join(folder, paths.COMPACTION_ERROR)
    try:
        failure = storage_of(path).read(path).decode(errors="replace")
    except FileNotFoundError:
        return
    if storage_of(path).delete(path):  # or another process is telling it
        _warn(folder, failure)


def _warn(folder: str, failure: str) -> None:
    warnings.warn(
        f"table {folder!r}: compaction failed, the table stays right but reads get slower — {failure}; "
        "correct the cause, then call compact()",
        CompactionWarning,
        stacklevel=4,
    )
