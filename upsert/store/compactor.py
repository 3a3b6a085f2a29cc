"""The child process that merges larger buckets: ``python -m upsert.store.compactor <table folder>``.

It ends when nothing is due, and lets go of the compaction lock, which it has inherited. It may be killed at
any time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from upsert.errors import TableNotFoundError
from upsert.store import compaction, maintenance, paths
from upsert.store.commit import Committer
from upsert.store.history import History
from upsert.store.table_file import read


def run(path: str) -> int:
    """Merge what is due in the table, one bucket at a time; how many merges were published.

    The caller holds the table's compaction lock.
    """
    root = paths.table_folder(path)
    table = read(root)
    history = History.shared(root, table.uuid, table.definition)
    committer = Committer(history)
    published = 0
    while merges := _due(history):
        published += compaction.carry_out(committer, table.uuid, merges[:1]) is not None
    return published


def _due(history: History) -> list[compaction.Merge]:
    files = history.files(history.latest())
    return compaction.due(files, history.definition.options)


def main(arguments: Sequence[str]) -> int:
    """Run, and leave word of a failure where the next commit finds it."""
    (path,) = arguments
    try:
        run(path)
    except TableNotFoundError:
        return 0  # dropped meanwhile: nothing is left to merge
    except Exception as failure:
        maintenance.record_failure(paths.table_folder(path), repr(failure))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
