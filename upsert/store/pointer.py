"""Who has the name of a table in an object store: ``table.json``, the one object that changes at one moment.

Folders cannot be moved there. So a table that a query makes is filled in a folder that nobody knows, and gets
its name by a compare-and-swap of this object, which says one of::

    {"format", "schema", "files", …}            a table; "files" is the folder where its files lie
    {"format", "schema", …, "stage": {…}}       a table that a query fills on, or whose successor one fills
    {"format", "stage": {…}}                    a name that a query has taken, and no table yet
    {"format"}                                  a name that was taken, and is free

``stage`` has the name of the folder that is filled, ``folder``, and what the ``Entry`` of its catalog
says. A folder that is named by a uuid is used once, and only from the time on when this object names it. So
what it does not name any more is waste.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from upsert.errors import CorruptTableError, TableNotFoundError
from upsert.log.log_options import file_mode
from upsert.store import paths
from upsert.store.checked_json import FORMAT_VERSION, content_of, parse_versioned
from upsert.store.publication import put_if_absent
from upsert.store.storage import storage_of
from upsert.store.storage.base import Versioned
from upsert.store.storage.door import swapping

STAGE: Final = "stage"
_TEXTS: Final = frozenset({"folder", "owner", "mode", "checkpoint"})
_OF_NAMES: Final = frozenset({"format", STAGE})
"""What the object says of a name that no table has."""

FREE: Final = json.dumps({"format": FORMAT_VERSION}).encode()
"""The content of the object when no table has the name, where it cannot be deleted."""


@dataclass(frozen=True)
class Pointer:
    """What ``table.json`` says of the name of a folder in an object store, as somebody has seen it.

    Attributes:
        folder: the name.
        value: what it says; {} if there is no such object.
        seen: the object; None if there is none.
    """

    folder: str
    value: Mapping[str, Any]
    seen: Versioned | None

    @classmethod
    def look(cls, folder: str) -> Self:
        """As it is now.

        Raises:
            ConfigurationError: the place has no compare-and-swap.
            CorruptTableError: the object is damaged.
        """
        path = os.path.join(folder, paths.TABLE_FILE)
        seen = swapping(path).versioned(path)
        return cls(folder, {} if seen is None else _parsed(seen.content, path), seen)

    @property
    def is_table(self) -> bool:
        """Whether there is a table that everybody sees."""
        return has_table(self.value)

    @property
    def stage(self) -> Mapping[str, Any] | None:
        """What a query fills under this name."""
        return self.value.get(STAGE)

    def swap(self, value: Mapping[str, Any]) -> bool:
        """Say something else; False if another has done so since this was seen, then nothing has changed.

        Raises:
            UnknownOutcomeError: it may have been swapped, or may be soon.
        """
        path = os.path.join(self.folder, paths.TABLE_FILE)
        content = _content(value)
        if self.seen is None:
            storage_of(path).prepare(self.folder)
            return put_if_absent(path, content, _mode(value))
        return swapping(path).swap(path, content, self.seen, _mode(value))


def value_in(folder: str) -> dict[str, Any]:
    """What ``table.json`` says, in any place; {} if there is none.

    Raises:
        CorruptTableError: it is damaged.
    """
    path = os.path.join(folder, paths.TABLE_FILE)
    try:
        content = storage_of(path).read(path)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return _parsed(content, path)


def _parsed(content: bytes, path: str) -> dict[str, Any]:
    value = parse_versioned(content, path, paths.TABLE_FILE)
    note, texts = value.get(STAGE), (value.get("files", ""), value.get("uuid", ""))
    is_note = note is None or (isinstance(note, dict) and note.keys() >= _TEXTS)
    if not is_note or not all(isinstance(text, str) for text in (*texts, *_texts(note))):
        raise CorruptTableError(f"{path}: what a query fills cannot be read, got {note!r}; restore the file")
    if note is not None and not paths.is_unique(note["folder"]):
        raise CorruptTableError(
            f"{path}: a folder must be named by a uuid, got {note['folder']!r}; restore the file"
        )
    return value


def _texts(note: Mapping[str, Any] | None) -> tuple[object, ...]:
    if note is None:
        return ()
    return (*(note[name] for name in _TEXTS), *(note["made"] if isinstance(note.get("made"), list) else [0]))


def has_table(value: Mapping[str, Any]) -> bool:
    """Whether the content of a ``table.json`` is that of a table; of a local folder it always is."""
    return not value.keys() <= _OF_NAMES


def is_free(value: Mapping[str, Any]) -> bool:
    """Whether the content of a ``table.json``, {} if there is none, leaves the name to whoever comes."""
    return not has_table(value) and STAGE not in value


def table_in(folder: str) -> dict[str, Any]:
    """What ``table.json`` says of the table in a folder.

    Raises:
        TableNotFoundError: there is none, or nobody sees it yet.
        CorruptTableError: it is damaged.
    """
    value = value_in(folder)
    if has_table(value):
        return value
    if STAGE in value:
        raise TableNotFoundError(
            f"no table lies at {folder!r}, only what CREATE TABLE AS SELECT has begun there; wait for its end"
        )
    raise TableNotFoundError(f"no table lies at {folder!r}; create it, or correct its name or path")


def named_folders(value: Mapping[str, Any]) -> frozenset[str]:
    """The folders beside a ``table.json`` that belong to its table, or to what a query fills."""
    files, stage = value.get("files"), value.get(STAGE)
    # the state of a table with a connector is in a folder that is named by the table's uuid
    found = (value.get("uuid"), files and files.partition("/")[0], stage and stage["folder"])
    return frozenset(name for name in found if name)


def publish(folder: str, value: Mapping[str, Any]) -> bool:
    """Make a folder a table by its ``table.json``; False if it is one, or a query has taken its name.

    Raises:
        UnknownOutcomeError: it may have been published.
    """
    path = os.path.join(folder, paths.TABLE_FILE)
    if put_if_absent(path, _content(value), _mode(value)):
        return True
    if storage_of(path).is_local or not is_free(value_in(folder)):
        return False
    seen = Pointer.look(folder)
    return is_free(seen.value) and seen.swap(value)


def _content(value: Mapping[str, Any]) -> bytes:
    # a name that is free has no checksum: an older release would take it for a table
    return FREE if value.keys() <= {"format"} else content_of(value, paths.TABLE_FILE)


def _mode(value: Mapping[str, Any]) -> int:
    """Permissions where files have some; options of a connector are its own, so any may be a password."""
    return 0o600 if "connector" in value else file_mode(value.get("options", ()))


def definition_of(folder: str) -> dict[str, Any]:
    """What ``table.json`` says of a table that was filled in a folder, when it has its name.

    Raises:
        TableNotFoundError: somebody has taken it away.
    """
    value = value_in(folder)
    if not value:
        raise TableNotFoundError(f"no table lies at {folder!r}; it was taken away while it was filled")
    if (files := value.get("files")) is not None:
        unique, name = folder.split("/")[-2:]
        value["files"] = f"{unique}/{name}/{files}"
    return value


def show_stream(folder: str) -> None:
    """Let everybody see a table that a stream fills and has committed to; nothing for any other folder.

    After a crash between the commit and this it is done when the micro-batch is repeated, or by whoever
    wants the name.

    Raises:
        TableNotFoundError: the name was taken from it.
        UnknownOutcomeError: nobody knows whether it is seen.
    """
    if (place := paths.filled_for(folder)) is None:
        return
    outer, unique = place
    while True:
        seen = Pointer.look(outer)
        note = seen.stage
        if note is None or note["folder"] != unique:
            check_named(folder)
            return
        if seen.is_table or note["mode"] != "streaming":
            return
        if seen.swap({**definition_of(folder), STAGE: note}):
            return


def check_named(folder: str) -> None:
    """Make sure that what is filled in a folder has the name still for which it is filled.

    Raises:
        TableNotFoundError: the name was taken from it. Of any other folder nothing is asked.
    """
    if (place := paths.filled_for(folder)) is None:
        return
    outer, unique = place
    if unique not in named_folders(value_in(outer)):
        raise TableNotFoundError(
            f"no table lies at {outer!r} that was filled in {unique!r}; it was dropped or replaced, or its "
            "process stalled for a minute and another one went on: run the statement again"
        )
