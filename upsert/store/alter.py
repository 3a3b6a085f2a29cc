"""Publishing another definition of a table: a snapshot that names it, so that it has a place among commits.

Rows stay as they are stored and are read through the new definition (``projection``). Only rows without a
primary key are written anew where their columns change, in the same snapshot, for these are their identity.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from upsert.errors import SchemaError, UnknownOutcomeError
from upsert.store import append
from upsert.store.alterations import Alteration, altered, needs_empty_table
from upsert.store.commit import Change, Committer
from upsert.store.data_file import DataFile
from upsert.store.definition import Definition, has_same_values
from upsert.store.failpoints import reach
from upsert.store.file_entry import FileEntry
from upsert.store.file_set import Run
from upsert.store.fold import fold
from upsert.store.history import History
from upsert.store.layout import COUNT_COLUMN, ROW_HASH_COLUMN, Layout
from upsert.store.merge import SortedRows, merge_runs, present
from upsert.store.placement import split
from upsert.store.projection import Projection, with_ids
from upsert.store.row_hash import row_hashes
from upsert.store.run_files import write_run
from upsert.store.snapshot_info import SnapshotInfo
from upsert.store.staging import StagedFiles
from upsert.store.table_file import publish_definition


def alter(committer: Committer, uuid: str, changes: Iterable[Alteration]) -> SnapshotInfo:
    """Publish the definition that some changes make of the present one; the snapshot that names it.

    All of them hold at once, or none does. Two processes that alter a table do so one after the other.

    Raises:
        SchemaError: a change does not fit the columns, or the table has rows that it cannot be made with.
        ConfigurationError: an option is wrong or cannot change.
        CommitConflictError: every attempt of minutes lost the race. Nothing was changed.
    """
    attempt = _Attempt(committer.history, uuid, tuple(changes))
    try:
        return committer.commit(attempt.propose)
    except UnknownOutcomeError:
        attempt.written.clear()  # the files may be needed yet
        raise
    finally:
        # drops what was written anew for attempts that lost; what is published is needed and stays
        append.discard(committer, [StagedFiles(uuid, tuple(attempt.written))], uuid)


class _Attempt:
    """What is remembered from one attempt to the next: a definition is written once for each it follows."""

    def __init__(self, history: History, uuid: str, changes: Sequence[Alteration]) -> None:
        self.written: list[FileEntry] = []
        self._history = history
        self._uuid = uuid
        self._changes = changes
        self._published: tuple[int, Definition] | None = None
        self._rows: _Rewritten | None = None

    def propose(self, head: SnapshotInfo) -> Change | None:
        """The change to make on a snapshot; None if the table is like that already."""
        old = self._history.definition_at(head.definition)
        new = altered(old, self._changes)
        if new is old:
            return None
        if (reason := needs_empty_table(old, new)) and head.files:
            raise SchemaError(
                f"table {self._history.root!r}: ALTER TABLE: {reason}; delete the rows first, or add it "
                "nullable"
            )
        if self._published is None or self._published[0] != old.version:
            self._published = old.version, publish_definition(self._history.root, self._uuid, new)
            reach("alter.after-definition")
        new = self._published[1]
        if not new.layout.is_counted or has_same_values(old.schema, new.schema):
            return Change("alter", definition=new.version)
        rows = self._rewritten(head, old.layout, new.layout)
        return Change("alter", rows.added, rows.removed, definition=new.version)

    def _rewritten(self, head: SnapshotInfo, old: Layout, new: Layout) -> _Rewritten:
        found = self._rows
        if found is None or (found.version, found.target) != (head.data_version, new.version):
            live = self._history.files(head)
            root, added = self._history.root, list[FileEntry]()
            for runs in live.groups.values():
                added += _rewrite(root, old, new, runs, head.id)
            self.written += added
            found = self._rows = _Rewritten(head.data_version, new.version, tuple(added), live.entries)
        return found


@dataclass(frozen=True)
class _Rewritten:
    """All rows of a data version in the form of a definition's version, and the files that held them."""

    version: int
    target: int
    added: tuple[FileEntry, ...]
    removed: tuple[FileEntry, ...]


def _rewrite(root: str, old: Layout, new: Layout, runs: Sequence[Run], base: int) -> list[FileEntry]:
    """The rows of one bucket of a table without primary key, with the columns and the identity of ``new``."""
    merged = merge_runs(old, [SortedRows(_run(root, old, run), None) for run in reversed(runs)])
    rows = present(old, merged)
    if not rows.num_rows:
        return []
    named = pa.Table.from_arrays(rows.columns, schema=with_ids(old)).combine_chunks().to_batches()[0]
    names = new.schema.names
    columns = Projection.of(named.schema, new, f"table {root!r}").apply(named, names).columns
    hashes = row_hashes(columns, named.num_rows)
    counted = pa.table([*columns, hashes, named.column(COUNT_COLUMN)], schema=new.stored)
    written: list[FileEntry] = []
    for portion in split(new, counted, None):
        weights = portion.rows.column(COUNT_COLUMN).to_numpy()
        run = fold(new, portion.rows.select([*names, ROW_HASH_COLUMN]), weights, "rows")
        written += write_run(
            root,
            new,
            [run],
            partition=portion.partition,
            bucket=portion.bucket,
            level=0,
            base=base,
        )
    return written


def _run(root: str, layout: Layout, run: Run) -> pa.Table:
    return pa.concat_tables([DataFile.open(root, layout, entry).table for entry in run])
