"""The process that merges larger buckets: ``python -m upsert.store.compactor <table folder>``.

Committers start it as a child. It ends when nothing is due, and lets go of the compaction lock, which it has
inherited. With ``--watch 10`` it is a service of its own, that looks every ten seconds, and expires
partitions and snapshots too. It may be killed at any time. What a round of the service cannot do is told on
standard error, and tried again in the next ones.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Sequence

from upsert.errors import LogNotPublishedError, StorageError, TableNotFoundError, UpsertError
from upsert.store import paths
from upsert.store.commit.committer import Committer
from upsert.store.log import publishing
from upsert.store.metadata.history import History
from upsert.store.metadata.table_file import read
from upsert.store.table import Table
from upsert.store.upkeep import background, compaction, index_building
from upsert.store.upkeep.compaction import CompactionJob


def run(path: str) -> int:
    """Merge what is due, bucket by bucket, and store indexes that files lack; how many were published.

    The caller holds the lock.
    """
    committer = _committer(path)
    published = 0
    while jobs := _due(committer):
        published += compaction.execute(committer, jobs[:1]) is not None
    published += index_building.build(committer) is not None
    return published


def run_once(path: str) -> bool:
    """The same of what is due now; whether more has become due meanwhile, which it does not wait for.

    Where commits come as fast as merges there is always more, and the caller has other work too.
    """
    committer = _committer(path)
    published = sum(compaction.execute(committer, [job]) is not None for job in _due(committer))
    index_building.build(committer)
    return published > 0 and bool(_due(committer))


def _committer(path: str) -> Committer:
    return Committer(History.shared(read(paths.table_folder(path))))


def _due(committer: Committer) -> Sequence[CompactionJob]:
    history = committer.history
    return compaction.due(history.files(history.latest()), history.definition.options)


def maintain(path: str, *, is_log_behind: bool = False) -> bool:
    """Merge and expire what is due: what the commits of a table with ``write-only = true`` leave to others.

    It waits for any other compaction of the table to end. If the log was behind, it is tried again. What is
    due expires even if merging fails: that makes room on a full disk. Gives whether more is to be merged
    already.

    Raises:
        LogNotPublishedError: all of that is done, and the table's log does not say so yet.
    """
    table = Table.open(path)
    try:
        with background.compaction_lock(table.root, wait=True):
            is_more = run_once(path)
        failure = None
        if is_log_behind:
            failure = publishing.after_commit(table.as_logged(), table.published.latest())
    finally:
        table.maintain()
    if failure is not None:
        raise failure
    return is_more


def watch(path: str, pause_s: float, *, sleep: Callable[[float], object] = time.sleep) -> None:
    """Maintain a table again and again, whatever fails, until it is dropped.

    Raises:
        UpsertError: there is no such table, or it cannot be opened.
    """
    Table.open(path)
    told: object = None
    is_log_behind = False
    while True:
        is_more = False
        try:
            is_more = maintain(path, is_log_behind=is_log_behind)
            told, is_log_behind = None, False
        except TableNotFoundError as failure:
            _tell(f"the service ends: {failure}")
            return
        except (UpsertError, OSError) as failure:
            is_log_behind = isinstance(failure, LogNotPublishedError)
            # each round names other files that a full disk does not take
            reason = failure.strerror if isinstance(failure, StorageError) else str(failure)
            if reason != told:
                told = reason
                _tell(f"the next round tries again: {failure}")
        if not is_more:
            sleep(pause_s)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _pause(text: str) -> float:
    """The value of ``--watch``."""
    seconds = float(text)
    if not 0 < seconds <= threading.TIMEOUT_MAX:
        raise ValueError(text)
    return seconds


_pause.__name__ = "number of seconds above 0"  # argparse says it of a wrong value


def main(arguments: Sequence[str]) -> int:
    """Run; a committer's child leaves word of a failure where the next commit finds it."""
    parser = argparse.ArgumentParser(prog="python -m upsert.store.compactor", description=__doc__)
    parser.add_argument("path", help="the table's folder")
    parser.add_argument("--watch", type=_pause, metavar="SECONDS", help="go on for ever, with such pauses")
    given = parser.parse_args(arguments)
    try:
        if given.watch is None:
            run(given.path)
        else:
            watch(given.path, given.watch)
    except KeyboardInterrupt:
        return 130
    except Exception as failure:
        if given.watch is None:
            return _left_word(given.path, failure)
        if not isinstance(failure, UpsertError):
            raise
        _tell(str(failure))
        return 1
    return 0


def _left_word(path: str, failure: Exception) -> int:
    """Leave word of what has ended a committer's child, of which no process reads what it prints."""
    if isinstance(failure, TableNotFoundError):
        return 0  # dropped meanwhile: nothing is left to merge
    background.record_failure(paths.table_folder(path), repr(failure))
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
