"""What lies on the disk beside what a table's snapshots need, and child processes that may be killed."""

import gc
import os
import signal
import traceback
from collections.abc import Callable, Iterable

from upsert import failpoints
from upsert.store import Table, paths
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.storage import storage_of

KILLED = -signal.SIGKILL


def files_on_disk(table: Table) -> set[str]:
    return {paths.TABLE_FILE, *(found.name for found in storage_of(table.root).walk(table.root))}


def files_needed(table: Table) -> set[str]:
    needed = {paths.TABLE_FILE}
    data: dict[str, FileEntry] = {}
    needed |= {paths.tag_file(tag.name) for tag in table.tags()}
    needed |= {paths.consumer_file(consumer.name) for consumer in table.consumers()}
    needed |= {paths.snapshot_file(info.id) for info in table.history()}
    for info in (*table.history(), *(tag.snapshot for tag in table.tags())):
        needed |= {ref.name for ref in (*info.manifests, *([info.delta] if info.delta else []))}
        data |= table.published.live(info)
    # of definitions none is ever deleted: a data file may be of any, and they are small
    needed |= {name for name in files_on_disk(table) if name.startswith(paths.DEFINITION_FOLDER)}
    return needed | {*data} | {paths.index_file(name) for name, entry in data.items() if entry.has_sidecar}


def assert_nothing_is_left_over(table: Table) -> None:
    """Files on disk are files reachable; only locks are neither."""
    locks = (paths.COMMIT_LOCK, paths.COMPACTION_LOCK, paths.LIFETIME_LOCK)
    assert {name for name in files_on_disk(table) if not name.startswith(locks)} == files_needed(table)


def start(action: Callable[[], None], failpoint: str | None = None) -> int:
    """Run ``action`` in a forked process, which dies at ``failpoint``; its process id."""
    child = os.fork()
    if child:
        return child
    # a client of Kafka that the parent has left over must not be collected here: its threads are not
    gc.freeze()
    try:
        if failpoint is not None:
            os.environ[failpoints.ENVIRONMENT_VARIABLE] = failpoint
        action()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def finish(children: Iterable[int]) -> list[int]:
    """Wait for processes; exit codes, negative for a signal."""
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def is_over(child: int) -> bool:
    """Whether a process has ended; it must have ended well."""
    ended, status = os.waitpid(child, os.WNOHANG)
    assert not status
    return ended == child


def run(action: Callable[[], None], failpoint: str | None = None) -> int:
    """Run ``action`` in a process of its own to its end; its exit code."""
    return finish([start(action, failpoint)])[0]
