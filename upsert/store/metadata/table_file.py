"""The files that say what a table is: ``table.json``, which makes a folder one, and later definitions.

``table.json`` has the identity and version 0 of the definition, and is written once. A later version gets a
file of its own, put-if-absent; it holds from the first snapshot on that names it, so a file that no snapshot
names is waste of a process that died, and a definition changes at one point in the order of commits.

In an object store, where folders cannot be moved, ``table.json`` is a pointer: the one object that changes at
one moment. A table that a query makes is filled in a folder of its own, and gets its name by a
compare-and-swap of this object, which says one of::

    {"format", "schema", "files", …}            a table; "files" is the folder where its files lie
    {"format", "schema", …, "stage": {…}}       a table that a query fills on, or whose successor one fills
    {"format", "stage": {…}}                    a name that a query has taken, and no table yet
    {"format"}                                  a name that was taken, and is free

``stage`` has the name of the folder that is filled, ``folder``, and what
``upsert.catalog.create_as.stages.Entry`` says. A folder that is named by a uuid is used once, and only from
the time on when this object names it. So what it does not name any more is waste.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Self
from uuid import uuid4

from cachetools import LRUCache

from upsert.errors import ConfigurationError, CorruptTableError, TableExistsError, TableNotFoundError
from upsert.schema import TableSchema
from upsert.store import paths
from upsert.store.checksums import FORMAT_VERSION, checksum_of_value, content_of, parse_versioned
from upsert.store.kept import Kept
from upsert.store.log_options import file_mode
from upsert.store.metadata.definition import Definition, format_of
from upsert.store.metadata.looks import seen_once
from upsert.store.storage import put_if_absent, storage_of, swapping
from upsert.store.storage.base import Versioned
from upsert.store.storage.local import is_temporary

STAGE: Final = "stage"
_TEXTS: Final = frozenset({"folder", "owner", "mode", "checkpoint"})

_MAX_FILES: Final = 1_000
"""Tables are opened many times in a micro-batch: what so many files say is read once, until it changes."""

_OF_NAMES: Final = frozenset({"format", STAGE})
"""What the object says of a name that no table has."""

_NOTES: Final = frozenset(
    {
        paths.ENTRY_FILE,
        paths.LIFETIME_LOCK,
        paths.LOG_LOCK,
        paths.COMPACTION_LOCK,
        paths.COMMIT_LOCK,
        paths.COMPACTION_ERROR,
    }
)
"""Files that are made where they are missing, and by which no table is read."""

_OF_SYSTEMS: Final = re.compile(r"\.DS_Store|\._.*|\.nfs[0-9A-Fa-f]+|lost\+found", re.DOTALL)
"""Names of files that operating systems make: where a folder is looked at, and of a deleted file that is
still open; and of a folder that only root can read. As a folder with files that can be read it is refused."""

FREE: Final = json.dumps({"format": FORMAT_VERSION}).encode()
"""The content of the object when no table has the name, where it cannot be deleted."""


@dataclass(frozen=True)
class Pointer:
    """What ``table.json`` says of the name of a folder in an object store, as this process has seen it.

    ``value`` is {} and ``seen`` None if there is no such object.
    """

    folder: str
    value: Mapping[str, Any]
    seen: Versioned | None

    @classmethod
    def look(cls, folder: str) -> Self:
        """As it is now."""
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
    """What ``table.json`` says, in any storage; {} if there is none."""
    content = _content_in(folder)
    return {} if content is None else _parsed(content, os.path.join(folder, paths.TABLE_FILE))


def _content_in(folder: str) -> bytes | None:
    path = os.path.join(folder, paths.TABLE_FILE)
    try:
        return storage_of(path).read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _parsed(content: bytes, path: str) -> dict[str, Any]:
    value = parse_versioned(content, path, paths.TABLE_FILE)
    note, texts = value.get(STAGE), [value.get("files", ""), value.get("uuid", "")]
    is_note = note is None or (isinstance(note, dict) and note.keys() >= _TEXTS)
    if is_note and note is not None:
        texts += [note[name] for name in _TEXTS]
        texts += note["made"] if isinstance(note.get("made"), list) else [None]
    if not is_note or not all(isinstance(text, str) for text in texts):
        raise CorruptTableError(
            f"{path}: its entry of the query that fills the table cannot be read, got {note!r}; restore the "
            "file"
        )
    if note is not None and not paths.is_unique(note["folder"]):
        raise CorruptTableError(
            f"{path}: a folder must be named by a uuid, got {note['folder']!r}; restore the file"
        )
    return value


def has_table(value: Mapping[str, Any]) -> bool:
    """Whether the content of a ``table.json`` is that of a table; of a local folder it always is."""
    return not value.keys() <= _OF_NAMES


def is_free(value: Mapping[str, Any]) -> bool:
    """Whether the content of a ``table.json``, {} if there is none, leaves the name to the next table."""
    return not has_table(value) and STAGE not in value


def table_in(folder: str) -> dict[str, Any]:
    """What ``table.json`` says of the table in a folder."""
    return _checked(value_in(folder), folder)


def seen_in(folder: str) -> dict[str, Any]:
    """``table_in``; within ``looking_once`` what this thread has read a moment ago."""
    return seen_once((folder, paths.TABLE_FILE), partial(table_in, folder))


def _checked(value: dict[str, Any], folder: str) -> dict[str, Any]:
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


def publish_pointer(folder: str, value: Mapping[str, Any], prepared: str) -> bool:
    """Make a folder a table by its ``table.json``; False if it is one, or a query has taken its name.

    The folder ``prepared`` comes first: a reader that sees ``table.json`` may count on it. After an
    ``UnknownOutcomeError`` it may have been published.

    Raises:
        ConfigurationError: the folder cannot be made or written, or has files that are not a table's.
    """
    check_unused(folder)
    try:
        storage_of(folder).prepare(prepared)
        return _published(folder, value)
    except (NotADirectoryError, FileExistsError, PermissionError) as cause:
        if has_table(value_in(folder)):  # in a folder that may only be read
            return False
        raise ConfigurationError(
            f"table path must be a folder that can be written, got {folder!r}: "
            f"{os.strerror(cause.errno or 0)}"
        ) from cause


def check_unused(folder: str) -> None:
    """Refuse a local folder with anything but a table, or what a killed CREATE TABLE or a writer has left.

    What else lies in it would be deleted with the table, and old files of a table would be taken for its own.
    """
    found: list[str] = []
    if storage_of(folder).is_local:
        with suppress(PermissionError):  # who writes into it says what is wrong
            found = files_of_others(folder)
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise ConfigurationError(
            f"table path {folder!r} must be a folder that is empty or not there yet, for DROP TABLE deletes "
            f"all of it, got one with {found[0]!r}{more}; move them away, or choose another name"
        )


def files_of_others(folder: str) -> list[str]:
    """Names in a local folder that is no table, sorted.

    But for what a killed CREATE TABLE, or a writer of a dropped table, has left, and for what operating
    systems put into a folder.
    """
    try:
        names = storage_of(folder).names(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []  # who makes the folder says what is wrong
    if paths.TABLE_FILE in names:
        return []  # and its files, which may be many, are not looked at
    found = sorted(name for name in names if not _is_left(folder, name))
    # it is looked for afterwards: a table may be created meanwhile
    return [] if os.path.exists(os.path.join(folder, paths.TABLE_FILE)) else found


def _is_left(root: str, name: str) -> bool:
    """Whether it is an empty folder or a file that cannot be read without a snapshot, or folders of such."""
    try:
        with os.scandir(os.path.join(root, name)) as entries:
            return all(_is_left(root, f"{name}/{entry.name}") for entry in entries)
    except FileNotFoundError:
        return True
    except OSError:  # it is a file, or a folder that may not be read
        own = name.rpartition("/")[2]
        is_note = name in _NOTES or is_temporary(own) or _OF_SYSTEMS.fullmatch(own) is not None
        return is_note or paths.base_of(name) is not None


def _published(folder: str, value: Mapping[str, Any]) -> bool:
    path = os.path.join(folder, paths.TABLE_FILE)
    if put_if_absent(path, _content(value), _mode(value)):
        return True
    if storage_of(path).is_local or not is_free(value_in(folder)):
        return False
    seen = Pointer.look(folder)
    return is_free(seen.value) and seen.swap(value)


def replace_pointer(folder: str, value: Mapping[str, Any], before: Mapping[str, Any] = {}) -> bool:
    """Let the ``table.json`` of a table whose rows lie elsewhere say something else; False if it was changed.

    In a local folder the caller holds the lock of the tables around it; elsewhere the file must still say
    what was ``before``.
    """
    path = os.path.join(folder, paths.TABLE_FILE)
    if not storage_of(path).is_local:
        seen = Pointer.look(folder)
        is_as_before = all(seen.value.get(name) == said for name, said in before.items())
        return seen.is_table and seen.stage is None and is_as_before and seen.swap(value)
    if not os.path.isfile(path):
        return False
    storage_of(path).replace(path, _content(value), _mode(value))
    return True


def _content(value: Mapping[str, Any]) -> bytes:
    # a name that is free has no checksum: an older release would take it for a table
    return FREE if value.keys() <= {"format"} else content_of(value, paths.TABLE_FILE)


def _mode(value: Mapping[str, Any]) -> int:
    """Permissions where files have some; options of a connector are its own, so any may be a password."""
    return 0o600 if "connector" in value else file_mode(value.get("options", ()))


def definition_of(folder: str) -> dict[str, Any]:
    """What ``table.json`` says of a table that was filled in a folder, when it has its name."""
    value = value_in(folder)
    if not value:
        raise TableNotFoundError(f"no table lies at {folder!r}; it was dropped while it was filled")
    if (files := value.get("files")) is not None:
        unique, name = folder.split("/")[-2:]
        value["files"] = f"{unique}/{name}/{files}"
    return value


def show_stream(folder: str) -> None:
    """Let all readers see a table that a stream fills and has committed to; nothing for any other folder.

    After a crash between the commit and this it is done when the micro-batch is repeated, or by the process
    that wants the name.
    """
    if (filled := paths.filled_for(folder)) is None:
        return
    outer, unique = filled
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
    """Make sure that what is filled in a folder still has the name for which it is filled.

    Of any other folder nothing is asked.
    """
    if (filled := paths.filled_for(folder)) is None:
        return
    outer, unique = filled
    if unique not in named_folders(value_in(outer)):
        raise TableNotFoundError(
            f"no table lies at {outer!r} that was filled in {unique!r}; it was dropped or replaced, or its "
            "process stalled for a minute and another one went on: run the statement again"
        )


@dataclass(frozen=True)
class TableFile:
    """What ``table.json`` in ``folder`` says: the table's identity and version 0 of its definition.

    ``root`` has all other files of the table. In an object store that is a folder of its own in ``folder``,
    for nothing there can be moved away at one moment: who is still at work on a table that was dropped never
    touches the one that was created in its place.
    """

    folder: str
    root: str
    uuid: str
    definition: Definition

    def check_is(self, uuid: str) -> None:
        """Refuse another table in the folder of the one with this uuid."""
        if self.uuid != uuid:
            raise TableNotFoundError(
                f"table {self.folder!r} was replaced by another one: its uuid must be {uuid!r}, got "
                f"{self.uuid!r}; open it again, a stream with a new checkpoint"
            )


_read = Kept[tuple[str, bytes], TableFile](lambda: LRUCache(_MAX_FILES), is_inherited=True)


def create(folder: str, schema: TableSchema, options: Mapping[str, str]) -> TableFile:
    """Make a folder a table. After a crash it is one, or it is not, never half of one."""
    table = new(folder, schema, options)
    if not publish(table):
        raise TableExistsError(
            f"table {folder!r} exists already; choose another path, or create it if_not_exists=True"
        )
    return table


def new(folder: str, schema: TableSchema, options: Mapping[str, str]) -> TableFile:
    """A table that is not there yet."""
    uuid = uuid4().hex
    value = {"uuid": uuid, "schema": schema.to_json(), "options": dict(options)}
    first = Definition(0, schema, options, owner=_named(folder), checksum=_definition_checksum(value))
    first.layout  # noqa: B018 - refuses what cannot be stored before anything is written
    root = folder if storage_of(folder).is_local else os.path.join(folder, uuid)
    return TableFile(folder, root, uuid, first)


def publish(table: TableFile) -> bool:
    """Make a table's folder one; False if it was one already."""
    return publish_pointer(table.folder, to_json(table), os.path.join(table.root, paths.SNAPSHOT_FOLDER))


def to_json(table: TableFile) -> dict[str, Any]:
    """What ``table.json`` says, but for its format."""
    inside = os.path.relpath(table.root, table.folder)
    return {
        **format_of(table.definition),
        "uuid": table.uuid,
        **({} if inside == "." else {"files": inside}),
        "schema": table.definition.schema.to_json(),
        "options": dict(table.definition.given),
    }


def looked(folder: str) -> TableFile:
    """``read``; within ``looking_once`` what this thread has read a moment ago."""
    return seen_once(folder, partial(read, folder))


def read(folder: str) -> TableFile:
    """The table in a folder; a ``ConfigurationError`` if it has a connector, and so lies elsewhere."""
    content = _content_in(folder)
    if content is None:
        return _table_of(table_in(folder), folder)  # which says that there is none
    if (known := _read.get((folder, content))) is not None:
        return known
    found = _table_of(_checked(_parsed(content, os.path.join(folder, paths.TABLE_FILE)), folder), folder)
    _read.put((folder, content), found)
    return found


def _table_of(value: dict[str, Any], folder: str) -> TableFile:
    path = os.path.join(folder, paths.TABLE_FILE)
    if "connector" in value:
        raise ConfigurationError(
            f"{_named(folder)} must be a managed table, got one of the connector "
            f"{value['connector']!r}; use read_changes, read and write_changes of its catalog"
        )
    try:
        schema, options = TableSchema.from_json(value["schema"]), value["options"]
        first = Definition(0, schema, options, owner=_named(folder), checksum=_definition_checksum(value))
        first.layout  # noqa: B018 - a damaged option is found now
        inside = value.get("files")
        root = folder if inside is None else paths.resolve(folder, inside)
        return TableFile(folder, root, str(value["uuid"]), first)
    except (KeyError, TypeError, ValueError, AttributeError) as cause:
        raise CorruptTableError(f"{path}: the table's file cannot be read, {cause!r}; restore it") from cause


def publish_definition(root: str, uuid: str, definition: Definition) -> Definition:
    """Write a definition under the next free version from its own on; the definition with that version.

    It holds once a snapshot names it. After a crash there may be a file that none names; it is harmless.
    """
    while True:
        path = os.path.join(root, paths.definition_file(definition.version))
        storage_of(root).prepare(os.path.dirname(path))
        if put_if_absent(path, definition.content(uuid), file_mode(definition.given)):
            return definition
        definition = replace(definition, version=definition.version + 1)


def read_definition(root: str, uuid: str, version: int) -> Definition:
    """A version of the table's definition, from 1 on."""
    path = os.path.join(root, paths.definition_file(version))
    try:
        content = storage_of(path).read(path)
    except FileNotFoundError as cause:
        raise CorruptTableError(f"definition {path!r} is missing; restore it from a copy") from cause
    return Definition.from_json(content, path, uuid, version, f"table {paths.name_of(root)!r}")


def _definition_checksum(value: Mapping[str, Any]) -> int:
    """The checksum of the first definition; where the files lie may change with the table's name."""
    return checksum_of_value({name: value[name] for name in ("uuid", "schema", "options")})


def _named(folder: str) -> str:
    return f"table {os.path.basename(folder)!r}"
