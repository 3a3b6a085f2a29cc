"""The child process that merges larger buckets: ``python -m upsert.store.compactor <table folder>``.

It ends when nothing is due, or at once if another compaction is at work. It may be killed at any time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from upsert.errors import TableNotFoundError
from upsert.store import compaction, maintenance, paths
from upsert.store.commit import Committer
from upsert.store.history import History
from upsert.store.table_file import read


def run(path: str) -> int:
    """Merge what is due in the table, one bucket at a time; how many merges were published."""
    root = paths.table_folder(path)
    table = read(root)
    committer = Committer(History.shared(root, table.uuid, table.layout))
    policy = compaction.policy_of(table.options)
    published = 0
    with maintenance.compaction_lock(root, wait=False) as is_free:
        while is_free:
            history = committer.history
            merges = compaction.due(history.files(history.latest()), policy)
            if not merges:
                break
            published += compaction.carry_out(committer, table.uuid, merges[:1]) is not None
    return published


def main(arguments: Sequence[str]) -> int:
    """Run, and leave word of a failure where the next commit finds it."""
    (path,) = arguments
    os.nice(19)  # commits and queries go first
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
