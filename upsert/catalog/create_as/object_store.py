"""Tables that queries fill in an object store: in an unlisted folder, then named atomically.

That is a compare-and-swap of ``table.json``, see ``upsert.store.metadata.table_file``. It also says
who fills what, so the name is taken, and a statement that takes it over from a process that seems to be
dead makes the swap of that process fail. A lease in the folder says whether it lives.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from upsert.catalog.connectors.definition import clean_up
from upsert.catalog.create_as.stages import Entry, has_commit
from upsert.catalog.warehouse import Warehouse
from upsert.errors import CommitConflictError, CorruptTableError, TableExistsError
from upsert.failpoints import reach
from upsert.store import paths
from upsert.store.log.lifecycle import log_dropper
from upsert.store.metadata.table_file import STAGE, Pointer, definition_of, show_stream, value_in
from upsert.store.storage import storage_of
from upsert.store.storage.lease import KeptLease, Lease
from upsert.store.upkeep.orphans import logs_are_gone, only_warned_of, sweep

BEFORE: Final = "before"
"""The entry of a table's finished query before a statement began to replace the table."""


@dataclass
class ObjectStoreStage:
    """A table that this process fills, in the folder ``unique`` of that which the table will have.

    The lease shows that this process lives.
    """

    path: str
    unique: str
    lease: KeptLease
    _is_shown: bool = False

    @property
    def folder(self) -> str:
        """Where the table lies while it is filled."""
        return paths.filling_folder(self.path, self.unique)

    @property
    def is_visible(self) -> bool:
        """Whether readers see the table."""
        return self._is_seen(value_in(self.path))

    def _is_seen(self, value: Mapping[str, Any]) -> bool:
        own = value_in(self.folder).get("uuid")
        return own is not None and value.get("uuid") == own

    def take_over(self) -> None:
        """Take over a table that another process has begun."""
        owner = Entry.of_this_process("streaming").owner
        self._change(lambda value, note: {**value, STAGE: {**note, "owner": owner, "is_done": False}})
        self._is_shown = self.is_visible
        self.show_after_commit()

    def remember(self, made: tuple[str, ...]) -> None:
        """Record what was created outside, so that it is deleted with a table that never becomes visible."""
        self._change(lambda value, note: {**value, STAGE: {**note, "made": made}})

    def show_after_commit(self) -> None:
        """Make the table visible, if it has a commit or is of a kind without commits."""
        if not self._is_shown and ("connector" in value_in(self.folder) or _has_managed_commit(self.folder)):
            show_stream(self.folder)
            self._is_shown = True

    def done(self, *, forget: bool) -> None:
        """Make the table visible, and release its lease.

        ``forget`` deletes the entry, by which the same statement could continue. Where it is not known
        whether the table is visible, `discard` settles that.
        """

        def shown(_: Mapping[str, Any], note: Mapping[str, Any]) -> dict[str, Any]:
            return definition_of(self.folder) | ({} if forget else {STAGE: {**note, "is_done": True}})

        reach("create-as.before-exchange")
        self._change(shown)
        reach("create-as.after-exchange")
        self._is_shown = True
        self.lease.release(for_good=forget)
        reach("create-as.after-done")

    def discard(self) -> None:
        """Delete the table unless it may have been seen, and release its lease.

        A publication whose outcome is unknown fails from then on, or is found to have happened.
        """
        try:
            note = self._freed()
        finally:
            self.lease.release()
        if note is not None:
            _clean_left(self.path, self.folder, note)

    def let_go(self) -> None:
        """Leave the table as it is, for the same statement to continue."""
        self.lease.release()

    def _freed(self) -> Mapping[str, Any] | None:
        """Free the name; returns its note, None if the table is visible or belongs to another process."""
        while True:
            seen = Pointer.look(self.path)
            note = seen.stage
            if note is None or note["folder"] != self.unique or self._is_seen(seen.value):
                return None
            if (after := _given_up(seen, self.folder)) is None:
                show_stream(self.folder)
            elif seen.swap(after):
                return note

    def _change(self, make: Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]) -> None:
        seen = Pointer.look(self.path)
        note = seen.stage
        if note is None or note["folder"] != self.unique or not seen.swap(make(seen.value, note)):
            raise CommitConflictError(
                f"table {os.path.basename(self.path)!r}: its writer must show a sign of life each minute; "
                "this process did not, or the table was dropped, and another one took over; run this again"
            )


def _given_up(seen: Pointer, folder: str) -> Mapping[str, Any] | None:
    """What a name says when filling is given up; None: a stream has a commit, so its table stays."""
    note = seen.stage or {}
    if note.get("mode") == "streaming" and _has_managed_commit(folder):
        return None
    left = {key: value for key, value in seen.value.items() if key != STAGE}
    return left if note.get(BEFORE) is None else {**left, STAGE: note[BEFORE]}


def _has_managed_commit(folder: str) -> bool:
    files = value_in(folder).get("files")
    return files is not None and has_commit(paths.resolve(folder, files))


def _clean_left(path: str, folder: str, note: Mapping[str, Any]) -> None:
    """Delete what a statement that gave up has left, here and outside."""
    if note["made"]:
        clean_up(folder, tuple(note["made"]))
    sweep(path)


_LEASE: Final = "lease"


@dataclass(frozen=True)
class ObjectStoreStages:
    """What ``CREATE TABLE … AS SELECT`` needs of a warehouse in an object store."""

    tables: Warehouse

    def entry(self, name: str) -> Entry | None:
        """The entry of a table that a statement fills, or has filled and may continue."""
        path = self.tables.path(name)
        if (note := value_in(path).get(STAGE)) is None:
            return None
        try:
            return Entry.from_json(note)
        except (KeyError, TypeError) as cause:
            raise CorruptTableError(
                f"table.json of {path!r}: its entry of the query that fills the table cannot be read, "
                f"{cause!r}; restore the file"
            ) from cause

    def sweep(self, name: str) -> None:
        """Delete what a dead process has begun under this name; a stream that committed keeps its table."""
        path = self.tables.path(name)
        # first by a look that every store allows
        while STAGE in value_in(path):
            seen = Pointer.look(path)
            if seen.is_table or (note := seen.stage) is None:
                return
            with self._instead_of(name, path, note):
                folder = paths.filling_folder(path, note["folder"])
                if (after := _given_up(seen, folder)) is None:
                    show_stream(folder)
                    continue
                is_free = seen.swap(after)
            if is_free:
                _clean_left(path, folder, note)

    def begin(self, name: str, entry: Entry, create: Callable[[str], None]) -> ObjectStoreStage:
        """A table made by ``create`` in a folder that no reader knows."""
        self.sweep(name)
        path = self.tables.path(name)
        seen = Pointer.look(path)
        if seen.is_table:
            raise TableExistsError(f"table {name!r} exists already; choose another name, or IF NOT EXISTS")
        if seen.stage is not None:
            raise _overtaken(name)
        stage = self._taken(name, seen, entry)
        try:
            create(stage.folder)
        except BaseException:
            stage.discard()
            raise
        reach("create-as.after-table")
        return stage

    def resume(self, name: str, checkpoint: str) -> ObjectStoreStage | None:
        """The table that an earlier run of the same streaming statement has begun; None if there is none.

        If that run's lease is less than a minute old, this waits until it has expired.
        """
        path = self.tables.path(name)
        note = value_in(path).get(STAGE)
        if note is None or (note["mode"], note["checkpoint"]) != ("streaming", checkpoint):
            return None
        unique = note["folder"]
        if not value_in(paths.filling_folder(path, unique)):
            return None
        lease = KeptLease.take_when_free(_lease(path, unique))
        if lease is None:
            raise TableExistsError(
                f"table {name!r} is being filled by a query with this checkpoint, started by "
                f"{note['owner']}; stop it first"
            )
        stage = ObjectStoreStage(path, unique, lease)
        try:
            stage.take_over()
        except BaseException:
            lease.release()
            raise
        return stage

    @contextmanager
    def successor(self, name: str) -> Iterator[str]:
        """A folder for the table that will replace ``name``; it does so when the block ends well."""
        path = self.tables.path(name)
        seen = Pointer.look(path)
        if not seen.is_table:
            raise self.tables.not_found(name)
        if seen.stage is not None:
            with self._instead_of(name, path, seen.stage):
                pass
        stage = self._taken(name, seen, Entry.of_this_process("batch"))
        try:
            yield stage.folder
            drop_old_log = log_dropper(self.tables.existing(name))
            stage.done(forget=True)
        except BaseException:
            stage.discard()
            raise
        with only_warned_of(path):
            logs_are_gone(path, drop_old_log)
            sweep(path)

    def _taken(self, name: str, seen: Pointer, entry: Entry) -> ObjectStoreStage:
        """Take the name, or that of a table's successor, for this process; the lease comes first."""
        unique = uuid.uuid4().hex
        note = {"folder": unique, **entry.to_json()}
        if seen.stage is not None:
            note[BEFORE] = seen.stage.get(BEFORE) if seen.stage["mode"] == "batch" else seen.stage
        storage_of(seen.folder).prepare(seen.folder)
        lease = KeptLease.take(_lease(seen.folder, unique))
        if lease is None:  # no other process knows the name
            raise RuntimeError(f"the lease in {seen.folder!r} is held although it is new")
        try:
            is_taken = seen.swap({**seen.value, STAGE: note})
        except BaseException:
            lease.release()
            raise
        if not is_taken:
            lease.release(for_good=True)
            raise _overtaken(name)
        reach("create-as.after-entry")
        return ObjectStoreStage(seen.folder, unique, lease)

    @contextmanager
    def _instead_of(self, name: str, path: str, note: Mapping[str, Any]) -> Iterator[None]:
        """Hold the lease of the process that fills a table, which must be dead."""
        held = _lease(path, note["folder"])
        lease = Lease.take(storage_of(held), held)
        if lease is None:
            raise TableExistsError(
                f"table {name!r} is being created or replaced by {note['owner']}, which has shown a sign of "
                "life within the last minute; wait for it, or choose another name"
            )
        try:
            yield
        finally:
            lease.release()


def _overtaken(name: str) -> TableExistsError:
    return TableExistsError(
        f"table {name!r} has just been created, replaced or dropped by another process; choose another name, "
        "or run this again"
    )


def _lease(path: str, unique: str) -> str:
    return os.path.join(path, unique, _LEASE)
