"""The process that merges larger buckets: ``python -m upsert.store.compactor <table folder>``.

Committers start it as a child. It ends when nothing is due, and lets go of the compaction lock, which it has
inherited. With ``--watch 10`` it is a service of its own, that looks every ten seconds, and expires
partitions and snapshots too. It may be killed at any time. A log that does not take what has expired is
told of on standard error, and tried again in each round.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

from upsert.errors import LogNotPublishedError, TableNotFoundError
from upsert.store import paths
from upsert.store.commit.committer import Committer
from upsert.store.log import publishing
from upsert.store.metadata.history import History
from upsert.store.metadata.table_file import read
from upsert.store.table import Table
from upsert.store.upkeep import background, compaction, index_building


def run(path: str) -> int:
    """Merge what is due, bucket by bucket, and store indexes that files lack; how many were published.

    The caller holds the lock.
    """
    history = History.shared(read(paths.table_folder(path)))
    committer = Committer(history)
    published = 0
    while jobs := compaction.due(history.files(history.latest()), history.definition.options):
        published += compaction.execute(committer, jobs[:1]) is not None
    published += index_building.build(committer) is not None
    return published


def maintain(path: str, *, is_log_behind: bool = False) -> None:
    """Merge and expire what is due: what the commits of a table with ``write-only = true`` leave to others.

    It waits for any other compaction of the table to end. If the log was behind, it is tried again.

    Raises:
        LogNotPublishedError: all of that is done, and the table's log does not say so yet.
    """
    table = Table.open(path)
    with background.compaction_lock(table.root, wait=True):
        run(path)
    failure = publishing.after_commit(table.as_logged(), table.published.latest()) if is_log_behind else None
    table.maintain()
    if failure is not None:
        raise failure


def watch(path: str, pause_s: float) -> NoReturn:
    """Maintain a table again and again."""
    told: str | None = None
    while True:
        try:
            maintain(path, is_log_behind=told is not None)
            told = None
        except LogNotPublishedError as failure:
            if str(failure) != told:
                print(failure, file=sys.stderr, flush=True)
            told = str(failure)
        time.sleep(pause_s)


def main(arguments: Sequence[str]) -> int:
    """Run, and leave word of a failure where the next commit finds it."""
    parser = argparse.ArgumentParser(prog="python -m upsert.store.compactor", description=__doc__)
    parser.add_argument("path", help="the table's folder")
    parser.add_argument("--watch", type=float, metavar="SECONDS", help="go on for ever, with such pauses")
    given = parser.parse_args(arguments)
    try:
        if given.watch is None:
            run(given.path)
        else:
            watch(given.path, given.watch)
    except TableNotFoundError:
        return 0  # dropped meanwhile: nothing is left to merge
    except Exception as failure:  # no process reads what this one prints
        background.record_failure(paths.table_folder(given.path), repr(failure))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
