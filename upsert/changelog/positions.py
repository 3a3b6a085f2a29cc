"""A managed table as the states of a log: which snapshot holds the images as of a position.

Every batch is one commit of the writer *log* with the position that it leads to as its transaction; the
store never forgets a writer's last transaction, so each snapshot says by itself at which position it is.
Compaction, expiry and clean-up publish snapshots too, which hold the same images at the same position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from upsert.errors import MissingStateError, SnapshotExpiredError
from upsert.store.snapshot import Snapshot
from upsert.store.snapshot_info import SnapshotInfo
from upsert.store.table import StagedFiles, Table

_SLACK: Final = 64
"""Snapshots beyond twice the states to keep, before old ones are expired: it costs a commit and a listing."""


@dataclass(frozen=True)
class Positions:
    """The states of one log.

    Attributes:
        table: the table of images.
        log: the log's name.
        beginning: the position at which there are no images.
        keep: how many states stay.
    """

    table: Table
    log: str
    beginning: int
    keep: int

    def at(self, position: int) -> Snapshot:
        """The images as of a position.

        Raises:
            MissingStateError: there are none.
        """
        if position == self.beginning:
            return self.table.snapshot(0)
        found = self._found(position)
        if found is None:
            raise self._missing(position)
        return self.table.snapshot(found.id)

    def is_recorded(self, position: int) -> bool:
        """Whether a batch has led to this position, or beyond."""
        return self._reached(self.table.published.latest()) >= position

    def record(self, start: int, end: int, images: pa.Table) -> bool:
        """Commit new images as the state at ``end``; False if another attempt has done so before.

        Args:
            start: the position that the images go on from; the log must be there.
            end: the position that they lead to.
            images: columns of the table and ``_row_kind``; may be empty.

        Raises:
            MissingStateError: the log is at neither of the two positions.
        """
        reached = self._reached(self.table.published.latest())
        if start != reached < end:
            raise self._diverged(start, end, reached)
        staged = [self.table.stage(images, order="rows")]
        with self.table.discarded_if_failed(staged):
            done = self.table.commit(staged, writer_id=self.log, transaction=end)
        is_own = self._is_commit_of(done, staged, start)
        if not is_own:
            self.table.discard(staged)
        return is_own

    def _is_commit_of(self, done: Snapshot, staged: Sequence[StagedFiles], start: int) -> bool:
        """Whether a snapshot was published for these files: without any, by the step that it makes."""
        published = self.table.published
        own = {entry.file for one in staged for entry in one.files}
        return own == {entry.file for entry in published.delta(done.info).added} and start == self._reached(
            published.info(done.info.id - 1)
        )

    def changes(self, base: Snapshot, end: int) -> pa.Table:
        """The net changes of the images between a state and the one at ``end``.

        Raises:
            MissingStateError: one of them is no longer there.
        """
        at_end = self.at(end)
        return self.table.changes(base.id, at_end.id)

    def expire(self) -> None:
        """Give up states that no replay needs, once there are many; also what crashed attempts have left."""
        head = self.table.published.latest()
        if head.id - head.oldest > 2 * self.keep + _SLACK:
            self.table.expire(keep=self.keep)
            self.table.clean()

    def _reached(self, info: SnapshotInfo) -> int:
        return info.writers.get(self.log, self.beginning)

    def _found(self, position: int) -> SnapshotInfo | None:
        """The newest snapshot at this position: it has the fewest files."""
        published = self.table.published
        head = published.latest()
        try:
            for id in range(head.id, max(head.oldest, 1) - 1, -1):
                info = published.info(id, head)
                reached = self._reached(info)
                if reached <= position:
                    return info if reached == position else None
        except SnapshotExpiredError:
            return None  # expired meanwhile, and with it whatever is older
        return None

    def _missing(self, position: int) -> MissingStateError:
        reached = self._reached(self.table.published.latest())
        return MissingStateError(
            f"images of log {self.log!r} in {self.table.path!r}: a state at position {position} must be "
            f"there, got states up to {reached} of which the newest {self.keep} are kept; restore the folder "
            "together with the checkpoint it belongs to, or start the query with a new checkpoint"
        )

    def _diverged(self, start: int, end: int, reached: int) -> MissingStateError:
        return MissingStateError(
            f"images of log {self.log!r} in {self.table.path!r}: a batch from {start} to {end} must find "
            f"them at {start}, got {reached}; the checkpoint is older than the images: restore both "
            "together, or start the query with a new checkpoint"
        )
