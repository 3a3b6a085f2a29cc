"""UPDATE_BEFORE for a log that lacks it, from the snapshots of the table: nothing is remembered.

A message says which snapshot its change belongs to, and the table's files hold what was there before. So what
a change replaces is looked up at the snapshot that it starts from, once for the keys of a range; what the
range itself has changed since is kept beside that. Follows FLIP-188's normalize node, without its state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from upsert.changelog.line import Keyed
from upsert.changelog.newest import NewestImages
from upsert.changelog.normalizer import normalize_keyed, split_kinds
from upsert.changelog.rules import Rules
from upsert.errors import SnapshotExpiredError
from upsert.log.log_changes import Changes
from upsert.store.pinned_table import PinnedTable


def with_images_before(
    changes: Iterable[Changes], table: PinnedTable, compare: Sequence[str], *, begins_whole: bool = False
) -> Iterator[pa.Table]:
    """The changes of one bucket with ``-U`` before each ``+U``, all columns and ``_row_kind``.

    Args:
        changes: upserts and deletions, those of a range in its order.
        table: the table, in the form that the changes have.
        compare: columns that make two rows different; an update that changes none of them gives nothing.
        begins_whole: whether all changes of their first snapshot are among them.

    Raises:
        SnapshotExpiredError: the snapshot before a change has expired; the message has the remedy.
    """
    rules = Rules(table.layout.key, tuple(compare))
    images: NewestImages | None = None
    first = 0
    for chunk in changes:
        for part in _first_apart(chunk, first):
            snapshot = int(part.snapshots[0])
            if images is None or first == 0:
                images, first = _images_at(table, int(part.bases[0])), -1 if begins_whole else snapshot
            elif first > 0 and snapshot > first:
                # a range may begin in the middle of a snapshot: from its end on all keys are there
                images, first = _images_at(table, first), -1
            yield _normalized(part.rows, images, rules)


def _first_apart(chunk: Changes, first: int) -> list[Changes]:
    """A chunk cut where the first snapshot of the range ends; no empty parts."""
    if not len(chunk.snapshots):
        return []
    if first < 0:
        return [chunk]
    is_first = chunk.snapshots == (first or chunk.snapshots[0])
    return [part for part in (chunk.where(is_first), chunk.where(~is_first)) if len(part.snapshots)]


def _images_at(table: PinnedTable, snapshot: int) -> NewestImages:
    try:
        return NewestImages.above(table.snapshot(snapshot), table.layout.key)
    except SnapshotExpiredError as cause:
        raise SnapshotExpiredError(
            f"{cause}; the log has no UPDATE_BEFORE ('log.changelog-mode' = 'upsert'), which is looked up "
            "there: begin with a new checkpoint, or read with 'changelog' = 'upsert'"
        ) from cause


def _normalized(rows: pa.Table, images: NewestImages, rules: Rules) -> pa.Table:
    values, is_value = split_kinds(rows)
    found, groups = images.meet(values)
    changes, changed = normalize_keyed(found, Keyed(values, np.asarray(is_value), groups), rules)
    images.put(changed)
    return changes
