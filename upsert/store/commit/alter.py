"""Publishing another definition of a table: a snapshot that names it, so that it stands among commits.

Rows stay as they are stored and are read through the new definition (``projection``). They are rewritten, in
the same snapshot, where the table gets another number of buckets; and where the columns of rows without a
primary key change, for these are their identity.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from upsert.errors import SchemaError
from upsert.failpoints import reach
from upsert.store import paths
from upsert.store.alterations import Alteration, altered, needs_empty_table
from upsert.store.commit import append
from upsert.store.commit.change import Change
from upsert.store.commit.committer import Committer
from upsert.store.commit.rescale import Rescale
from upsert.store.commit.staging import PIECE_BYTES, StagedFiles
from upsert.store.files.data_file import rows_of_file
from upsert.store.files.writing import write_run
from upsert.store.metadata.definition import Definition, has_same_values, new_checks
from upsert.store.metadata.file_entry import FileEntry, Run
from upsert.store.metadata.history import History
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.metadata.table_file import publish_definition
from upsert.store.paths import BucketId
from upsert.store.read.snapshot import Snapshot
from upsert.store.rows.conform import check_rows
from upsert.store.rows.fold import fold
from upsert.store.rows.hashing import row_hashes
from upsert.store.rows.layout import COUNT_COLUMN, ROW_HASH_COLUMN, Layout, Projection, with_ids
from upsert.store.rows.merge import key_ranges, merge_runs, present
from upsert.store.rows.partitions import split


def alter(committer: Committer, changes: Iterable[Alteration]) -> SnapshotInfo:
    """Publish the definition that some changes make of the present one; the snapshot that names it.

    All of them hold at once, or none does. Two processes that alter a table do so one after the other.
    """
    attempt = _Attempt(committer.history, tuple(changes))
    uuid = committer.history.uuid
    with append.discarded_if_failed(committer, lambda: [StagedFiles(uuid, tuple(attempt.written))]):
        info = committer.commit(attempt.propose).info
    # drops what attempts that lost have rewritten; what is published is needed and stays
    if attempt.written:
        append.discard_left(committer, [StagedFiles(uuid, tuple(attempt.written))])
    return info


class _Attempt:
    """What is remembered from one attempt to the next: a definition is written once for each it follows."""

    def __init__(self, history: History, changes: Sequence[Alteration]) -> None:
        self.written: list[FileEntry] = []
        self._history = history
        self._changes = changes
        self._published: tuple[int, Definition] | None = None
        self._rewriting: dict[tuple[int, int, int], tuple[FileEntry, ...]] = {}
        self._checked: tuple[int, int] | None = None
        self._rescale: Rescale | None = None

    def propose(self, head: SnapshotInfo) -> Change | None:
        """The change to make on a snapshot; None if the table is like that already."""
        old = self._history.definition_at(head.definition)
        new = altered(old, self._changes)
        if new is old:
            return None
        if (reason := needs_empty_table(old, new)) and head.files:
            raise SchemaError(f"table {self._history.root!r}: ALTER TABLE: {reason}")
        self._check_rows(old, new, head)
        if self._published is None or self._published[0] != old.version:
            self._published = old.version, publish_definition(self._history.root, self._history.uuid, new)
            self._rescale = Rescale(self._history.root, self._published[1].layout, self.written)
            reach("alter.after-definition")
        new = self._published[1]
        added = self._written_again(old, new, head)
        reach("alter.after-rewrite")
        removed = () if added is None else self._history.files(head).entries
        return Change("alter", added or (), removed, definition=new.version)

    def _written_again(
        self, old: Definition, new: Definition, head: SnapshotInfo
    ) -> tuple[FileEntry, ...] | None:
        """All rows in other files, if they cannot stay where they are, or be the same; None if they can."""
        live = self._history.files(head)
        if not new.layout.is_counted or has_same_values(old.schema, new.schema):
            is_alike = old.options.bucket == new.options.bucket
            return None if is_alike or self._rescale is None else self._rescale.at(live, head)
        # a compaction meanwhile leaves the rows as they are, and has put them into other files
        rows = head.data_version, head.fence, new.version
        if rows not in self._rewriting:
            root, runs = self._history.root, live.groups.values()
            self._rewriting[rows] = tuple(_rewrite(root, old.layout, new.layout, runs, head.id, self.written))
        return self._rewriting[rows]

    def _check_rows(self, old: Definition, new: Definition, head: SnapshotInfo) -> None:
        """Refuse existing rows that break a constraint of ``new`` which ``old`` has not."""
        checks = new_checks(old.schema, new.schema)
        if not checks or self._checked == (head.data_version, old.version):
            return
        asked = replace(new.schema, checks=checks)
        needed = (*new.schema.primary_key, *(name for check in checks for name in check.columns))
        rows = Snapshot.retained(self._history, head, new.layout)
        for piece in rows.pieces(list(dict.fromkeys(needed))):
            check_rows(asked, piece, None, f"table {paths.name_of(self._history.root)!r}: ALTER TABLE")
        self._checked = head.data_version, old.version


def _rewrite(
    root: str, old: Layout, new: Layout, buckets: Iterable[Sequence[Run]], base: int, written: list[FileEntry]
) -> list[FileEntry]:
    """All rows of a table without primary key, with the columns and the identity of ``new``.

    Rows that were apart may be equal now, and lie in another bucket, whose files must not overlap: each range
    of an old bucket becomes sorted files, and those of a new bucket are merged. Neither takes the memory of a
    bucket. ``written`` gets every file, for those that only served the merging are not in the result.
    """
    write = partial(write_run, root, new, level=0, base=base)
    sorted_files: dict[BucketId, list[FileEntry]] = {}
    for runs in buckets:
        inputs = [rows_of_file(root, old, entry) for run in reversed(runs) for entry in run]
        for within in key_ranges(old, inputs, PIECE_BYTES):
            rows = present(old, merge_runs(old, within))
            for portion in split(new, _converted(root, old, new, rows), None) if rows.num_rows else ():
                weights = portion.rows.column(COUNT_COLUMN).to_numpy()
                columns = portion.rows.select([*new.schema.names, ROW_HASH_COLUMN])
                run = fold(new, columns, weights, "rows")
                files = write([run], portion.bucket_id)
                written += files
                sorted_files.setdefault(portion.bucket_id, []).extend(files)
    added: list[FileEntry] = []
    for bucket_id, files in sorted_files.items():
        if len(files) == 1:
            added += files
            continue
        parts = [rows_of_file(root, new, entry) for entry in files]
        merged = (merge_runs(new, within) for within in key_ranges(new, parts, PIECE_BYTES))
        whole = write(merged, bucket_id)
        written += whole
        added += whole
    return added


def _converted(root: str, old: Layout, new: Layout, rows: pa.Table) -> pa.Table:
    named = pa.Table.from_arrays(rows.columns, schema=with_ids(old)).combine_chunks().to_batches()[0]
    columns = Projection.of(named.schema, new, f"table {root!r}").apply(named, new.schema.names).columns
    hashes = row_hashes(columns, named.num_rows)
    return pa.table([*columns, hashes, named.column(COUNT_COLUMN)], schema=new.stored)
