"""Publishing another definition of a table: a snapshot that names it, so that it stands among commits.

Rows stay as they are stored and are read through the new definition (``projection``). They are rewritten, in
the same snapshot, where the table gets another number of buckets; and where the columns of rows without a
primary key change, for these are their identity.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from upsert.errors import SchemaError
from upsert.failpoints import reach
from upsert.store import paths
from upsert.store.alterations import Alteration, altered, needs_empty_table, with_older_rows
from upsert.store.commit import append
from upsert.store.commit.change import Change
from upsert.store.commit.committer import Committer
from upsert.store.commit.constraints import check_unique
from upsert.store.commit.rewrite import Rewrite
from upsert.store.commit.staging import StagedFiles
from upsert.store.metadata.definition import Definition, new_checks, newly_required
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.metadata.history import History
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.metadata.table_file import publish_definition
from upsert.store.read.snapshot import Snapshot
from upsert.store.rows.conform import check_rows, cut


def alter(committer: Committer, changes: Iterable[Alteration]) -> SnapshotInfo:
    """Publish the definition that some changes make of the present one; the snapshot that names it.

    All of them hold at once, or none does. Two processes that alter a table do so one after the other.
    """
    attempt = _Attempt(committer.history, tuple(changes))
    uuid = committer.history.uuid
    with append.discarded_if_failed(committer, lambda: [StagedFiles(uuid, tuple(attempt.written))]):
        info = committer.commit(attempt.propose, goes_first=True).info
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
        self._published: tuple[tuple[int, bool], Definition, Rewrite] | None = None
        self._checked: tuple[int, int] | None = None

    def propose(self, head: SnapshotInfo) -> Change | None:
        """The change to make on a snapshot; None if the table is like that already."""
        old = self._history.definition_at(head.definition)
        new = altered(old, self._changes)
        if new is old:
            return None
        if (reason := needs_empty_table(old, new)) and head.files:
            raise SchemaError(f"table {self._history.root!r}: ALTER TABLE: {reason}")
        has_older_rows = head.data_version > 0
        if has_older_rows:
            new = with_older_rows(old, new)
        self._check_rows(old, new, head)
        if self._published is None or self._published[0] != (old.version, has_older_rows):
            new = publish_definition(self._history.root, self._history.uuid, new)
            rewrite = Rewrite(self._history.root, old.layout, new.layout, self.written)
            self._published = (old.version, has_older_rows), new, rewrite
            reach("alter.after-definition")
        _, new, rewrite = self._published
        if not rewrite.is_needed:
            return Change("alter", definition=new.version)
        live = self._history.files(head)
        added = rewrite.at(live, head)
        reach("alter.after-rewrite")
        return Change("alter", added, live.entries, definition=new.version)

    def _check_rows(self, old: Definition, new: Definition, head: SnapshotInfo) -> None:
        """Refuse existing rows that break a constraint of ``new`` which ``old`` has not."""
        schema, checks = new.schema, new_checks(old.schema, new.schema)
        required = newly_required(old.schema, schema)
        promised = {index.name for index in old.layout.indexes if index.is_unique}
        unique = [one for one in new.layout.indexes if one.is_unique and one.name not in promised]
        if not (checks or required or unique) or self._checked == (head.data_version, old.version):
            return
        of = f"table {paths.name_of(self._history.root)!r}: ALTER TABLE"
        asked, nulls = replace(schema, checks=checks), _Nulls(schema.primary_key, required)
        needed = (*schema.primary_key, *required, *(name for check in checks for name in check.columns))
        rows = Snapshot.retained(self._history, head, new.layout)
        for piece in rows.pieces(list(dict.fromkeys(needed))) if checks or required else ():
            check_rows(asked, piece, None, of)
            nulls.count(piece)
        nulls.check(of)
        if head.files:
            check_unique(new.layout, unique, rows.pieces, head.rows, of)
        self._checked = head.data_version, old.version


class _Nulls:
    """How many rows have NULL in columns that are to be NOT NULL, and the key of one of them."""

    def __init__(self, key: Sequence[str], columns: Sequence[str]) -> None:
        self._key = list(key)
        self._counts = dict.fromkeys(columns, 0)
        self._examples: dict[str, str] = {}

    def count(self, rows: pa.Table) -> None:
        for name in self._counts:
            values = rows.column(name)
            if values.null_count and name not in self._examples:
                (row,) = rows.filter(values.is_null()).slice(0, 1).select(self._key).to_pylist() or [{}]
                shown = ", ".join(f"{key} = {cut(repr(value))}" for key, value in row.items())
                self._examples[name] = f", one with {shown}" if shown else ""
            self._counts[name] += values.null_count

    def check(self, of: str) -> None:
        for name, example in self._examples.items():
            raise SchemaError(
                f"{of}: column {name!r} must have no NULL to become NOT NULL, got {self._counts[name]} rows "
                f"that have it{example}; UPDATE or DELETE them first, nothing was changed"
            )
