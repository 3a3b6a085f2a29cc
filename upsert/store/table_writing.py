"""Writing a table: rows and deletions in one call, or staged by tasks and committed by one process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager

from upsert.errors import ConfigurationError, UnknownOutcomeError
from upsert.store import (
    append,
    deletion,
    log_system,
    maintenance,
    staging,
)
from upsert.store.append import Committed
from upsert.store.filters import Where, parse_where
from upsert.store.fold import Order
from upsert.store.handle import Handle
from upsert.store.layout import Layout
from upsert.store.partitions import Overwrite, filled, specified
from upsert.store.raw_changes import Rows
from upsert.store.snapshot import Snapshot
from upsert.store.staging import StagedFiles


class TableWriting(Handle):
    """The methods of a table that change its rows."""

    def write(
        self,
        rows: Rows,
        *,
        writer_id: str | None = None,
        transaction: int | None = None,
        tracked: bool | None = None,
    ) -> Snapshot:
        """Commit rows in their order: of each key the last row wins, a row of kind ``-U`` or ``-D`` deletes.

        Args:
            rows: the table's columns in any order; with ``_row_kind`` changes, without it upserts. What does
                not fit into memory is given as a ``pyarrow.RecordBatchReader``.
            writer_id: who commits; together with ``transaction`` it makes the commit idempotent.
            transaction: number of the writer's transaction, growing.
            tracked: whether the commit shows in change streams; None: as partitions and table say.

        Returns:
            The snapshot that holds the rows, or the latest one if there was nothing to commit.

        Raises:
            SchemaError: the rows do not fit. Nothing was written.
            DuplicateKeyError: two rows would have one key of a UNIQUE INDEX. Nothing was written.
            StaleWriterError: a clean-up took place meanwhile that may have met these files; write again.
            LogNotPublishedError: the rows are committed, and the table's log did not take them.
            OSError: the disk refused; nothing was committed.
        """
        return self._write(rows, None, writer_id, transaction, tracked)

    def overwrite(
        self,
        rows: Rows,
        *,
        partition: Mapping[str, object] | None = None,
        dynamic: bool = False,
        tracked: bool | None = None,
        writer_id: str | None = None,
        transaction: int | None = None,
    ) -> Snapshot:
        """Commit rows in place of those that are there: in the whole table, or in some partitions.

        It replaces what is there when it is published, so also what others committed meanwhile; commits to
        other partitions are left alone.

        Args:
            rows: as for ``write``; partition columns that ``partition`` names may be missing.
            partition: values that the replaced partitions have, and all rows must have; None or ``{}`` for
                the whole table.
            dynamic: of these, replace only the partitions in which there are rows.
            tracked: as for ``write``; readers of changes see what differs.
            writer_id: as for ``write``.
            transaction: as for ``write``.

        Returns:
            The snapshot that holds the rows, or the latest one if there was nothing to commit.

        Raises:
            SchemaError: the rows or the partition do not fit the table. Nothing was committed.
            DuplicateKeyError: two rows would have one key of a UNIQUE INDEX. Nothing was committed.
            StaleWriterError: as for ``write``.
            OSError: the disk refused; nothing was committed.
        """
        spec = specified(self.schema, partition or {}, of=f"table {self.name!r}")
        whole = filled(self.schema, rows, spec)
        return self._write(whole, Overwrite(spec, dynamic), writer_id, transaction, tracked)

    def _write(
        self,
        rows: Rows,
        overwrite: Overwrite | None,
        writer_id: str | None,
        transaction: int | None,
        tracked: bool | None,
    ) -> Snapshot:
        staged = [self.stage(rows, order="rows")]
        with self.discarded_if_failed(staged):
            return self.commit(
                staged, writer_id=writer_id, transaction=transaction, overwrite=overwrite, tracked=tracked
            )

    def delete(self, where: Where, *, tracked: bool | None = None) -> Snapshot:
        """Delete the rows of which a condition is true when this is published.

        Partitions of which it is true as a whole are dropped without a look at their rows; of the others only
        files that may hold such rows are read.

        Args:
            where: see ``upsert.store.filters``; ``[]`` for all rows.
            tracked: as for ``write``; readers of changes see each row go.

        Returns:
            The snapshot without the rows, or the latest one if there were none.

        Raises:
            SchemaError: ``where`` does not fit the table.
            CommitConflictError: every attempt of minutes lost the race. Nothing was deleted.
            LogNotPublishedError: the rows are deleted, and the table's log does not say so yet.
            OSError: the disk refused; nothing was deleted.
        """
        log_system.before_commit(self.as_logged())
        done = deletion.delete(
            self._committer,
            self.uuid,
            self._snapshot_of,
            parse_where(where, self.schema),
            tracked=tracked,
        )
        return self._settled(done)

    def drop_partition(self, spec: Mapping[str, object], *, tracked: bool | None = None) -> Snapshot:
        """Delete all rows of the partitions that have some values; their files are not read.

        Args:
            spec: values of some or all partition columns.
            tracked: as for ``write``.

        Returns:
            The snapshot without them, or the latest one if there is no such partition.

        Raises:
            SchemaError: ``spec`` does not fit the table, or is empty.
        """
        dropped = deletion.to_drop(self.schema, spec, f"table {self.name!r}")
        log_system.before_commit(self.as_logged())
        done = deletion.drop(self._committer, dropped, tracked=tracked)
        return self._settled(done)

    def stage(self, rows: Rows, *, order: Order, definition: int | None = None) -> StagedFiles:
        """Write the files of one task that has *all* rows of the buckets it writes to; publish nothing.

        Args:
            rows: as for ``write``.
            order: "rows": of each key the last row wins. "none": equal rows of opposite sign cancel, what is
                left must be one value per key. Of a table with a sequence or a merge engine the rows are
                kept as they are until they are committed.
            definition: version of the table's definition whose columns the rows have; None for the present.

        Raises:
            SchemaError: the rows do not fit.
            ChangelogError: two different values of one key are left.
        """
        base = self._base()
        return staging.stage_folded(self.root, self._layout_of(definition), self.uuid, base, rows, order)

    def stage_raw(self, rows: Rows, *, definition: int | None = None) -> StagedFiles:
        """Write one task's rows as they are, of any partitioning; ``commit`` folds them as order="none" does.

        Args:
            rows: as for ``write``.
            definition: as for ``stage``.

        Raises:
            SchemaError: the rows do not fit.
        """
        base = self._base()
        return staging.stage_raw(self.root, self._layout_of(definition), self.uuid, base, rows)

    def _layout_of(self, definition: int | None) -> Layout:
        return self.layout if definition is None else self.published.definition_at(definition).layout

    def _base(self) -> int:
        return self.published.latest().id

    def commit(
        self,
        staged: Iterable[StagedFiles],
        *,
        writer_id: str | None = None,
        transaction: int | None = None,
        overwrite: Overwrite | None = None,
        tracked: bool | None = None,
        unchanged_since: int | None = None,
    ) -> Snapshot:
        """Publish what tasks have staged, all of it at once.

        The same writer's transaction again, or an earlier one, changes nothing, however long ago it was; the
        files staged for it are left for ``clean``.

        Args:
            staged: what ``stage`` and ``stage_raw`` returned, here or in other processes.
            writer_id: who commits, for example a streaming query's id.
            transaction: number of the writer's transaction, for example a micro-batch's id.
            overwrite: the partitions that the rows replace; None for none.
            tracked: whether the commit shows in change streams; None: as partitions and table say.
            unchanged_since: id of the snapshot from which the rows were computed: only if nobody has changed
                a row of their keys since, they are committed.

        Returns:
            The snapshot with the rows, or the latest one if there was nothing to commit.

        Raises:
            ConfigurationError: the arguments do not fit together.
            ChangelogError: the changes contradict each other, or would make a count negative.
            DuplicateKeyError: two rows would have one key of a UNIQUE INDEX.
            StaleWriterError: the files were begun before a clean-up; stage them again.
            CommitConflictError: the files are committed already, others have changed the rows, or every
                attempt of minutes lost the race.
            LogNotPublishedError: the files are committed, and the table's log did not take their rows.
        """
        self.published.latest()  # files may have been staged under a definition that is new to this process
        logged = self.as_logged()
        log_system.before_commit(logged)
        done = append.commit_staged(
            self._committer,
            self.uuid,
            staged,
            append.transaction_of(writer_id, transaction),
            overwrite=overwrite,
            tracked=tracked,
            announce=None if overwrite else log_system.announcer(logged, tracked),
            unchanged_since=unchanged_since,
        )
        return self._settled(done)

    def _settled(self, done: Committed) -> Snapshot:
        """What follows a commit: the log gets its changes before any of them can expire."""
        failure = log_system.after_commit(self.as_logged(), done.info)
        maintenance.after_commit(self._committer, self.uuid, self.options, done)
        if failure is not None:
            raise failure
        try:
            return self._snapshot_of(done.info)
        except (OSError, ConfigurationError) as cause:  # the latter if a right has been taken away
            raise UnknownOutcomeError(
                f"table {self.name!r}: committed as snapshot {done.info.id}, which must be read to be "
                f"returned, got {cause}; do not write the rows again"
            ) from cause

    def discard(self, staged: Iterable[StagedFiles]) -> None:
        """Delete the files of an attempt that will not be committed; what was published after all stays."""
        append.discard(self._committer, staged, self.uuid)

    def discarded_if_failed(self, staged: Iterable[StagedFiles]) -> AbstractContextManager[None]:
        """A block that commits staged files: when it fails they are deleted, as by ``discard``.

        They stay where nobody knows whether the commit has happened (``UnknownOutcomeError``).
        """
        return append.discarded_if_failed(self._committer, lambda: staged, self.uuid)
