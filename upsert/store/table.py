"""A managed table as users have it: what can be done with one, each by a file of the store (FLIP-188)."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Final, Self, TypeVar

import pyarrow as pa

from upsert.errors import (
    CommitConflictError,
    ConfigurationError,
    CorruptTableError,
    LogNotPublishedError,
    SchemaError,
    SnapshotExpiredError,
    TableExistsError,
    TableNotFoundError,
    UnknownOutcomeError,
    UpsertError,
)
from upsert.retry import retried
from upsert.schema import TableSchema
from upsert.show import html
from upsert.store import paths
from upsert.store.alterations import Alteration, altered
from upsert.store.commit import append, deletion, staging
from upsert.store.commit.append import Terms
from upsert.store.commit.committer import Committed, Committer
from upsert.store.commit.staging import Rows, StagedFiles
from upsert.store.log import lifecycle, publishing
from upsert.store.log.base import LoggedTable
from upsert.store.metadata import table_file, tag_file
from upsert.store.metadata.definition import Definition
from upsert.store.metadata.history import History
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.metadata.stands_for import StandsFor
from upsert.store.metadata.table_file import TableFile
from upsert.store.metadata.tag_file import Tag
from upsert.store.predicate import Where, parse_where
from upsert.store.read import changes as _changes
from upsert.store.read import steps
from upsert.store.read import watch as watching
from upsert.store.read.change_files import Scope
from upsert.store.read.row_metadata import with_metadata_aside
from upsert.store.read.shares import KeyShare
from upsert.store.read.snapshot import AtVersion, PinnedTable, Snapshot
from upsert.store.read.statistics import PartitionInfo, partition_infos
from upsert.store.read.steps import StepLimit
from upsert.store.retention import consumers, expiry, partition_expiry, tags
from upsert.store.retention.consumers import Consumer
from upsert.store.rows.conform import ArrowStream
from upsert.store.rows.fold import Order
from upsert.store.rows.layout import Layout
from upsert.store.rows.partitions import Overwrite, filled, partition_name, specified
from upsert.store.storage import storage_of
from upsert.store.storage.local import synced_together
from upsert.store.table_options import TableOptions
from upsert.store.upkeep import background, check, compaction, index_building, orphans
from upsert.store.upkeep.check import Violation
from upsert.store.version import Version

__all__ = ["StagedFiles", "Table"]

_T = TypeVar("_T")

_MAX_ROLLBACKS: Final = 10
"""Attempts to roll back while others write."""

_MAX_CREATIONS: Final = 10
"""Attempts to create a table while others drop it."""


class Table:
    """A table in a folder: rows with a primary key, or a multiset of rows without one.

    All methods may be called from any process and thread. A pickled table is opened again where it is loaded,
    as for a function of ``multiprocessing`` or of Spark's ``mapInArrow``. A commit is visible as a whole or
    not at all, and survives a power failure once its method has returned.

    Attributes:
        path: its absolute folder.
        root: where its files lie: there, or in an object store in a folder of their own there.
        name: the last part of the path.
        uuid: tells it from any other table that lay or will lie at this path.
        published: its snapshots.

    >>> import tempfile, pyarrow as pa
    >>> schema = TableSchema.of({"id": pa.int64(), "name": pa.string()}, primary_key=["id"])
    >>> table = Table.create(tempfile.mkdtemp() + "/users", schema)
    >>> snapshot = table.write(pa.table({"id": [1, 2], "name": ["ann", "bob"]}))
    >>> snapshot.id, snapshot.scan().num_rows
    (1, 2)
    """

    def __init__(self, file: TableFile) -> None:
        """Of an existing table; use ``Table.open`` or ``Table.create``."""
        self.path = file.folder
        self.root = file.root
        self.name = os.path.basename(file.folder)
        self.uuid = file.uuid
        self.published = History.shared(file)
        self._committer = Committer(self.published)

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        schema: TableSchema,
        options: Mapping[str, str] = {},
        *,
        if_not_exists: bool = False,
    ) -> Self:
        """A new, empty table in a folder that is made if necessary.

        Args:
            path: a local folder or a ``file:`` URI, on a file system with hard links, or
                one in an object store or HDFS, as ``s3://bucket/folder``; see docs/object-stores.md.
            schema: its columns, keys and indexes; METADATA columns become columns that reads add.
            options: as in ``WITH (…)``; see ``table_options.OPTIONS``.
            if_not_exists: open the existing table, whatever its schema.

        Raises:
            TableExistsError: there is a table, and ``if_not_exists`` is not set.
            ConfigurationError: an option or the path is wrong. Nothing was written.
            SchemaError: the table has no such metadata, or a name is one that its files need.
            KafkaUnavailableError: the table has a log, whose brokers did not answer.
        """
        folder = paths.table_folder(path)
        if not isinstance(schema, TableSchema):
            raise SchemaError(
                f"table {os.path.basename(folder)!r}: its schema must be a TableSchema, got "
                f"{type(schema).__name__}; make one with TableSchema.of"
            )
        stored = with_metadata_aside(schema, f"table {os.path.basename(folder)!r}").without_older_rows()
        stored.check_new_names()
        if if_not_exists:
            lifecycle.checked(folder, stored, options)
        # another process may drop the table between two steps
        return retried(
            lambda: cls._created(folder, stored, options, if_not_exists=if_not_exists),
            is_passing=lambda failure: isinstance(failure, (FileNotFoundError, TableNotFoundError)),
            first_pause_s=0.001,
            tries=_MAX_CREATIONS,
        )

    @classmethod
    def _created(
        cls, folder: str, schema: TableSchema, options: Mapping[str, str], *, if_not_exists: bool
    ) -> Self:
        if if_not_exists:
            with suppress(TableNotFoundError):
                return cls.open(folder)
        try:
            return cls(lifecycle.create(folder, schema, options))
        except TableExistsError:
            if not if_not_exists:
                raise
            return cls.open(folder)

    @classmethod
    def open(cls, path: str | os.PathLike[str], uuid: str | None = None) -> Self:
        """The table in a folder.

        Args:
            path: as for ``create``.
            uuid: the uuid that the table must have; None for any.

        Raises:
            TableNotFoundError: there is none, or one with another uuid.
            CorruptTableError: its file is damaged, or was written by another format version.
        """
        folder = paths.table_folder(path)
        table_file.check_named(folder)
        file = table_file.looked(folder)
        table = cls(file)
        if uuid is not None:
            file.check_is(uuid)
        # which says what the table's definition is by now
        table.published.looked(has_just_read_table=True)
        return table

    def refusing_changes(self, why: str) -> Self:
        """The same object, by which no rows change from now on; compaction and the like go on."""
        self._committer.rules.refusal = why
        return self

    def __repr__(self) -> str:
        return f"Table({self.path!r})"

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[str, str]]:
        """Another process opens the table, which must still be the same one."""
        return type(self).open, (self.path, self.uuid)

    def _repr_html_(self) -> str:
        """For notebooks: the newest snapshot in numbers, and the columns; no row is read."""
        try:
            return watching.page_of(repr(self), self.snapshot())
        except UpsertError as error:  # what is shown is no place to fail
            return html.page(repr(self), html.block(str(error)))

    def watch(
        self,
        *,
        rows: int = html.MAX_ROWS,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        seconds: float | None = None,
        every: float = 1.0,
    ) -> None:
        """Show the first rows as they are, and again after each commit of any process.

        A notebook and a terminal redraw them in place, a pipe gets them one after the other. It ends after
        ``seconds``, when the table is dropped, and by an interrupt: Ctrl-C, or a notebook's "stop".

        Args:
            rows: how many are shown, in no particular order.
            columns: which, in this order; None for all.
            where: of which rows, see ``Snapshot.scan``; all rows are then read after each commit.
            seconds: None for no end.
            every: seconds between two looks for a commit.

        Raises:
            ConfigurationError: a number is not positive.
            SchemaError: a column is unknown or ``where`` does not fit the table.

        >>> import tempfile, pyarrow as pa
        >>> schema = TableSchema.of({"id": pa.int64(), "name": pa.string()}, primary_key=["id"])
        >>> table = Table.create(tempfile.mkdtemp() + "/users", schema)
        >>> snapshot = table.write(pa.table({"id": [1, 2], "name": ["ann", "bob"]}))
        >>> table.watch(rows=1, seconds=0)
        Table('.../users')
        snapshot 1 of ...; rows about 2
        ┏━━━━┳━━━━━━┓
        ┃ id ┃ name ┃
        ┡━━━━╇━━━━━━┩
        │  1 │ ann  │
        └────┴──────┘
        (1 more rows)
        """
        asked = watching.Shown(rows, columns, where, seconds, every)

        def look() -> tuple[Snapshot, dict[str, str]]:
            newest = self.snapshot()
            return newest, {"rows": f"about {newest.row_count:,}"}

        watching.watch(repr(self), look, asked)

    @property
    def definition(self) -> Definition:
        """The table's definition, as of the last time that this process read its latest snapshot.

        Every write reads it, and every read of the latest rows or of changes.
        """
        return self.published.definition

    @property
    def schema(self) -> TableSchema:
        """Its columns, keys and indexes; of ``definition``."""
        return self.definition.schema

    @property
    def options(self) -> TableOptions:
        """Its options; of ``definition``."""
        return self.definition.options

    @property
    def layout(self) -> Layout:
        """Its physical form; of ``definition``."""
        return self.definition.layout

    def write(
        self,
        rows: Rows | ArrowStream,
        *,
        writer_id: str | None = None,
        transaction: int | None = None,
        tracked: bool | None = None,
    ) -> Snapshot:
        """Commit rows in their order: of each key the last row wins, a row of kind ``-U`` or ``-D`` deletes.

        Args:
            rows: the table's columns in any order; with ``_row_kind`` changes, without it upserts: an Arrow
                table, a DataFrame of pandas or Polars, or anything else with Arrow's C stream. What does not
                fit into memory is given as a ``pyarrow.RecordBatchReader``.
            writer_id: who commits; together with ``transaction`` it makes the commit idempotent.
            transaction: number of the writer's transaction, growing.
            tracked: whether change streams show the commit; None: as the options of partitions and table say.

        Returns:
            The snapshot that holds the rows, or the latest one if there was nothing to commit.

        Raises:
            SchemaError: the rows do not fit. Nothing was written.
            DuplicateKeyError: two rows would have one key of a UNIQUE INDEX. Nothing was written.
            CheckViolatedError: a CHECK constraint is false of a row. Nothing was written.
            StaleWriterError: a clean-up in the meantime may have deleted these files; write again.
            LogNotPublishedError: the rows are committed, and the table's log did not take them.
            OSError: the disk refused; nothing was committed.
        """
        terms = self._terms(writer_id, transaction, tracked=tracked)
        return self._settled(append.write(self._committer, staging.arrow_rows(rows), terms))

    def overwrite(
        self,
        rows: Rows | ArrowStream,
        *,
        partition: Mapping[str, object] | None = None,
        dynamic: bool = False,
        tracked: bool | None = None,
        writer_id: str | None = None,
        transaction: int | None = None,
    ) -> Snapshot:
        """Commit rows in place of the existing ones: in the whole table, or in some partitions.

        It replaces the rows that exist when it is published, so also rows that other writers commit in the
        meantime; commits to other partitions are not affected.

        Returns and errors are those of ``write``; a ``SchemaError`` is also a partition that does not fit the
        table. Readers of changes see what differs.

        Args:
            rows: as for ``write``; partition columns that ``partition`` names may be missing.
            partition: values that the replaced partitions have, and all rows must have; None or ``{}`` for
                the whole table.
            dynamic: of these, replace only the partitions in which there are rows.
            tracked: as for ``write``.
            writer_id: as for ``write``.
            transaction: as for ``write``.
        """
        spec = specified(self.schema, partition or {}, of=f"table {self.name!r}")
        whole = filled(self.schema, staging.arrow_rows(rows), spec)
        terms = self._terms(writer_id, transaction, overwrite=Overwrite(spec, dynamic), tracked=tracked)
        return self._settled(append.write(self._committer, whole, terms))

    def delete(self, where: Where, *, tracked: bool | None = None) -> Snapshot:
        """Delete the rows of which a condition is true when this is published.

        Partitions for which it is true as a whole are dropped without reading their rows; in the others only
        files that may hold such rows are read.

        Args:
            where: see ``upsert.store.predicate``; ``[]`` for all rows.
            tracked: as for ``write``; readers of changes get a ``-D`` for each row.

        Returns:
            The snapshot without the rows, or the latest one if there were none.

        Raises:
            SchemaError: ``where`` does not fit the table.
            CommitConflictError: every attempt of minutes lost the race. Nothing was deleted.
            LogNotPublishedError: the rows are deleted, and the table's log does not say so yet.
            OSError: the disk refused; nothing was deleted.
        """
        if where is None:
            raise SchemaError(
                f"table {self.name!r}: delete must be told which rows, got None; write [] for all of them"
            )
        publishing.before_commit(self.as_logged())
        rows = parse_where(where, self.schema)
        return self._settled(deletion.delete(self._committer, self._snapshot_of, rows, tracked=tracked))

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
        publishing.before_commit(self.as_logged())
        return self._settled(deletion.drop(self._committer, dropped, tracked=tracked))

    def rollback_to(self, snapshot: int | str) -> Snapshot:
        """Give the table the rows of an older snapshot again, by a commit that undoes all changes since then.

        No snapshot is lost, and readers of changes see each row change. Rows that others commit in the
        meantime are undone too. Memory holds the changes of a bucket at a time.

        Args:
            snapshot: its id, 0 for the empty table, or the name of a tag.

        Returns:
            The snapshot with the old rows; the latest one if it has them already.

        Raises:
            ConfigurationError: there is no such snapshot, or the table's rows are made of several
                (``merge-engine``, ``sequence.field``).
            SnapshotExpiredError: it has expired.
            UntrackedChangesError: a commit since then was written with ``change-tracking = false``.
            CommitConflictError: others changed the rows each time. What is committed by then stays.
        """
        target = self.snapshot(snapshot).info.data_version
        if self.options.merge.needs_present_rows:
            raise ConfigurationError(
                f"table {self.name!r}: rollback_to needs a table in which the last row of a key counts, got "
                "one with 'merge-engine' or 'sequence.field', which would combine old rows with newer ones; "
                "write the rows of the old snapshot to a new table"
            )
        for _ in range(_MAX_ROLLBACKS):
            head = self.snapshot()
            staged: list[StagedFiles] = []
            try:
                with self.discarded_if_failed(staged):
                    staged.extend(self._taken_back(target, head.info))
                    if not staged:
                        return head
                    done = self.commit(staged, unchanged_since=head.id)
            except CommitConflictError:
                continue  # another commit has changed one of these rows: see what it is now
            if not any(self.pinned().data_commits(head.id, done.id - 1)):
                return done
        raise CommitConflictError(
            f"table {self.name!r}: rows must not change while it is rolled back, but other writers changed "
            f"some {_MAX_ROLLBACKS} times; stop those, and call rollback_to again"
        )

    def _taken_back(self, target: int, head: SnapshotInfo) -> Iterator[StagedFiles]:
        """The staged changes from one state back to an older one, bucket by bucket."""
        start, end = Version.complete(target), Version.complete(head.data_version)
        buckets = self.pinned().buckets_between(target, head.data_version)
        found = (self.changes_between(start, end, buckets=[one]) for one in range(buckets))
        changes = (_changes.inverted(rows) for rows in found if rows.num_rows)
        # ALTER TABLE may have brought a row into another bucket since then
        if self.layout.is_counted or buckets != self.options.bucket:
            return map(self.stage_raw, changes)
        return (self.stage(rows, order="none") for rows in changes)

    def stage(
        self, rows: Rows, *, order: Order, definition: int | None = None, is_committed_here: bool = False
    ) -> StagedFiles:
        """Write the files of one task that has *all* rows of the buckets it writes to; publish nothing.

        Args:
            rows: as for ``write``.
            order: "rows": of each key the last row wins. "none": equal rows of opposite sign cancel, what is
                left must be one value per key. Of a table with a sequence or a merge engine the rows are
                kept as they are until they are committed.
            definition: version of the table's definition whose columns the rows have; None for the present.
            is_committed_here: whether this process commits them: few such rows need no file before that.

        Raises:
            SchemaError: the rows do not fit.
            ChangelogError: two different values of one key are left.
        """
        with self.published.writing():
            return staging.stage_folded(
                self.published, rows, order, definition, is_committed_here=is_committed_here
            )

    def stage_raw(self, rows: Rows, *, definition: int | None = None) -> StagedFiles:
        """Write one task's rows as they are, of any partitioning; ``commit`` folds them as order="none" does.

        Arguments are those of ``stage``, and rows that do not fit are a ``SchemaError``.
        """
        with self.published.writing():
            return staging.stage_raw(self.published, rows, definition=definition)

    def folded(self, staged: StagedFiles) -> StagedFiles:
        """What ``stage_raw`` returned, or what is of some buckets in it, as files that ``stage`` would write.

        The rows that all tasks have of a bucket must be there. What was given stays until it is committed as
        ``StagedFiles.folded``.
        """
        return staging.fold_staged(self.published, staged)

    def commit(
        self,
        staged: Iterable[StagedFiles],
        *,
        writer_id: str | None = None,
        transaction: int | None = None,
        overwrite: Overwrite | None = None,
        tracked: bool | None = None,
        unchanged_since: int | None = None,
        stands_for: StandsFor | None = None,
    ) -> Snapshot:
        """Publish what tasks have staged, all of it at once.

        A transaction that the same writer has committed before, or an earlier one, changes nothing; the files
        staged for it are left for ``clean``.

        Args:
            staged: what ``stage`` and ``stage_raw`` returned, here or in other processes.
            writer_id: who commits, for example a streaming query's id.
            transaction: number of the writer's transaction, for example a micro-batch's id.
            overwrite: the partitions that the rows replace; None for none.
            tracked: whether the commit shows in change streams; None: as partitions and table say.
            unchanged_since: id of the snapshot from which the rows were computed: they are
                committed only if no other commit has changed a row of their keys since.
            stands_for: the base versions of a materialized view; they are committed also without rows.

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
        if unchanged_since is not None:
            self._checked_id(unchanged_since)
        terms = self._terms(writer_id, transaction, overwrite=overwrite, tracked=tracked)
        terms = replace(terms, unchanged_since=unchanged_since, stands_for=stands_for)
        return self._settled(append.commit_staged(self._committer, staged, terms))

    def _terms(
        self,
        writer_id: str | None,
        transaction: int | None,
        *,
        overwrite: Overwrite | None = None,
        tracked: bool | None,
    ) -> Terms:
        both = append.transaction_of(writer_id, transaction)
        # rows may have been written under a definition that is new to this process
        self.published.looked_before_commit()
        publishing.before_commit(self.as_logged())
        announce = None if overwrite else publishing.announcer(self.as_logged, tracked)
        return Terms(both, overwrite, tracked, announce)

    def _settled(self, done: Committed) -> Snapshot:
        """What follows a commit: the log gets its changes before any of them can expire."""
        failure = publishing.after_commit(self.as_logged(), done.info)
        background.after_commit(self._committer, self.options, done)
        if done.added and not self.options.write_only:
            failure = self._after_partitions_expired() or failure
        if failure is not None:
            raise failure
        try:
            snapshot = self._snapshot_of(done.info)
        except (OSError, ConfigurationError) as cause:  # the latter if a right has been taken away
            raise UnknownOutcomeError(
                f"table {self.name!r}: committed as snapshot {done.info.id}, which must be read to be "
                f"returned, got {cause}; do not write the rows again"
            ) from cause
        snapshot.committed_rows = done.rows
        return snapshot

    def discard(self, staged: Iterable[StagedFiles]) -> None:
        """Delete the files of an attempt that will not be committed; what was published after all stays."""
        append.discard(self._committer, staged)

    def discarded_if_failed(self, staged: Iterable[StagedFiles]) -> AbstractContextManager[None]:
        """A block that commits staged files: when it fails they are deleted, as by ``discard``.

        They stay where it is unknown whether the commit has happened (``UnknownOutcomeError``).
        """
        return append.discarded_if_failed(self._committer, lambda: staged)

    def snapshot(self, id: int | str | None = None) -> Snapshot:
        """The latest snapshot, or an older one; compaction does not change what it holds.

        Args:
            id: None for the latest; 0 for the empty table before the first commit; or the name of a tag.

        Raises:
            ConfigurationError: there is no such snapshot yet, or no such tag.
            SnapshotExpiredError: it has expired.
        """
        return self._unless_expiring(lambda: self._snapshot_of(self._info(id)))

    def _info(self, id: int | str | None) -> SnapshotInfo:
        if isinstance(id, str):
            return self.published.tag(id).snapshot
        return self.published.looked() if id is None else self.published.equal_to(self._checked_id(id))

    def _checked_id(self, id: int) -> int:
        if not hasattr(id, "__index__"):
            raise ConfigurationError(
                f"table {self.name!r}: a snapshot must be given by its id, a whole number, got {id!r}; "
                "history() has the ids and times of those that can be read"
            )
        return id

    def history(self) -> tuple[SnapshotInfo, ...]:
        """The snapshots that can be read, oldest first."""
        return self.published.retained()

    def partitions(self) -> tuple[PartitionInfo, ...]:
        """What there is to know of each partition that has files; nothing is read but manifests."""
        files = self._unless_expiring(lambda: self.published.files(self.published.latest()))
        return partition_infos(self.root, self.definition, files)

    def at(self, version: Version) -> AtVersion:
        """The table at a reader's version, also in the middle of a step.

        Raises:
            SnapshotExpiredError: its base or its target has expired.
        """
        self.published.seen_from(version.target)
        return self.pinned().at(version)

    def changes(
        self,
        since: int,
        until: int | None = None,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
    ) -> pa.Table:
        """The consolidated changes from one snapshot to another, ``_row_kind`` last.

        Changes in between that cancel are not among them: they lead from the first state to the second.

        Args:
            since: id of a snapshot; 0 for the empty table.
            until: id of the same or a later one; None for the latest.
            columns: the columns to return; None for all.
            where: only changes of rows of which this is true, see ``upsert.store.predicate``; None for all.

        Raises:
            SnapshotExpiredError: one of them has expired.
            UntrackedChangesError: a commit in between was written with ``change-tracking = false``.
            ConfigurationError: one of them is no id of a snapshot, or they are in the wrong order.
        """
        self._checked_id(since)
        if until is not None:
            self._checked_id(until)
            self.published.latest()
        scope = self._scope(where)
        return self._unless_expiring(lambda: _changes.changes(self.pinned(), since, until, columns, scope))

    def _scope(self, where: Where | None, skip_untracked: bool = False) -> Scope:
        return Scope(parse_where(where, self.schema), skip_untracked)

    def advance(
        self,
        version: Version,
        *,
        max_rows: int | None = None,
        max_bytes: int | None = None,
        max_bytes_of_bucket: int | None = None,
        until: int | None = None,
        where: Where | None = None,
        skip_untracked: bool = False,
    ) -> Version:
        """The end of a reader's next step; ``version`` itself when nothing is new.

        The limits concern the stored rows that the step touches: their number, their size in memory, and
        the size of those of one bucket.
        """
        scope, limit = self._scope(where, skip_untracked), StepLimit(max_rows, max_bytes, max_bytes_of_bucket)
        return self._unless_expiring(
            lambda: steps.advance(self.pinned(), version, limit=limit, until=until, scope=scope)
        )

    def changes_between(
        self,
        start: Version,
        end: Version,
        *,
        columns: Sequence[str] | None = None,
        buckets: Collection[int] | None = None,
        where: Where | None = None,
        skip_untracked: bool = False,
        share: KeyShare | None = None,
    ) -> pa.Table:
        """The consolidated changes of one step, of all buckets and keys or some.

        With ``skip_untracked``, commits without tracking are passed over: no state of the table follows.

        Raises:
            ConfigurationError: no single step leads from ``start`` to ``end``.
            SnapshotExpiredError, UntrackedChangesError: as for ``changes``.
        """
        self.published.seen_from(end.target)
        scope = self._scope(where, skip_untracked)
        return self._unless_expiring(
            lambda: _changes.changes_between(
                self.pinned(), start, end, columns=columns, buckets=buckets, scope=scope, share=share
            )
        )

    def as_logged(self) -> LoggedTable:
        """The table as its log sees it, with its present columns."""
        definition = self.definition  # one look: columns and rows must be of the same
        rows = PinnedTable(self.name, self.root, definition.layout, self.published)
        return LoggedTable(self.uuid, definition, rows)

    def pinned(self) -> PinnedTable:
        """The table with its present columns, for an operation of several steps."""
        return self.as_logged().rows

    def _snapshot_of(self, info: SnapshotInfo) -> Snapshot:
        return Snapshot.retained(self.published, info, self.layout)

    def _unless_expiring(self, read: Callable[[], _T]) -> _T:
        """What ``read`` returns; again after an expiry in between, for a newer snapshot may hold the same."""
        while True:
            oldest = self.published.seen.oldest
            try:
                return read()
            except (CorruptTableError, SnapshotExpiredError):
                if self.published.latest().oldest == oldest:
                    raise

    def alter(self, *changes: Alteration) -> None:
        """Change the definition of the table: all changes at once, in one snapshot that changes no rows.

        Existing rows stay as they are stored: an added column is NULL in them, a dropped one is not
        seen, also not in older snapshots, which are read with the present columns too. Another number of
        buckets, ``SetOptions({"bucket": "8"})``, writes all files again, while others read and commit. See
        docs/schema-evolution.md. A crash leaves the old definition or the new one.

        Args:
            changes: values of ``upsert.store.alterations``, applied in their order.

        Raises:
            SchemaError: a column is unknown or there already, or may not change like this.
            CheckViolatedError: an existing row breaks an added constraint. Nothing was changed.
            ConfigurationError: an option is unknown, wrong or fixed, or no partition is given.
            CommitConflictError: every attempt of minutes lost the race. Nothing was changed.
            KafkaUnavailableError: the table's log could not be made or changed, and nothing was; or it is
                the table's no more, and the same call tries again to delete its topic.
            LogNotPublishedError: the table has got a log, which lacks what was committed meanwhile.
        """
        if wrong := [one for one in changes if not isinstance(one, Alteration)]:
            raise ConfigurationError(
                f"table {self.name!r}: alter takes values of upsert.store.alterations, got {wrong[0]!r}; "
                "give such values, or write ALTER TABLE with catalog.sql"
            )
        with self._alone_if_moving(changes):
            has_got_log = lifecycle.alter_table(self._committer, changes)
        background.after_alter(self._committer, self.options)
        if has_got_log:
            failure = publishing.after_commit(self.as_logged(), self.published.latest())
            if failure is not None:
                raise failure

    @contextmanager
    def _alone_if_moving(self, changes: Iterable[Alteration]) -> Iterator[None]:
        """A block that no compaction disturbs, if it brings all rows into another number of buckets."""
        self.published.latest()
        if altered(self.definition, changes).options.bucket == self.options.bucket:
            yield
            return
        with background.compaction_lock(self.root, wait=True), synced_together():
            yield

    def expire(self, *, keep: int | None = None, older_than_s: float | None = None) -> int:
        """Give up old states of the table; how many snapshots can no longer be read.

        Files that only expired snapshots need are deleted. The snapshot that a consumer holds stays, with
        all later ones; tagged snapshots stay.

        Args:
            keep: number of newest states to keep; compaction makes no new state.
            older_than_s: expire only states that were replaced longer ago than this. With both, a state
                expires only if it is old enough and not among those to keep. With neither, the table's
                options ``snapshot.…`` decide, without their limit.

        Raises:
            ConfigurationError: ``keep`` is below 1, or ``older_than_s`` below 0 or not finite.
        """
        return expiry.expire(self._committer, self.options.retention, keep=keep, older_than_s=older_than_s)

    def expire_partitions(
        self,
        *,
        older_than_s: float | None = None,
        timestamp_formatter: str | None = None,
        timestamp_pattern: str | None = None,
    ) -> tuple[str, ...]:
        """Drop the partitions whose time is longer ago than is wanted; their names, in order.

        A commit like ``drop_partition``: readers of changes see each row go, unless commits to the partition
        are not tracked. Commits do it by the table's options. See docs/partitions.md.

        Args:
            older_than_s: more than 0; None for the option ``partition.expiration-time``.
            timestamp_formatter: None for ``partition.timestamp-formatter``.
            timestamp_pattern: None for ``partition.timestamp-pattern``.

        Raises:
            ConfigurationError: neither the call nor the table says an age, or one of them is wrong.
            LogNotPublishedError: the partitions are dropped, and the table's log does not say so yet.
        """
        self.published.latest()
        age = partition_expiry.asked_age(
            self.definition, older_than_s, timestamp_formatter, timestamp_pattern
        )
        publishing.before_commit(self.as_logged())
        done, gone = partition_expiry.drop_expired(self._committer, age)
        self._settled(done)
        return tuple(sorted(map(partition_name, gone)))

    def _after_partitions_expired(self) -> LogNotPublishedError | None:
        """Drop the partitions that have expired, after a commit; what became of the log, if that failed."""
        done = partition_expiry.after_commit(self._committer, self.options.partition_age)
        return None if done is None else publishing.after_commit(self.as_logged(), done.info)

    def maintain(self) -> None:
        """Drop the partitions and expire all snapshots that are due.

        For a process that compacts a table whose commits leave that to others (``write-only``).

        Raises:
            LogNotPublishedError: partitions are dropped, and the table's log does not say so yet.
        """
        self.published.latest()
        failure = self._after_partitions_expired()
        expiry.all_due(self._committer, self.options.retention)
        if failure is not None:
            raise failure

    def tag(self, name: str, snapshot: int | str | None = None) -> Tag:
        """Give a snapshot a name, by which it stays readable until the tag is deleted.

        Args:
            name: letters, digits, ``.``, ``_`` and ``-``, not a number; must not be in use.
            snapshot: its id, or another tag of it; None for the latest.

        Raises:
            ConfigurationError: the name is wrong or in use, or there is no such snapshot.
            SnapshotExpiredError: the snapshot has expired.
        """
        if isinstance(snapshot, str):
            snapshot = self.published.tag(snapshot).snapshot.id
        elif snapshot is not None:
            self._checked_id(snapshot)
        return tags.create(self.published, name, snapshot)

    def tags(self) -> tuple[Tag, ...]:
        """All tags, that of the oldest snapshot first."""
        return tag_file.read_all(self.root, self.uuid)

    def delete_tag(self, name: str) -> None:
        """Take a tag away, and delete what only its snapshot needs.

        Raises:
            ConfigurationError: there is no such tag, or a consumer reads on from its snapshot.
        """
        tags.delete(self.published, name)

    def hold(self, consumer: str, version: Version, lease_s: float = consumers.DEFAULT_LEASE_S) -> Consumer:
        """Keep what a reader at ``version`` needs until its lease ends.

        Args:
            consumer: name of the reader; what it held before is held no more.
            version: where it would read on.
            lease_s: for how long, from now on, in seconds.

        Raises:
            ConfigurationError: the name or the lease is wrong, or there is no such snapshot yet.
            SnapshotExpiredError: the version cannot be read any more.
        """
        return consumers.hold(self.published, consumer, version, lease_s)

    def consumers(self) -> tuple[Consumer, ...]:
        """Who holds what, by name; those whose lease is over stay until the next expiry."""
        return consumers.read_all(self.root, self.uuid)

    def consumer(self, name: str) -> Consumer | None:
        """What one reader holds; None if it holds nothing."""
        return consumers.read(self.root, self.uuid, name)

    def release(self, consumer: str) -> bool:
        """Keep nothing for a consumer any more; whether it held anything."""
        return consumers.release(self.published, consumer)

    def check(self, *, deep: bool = False) -> tuple[Violation, ...]:
        """What is wrong with the table on the disk; repairs nothing.

        Args:
            deep: read all data too; else manifests, and the sizes of files.
        """
        return check.check(self.published, deep=deep)

    def clean(self, *, older_than_s: float = orphans.DEFAULT_AGE_S) -> int:
        """Delete files that no snapshot and no tag needs, left by processes that died; how many there were.

        So it does in the hidden tables of a view, and of queries that write into the table. In an object
        store also what tables of the name before, and queries that died, have left beside it. A writer that
        began before the youngest of them, and has not committed, gets a ``StaleWriterError``.

        Args:
            older_than_s: spare younger files; more than the longest write takes.

        Raises:
            ConfigurationError: ``older_than_s`` is below 0 or not finite.
            CorruptTableError: something that is needed is missing or damaged. Nothing was deleted there.
        """
        folders = 0 if storage_of(self.path).is_local else orphans.sweep(self.path)
        with self.published.writing():
            cleaned = orphans.clean(self._committer, older_than_s)
            hidden = sum(_clean_hidden(path, older_than_s) for path in orphans.hidden_tables(self.root))
        return folders + cleaned + hidden

    def publish_log(self, *, accept_gap: bool = False) -> int:
        """Send what is committed and not in the table's log; how many snapshots that were.

        Every commit does that itself. This is for the time after a commit that said that it could not, or
        whose process was killed. Any process may call it, several at once.

        Args:
            accept_gap: if changes have expired that the log lacks, go on behind them; readers of the log stop
                there and say so.

        Raises:
            ConfigurationError: the table has no log, or it is the log of another one.
            SnapshotExpiredError: such changes have expired, and ``accept_gap`` is not set.
            KafkaUnavailableError, DeliveryError: Kafka did not take them; call again.
        """
        self.published.latest()
        return publishing.publish(self.as_logged(), accept_gap=accept_gap)

    def compact(
        self, partition: Mapping[str, object] | None = None, buckets: Collection[int] | None = None
    ) -> Snapshot | None:
        """Merge each bucket to one sorted run without deletions, after any compaction that is at work.

        Files that lack an index, which was added after they were written, get it.

        Memory stays bounded, however large a bucket is. ``upsert.managed.compaction.compact`` does the same
        in the tasks of a Spark job.

        Args:
            partition: values that a partition must have to be compacted; None for all.
            buckets: numbers of the buckets within each partition; None for all.

        Returns:
            The snapshot that this made, or None if there was nothing to merge.

        Raises:
            SchemaError: ``partition`` names no partition column, or a value does not fit it.
            LogNotPublishedError: it is compacted; the log does not say yet that partitions have expired.
        """
        is_wanted = compaction.in_buckets(self.schema, partition, buckets)
        with background.compaction_lock(self.root, wait=True), self.published.writing():
            info = compaction.compact_fully(self._committer, self.options, is_wanted)
            info = index_building.build(self._committer, is_wanted) or info
        self.maintain()
        return None if info is None else self._snapshot_of(info)


def _clean_hidden(path: str, older_than_s: float) -> int:
    try:
        return Table.open(path).clean(older_than_s=older_than_s)
    except UpsertError:
        if storage_of(path).exists(os.path.join(path, paths.TABLE_FILE)):
            raise
        return 0  # a refresh has just dropped it
