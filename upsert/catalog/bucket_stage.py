"""A table that this process fills in an object store, and what its name says meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from upsert.catalog import staged
from upsert.catalog.staged import Entry
from upsert.catalog.stages import CleanUp
from upsert.errors import CommitConflictError
from upsert.store import paths
from upsert.store.failpoints import reach
from upsert.store.left_folders import sweep
from upsert.store.pointer import STAGE, Pointer, definition_of, show_stream, value_in
from upsert.store.storage.kept_lease import KeptLease

BEFORE: Final = "before"
"""What was said of a finished query of a table before a statement began to replace it."""


@dataclass
class BucketStage:
    """A table that this process fills.

    Attributes:
        place: the folder whose name it will have.
        unique: of the folder there in which it is filled.
        lease: says that this process lives.
    """

    place: str
    unique: str
    lease: KeptLease
    _clean_up: CleanUp
    _is_shown: bool = False

    @property
    def folder(self) -> str:
        """Where the table lies while it is filled."""
        return paths.filling_folder(self.place, self.unique)

    @property
    def is_visible(self) -> bool:
        """Whether everybody sees the table."""
        return self._is_seen(value_in(self.place))

    def _is_seen(self, value: Mapping[str, Any]) -> bool:
        own = value_in(self.folder).get("uuid")
        return own is not None and value.get("uuid") == own

    def go_on(self) -> None:
        """Become the one who fills a table that another process has begun."""
        owner = Entry.of_this_process("streaming").owner
        self._change(lambda value, note: {**value, STAGE: {**note, "owner": owner, "is_done": False}})
        self._is_shown = self.is_visible
        self.show_after_commit()

    def remember(self, made: tuple[str, ...]) -> None:
        """Note what was made outside."""
        self._change(lambda value, note: {**value, STAGE: {**note, "made": made}})

    def show_after_commit(self) -> None:
        """Let everybody see the table, if it has a commit or has no commits at all."""
        if not self._is_shown and has_rows(self.folder):
            show_stream(self.folder)
            self._is_shown = True

    def done(self, *, forget: bool) -> None:
        """Let everybody see the table, and let go of it."""

        def shown(_: Mapping[str, Any], note: Mapping[str, Any]) -> dict[str, Any]:
            return definition_of(self.folder) | ({} if forget else {STAGE: {**note, "is_done": True}})

        reach("create-as.before-exchange")
        self._change(shown)
        reach("create-as.after-exchange")
        self._is_shown = True
        self.lease.release(for_good=forget)
        reach("create-as.after-done")

    def discard(self) -> None:
        """Take the table away unless somebody may have seen it, and let go of it.

        A publication that nobody has answered fails from then on, or is found to have happened.
        """
        try:
            note = self._freed()
        finally:
            self.lease.release()
        if note is not None:
            clean_left(self.place, self.folder, note, self._clean_up)

    def let_go(self) -> None:
        """Leave the table as it is."""
        self.lease.release()

    def _freed(self) -> Mapping[str, Any] | None:
        """Give the name back; what was noted, None if the table was seen or belongs to somebody else."""
        while True:
            seen = Pointer.look(self.place)
            note = seen.stage
            if note is None or note["folder"] != self.unique or self._is_seen(seen.value):
                return None
            if (after := given_up(seen, self.folder)) is None:
                show_stream(self.folder)
            elif seen.swap(after):
                return note

    def _change(self, make: Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]) -> None:
        seen = Pointer.look(self.place)
        note = seen.stage
        if note is None or note["folder"] != self.unique or not seen.swap(make(seen.value, note)):
            raise CommitConflictError(
                f"table {os.path.basename(self.place)!r}: who fills it must show a sign of life each minute; "
                "this process did not, or the table was dropped, and somebody else went on; run this again"
            )


def given_up(seen: Pointer, folder: str) -> Mapping[str, Any] | None:
    """What a name says when its table is not filled on; None: of a stream with a commit the table stays."""
    note = seen.stage or {}
    if note.get("mode") == "streaming" and has_commit(folder):
        return None
    left = {key: value for key, value in seen.value.items() if key != STAGE}
    return left if note.get(BEFORE) is None else {**left, STAGE: note[BEFORE]}


def has_commit(folder: str) -> bool:
    """Whether the managed table that is filled in a folder has a commit."""
    files = value_in(folder).get("files")
    return files is not None and staged.has_commit(paths.resolve(folder, files))


def has_rows(folder: str) -> bool:
    """Whether a table whose query has made progress may be seen: what lies elsewhere has no commits."""
    return "connector" in value_in(folder) or has_commit(folder)


def clean_left(place: str, folder: str, note: Mapping[str, Any], clean_up: CleanUp) -> None:
    """Delete what a statement that gave up has left, what it made outside too."""
    if note["made"]:
        clean_up(folder, tuple(note["made"]))
    sweep(place)
