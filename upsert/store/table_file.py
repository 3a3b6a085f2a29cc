"""The files that say what a table is: ``table.json``, which makes a folder one, and later definitions.

``table.json`` has the identity and version 0 of the definition, and is written once. A later version gets a
file of its own, put-if-absent; it holds from the first snapshot on that names it, so a file that no snapshot
names is waste of a process that died, and a definition changes at one place in the order of commits.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from upsert.errors import ConfigurationError, CorruptTableError, TableExistsError
from upsert.log.log_options import file_mode
from upsert.schema import TableSchema
from upsert.store import paths, pointer
from upsert.store.checked_json import checksum_of_value
from upsert.store.definition import Definition
from upsert.store.publication import put_if_absent
from upsert.store.storage import storage_of


@dataclass(frozen=True)
class TableFile:
    """What ``table.json`` says: the table's identity and the first version of its definition.

    Attributes:
        folder: where it lies.
        root: where all other files of the table lie. In an object store that is a folder of its own in
            ``folder``, for nothing there can be moved away at one moment: who is still at work on a table
            that was dropped never touches the one that was created in its place.
        uuid: tells the table from any other one.
        definition: version 0.
    """

    folder: str
    root: str
    uuid: str
    definition: Definition


def create(folder: str, schema: TableSchema, options: Mapping[str, str]) -> TableFile:
    """Make a folder a table. After a crash it is one, or it is not, never half of one.

    Raises:
        ConfigurationError: an option is wrong, or the file system has no hard links.
        SchemaError: the schema uses a name that the files need.
        TableExistsError: there is one already.
    """
    table = new(folder, schema, options)
    if not publish(table):
        raise TableExistsError(
            f"table {folder!r} exists already; choose another path, or create it if_not_exists=True"
        )
    return table


def new(folder: str, schema: TableSchema, options: Mapping[str, str]) -> TableFile:
    """A table that is not there yet.

    Raises:
        ConfigurationError: an option is wrong.
        SchemaError: the schema uses a name that the files need.
    """
    uuid = uuid4().hex
    value = {"uuid": uuid, "schema": schema.to_json(), "options": dict(options)}
    first = Definition(0, schema, options, owner=_named(folder), checksum=_checksum(value))
    first.layout  # noqa: B018 - refuses what cannot be stored before anything is written
    root = folder if storage_of(folder).is_local else os.path.join(folder, uuid)
    return TableFile(folder, root, uuid, first)


def publish(table: TableFile) -> bool:
    """Make a table's folder one; False if it was one already.

    Raises:
        ConfigurationError: the folder cannot be made or written.
    """
    root, folder, storage = table.root, table.folder, storage_of(table.folder)
    try:
        # the folder of snapshots comes first: whoever sees table.json may count on it
        storage.prepare(os.path.join(root, paths.SNAPSHOT_FOLDER))
        return pointer.publish(folder, to_json(table))
    except (NotADirectoryError, FileExistsError, PermissionError) as cause:
        raise ConfigurationError(
            f"table path must be a folder that can be written, got {folder!r}: "
            f"{os.strerror(cause.errno or 0)}"
        ) from cause


def to_json(table: TableFile) -> dict[str, Any]:
    """What ``table.json`` says, but for its format."""
    inside = os.path.relpath(table.root, table.folder)
    return {
        "uuid": table.uuid,
        **({} if inside == "." else {"files": inside}),
        "schema": table.definition.schema.to_json(),
        "options": dict(table.definition.given),
    }


def read(folder: str) -> TableFile:
    """The table in a folder.

    Raises:
        TableNotFoundError: there is none, or nobody sees it yet.
        ConfigurationError: the table has a connector; it lies elsewhere.
        CorruptTableError: its file is damaged, or of another format version.
    """
    path = os.path.join(folder, paths.TABLE_FILE)
    value = pointer.table_in(folder)
    if "connector" in value:
        raise ConfigurationError(
            f"{_named(folder)} must be a managed table, got one of the connector "
            f"{value['connector']!r}; use read_changes, read and write_changes of its catalog"
        )
    try:
        schema, options = TableSchema.from_json(value["schema"]), value["options"]
        first = Definition(0, schema, options, owner=_named(folder), checksum=_checksum(value))
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
        if put_if_absent(path, definition.to_json(uuid), file_mode(definition.given)):
            return definition
        definition = replace(definition, version=definition.version + 1)


def read_definition(root: str, uuid: str, version: int) -> Definition:
    """A version of the table's definition, from 1 on.

    Raises:
        CorruptTableError: its file is missing or damaged.
    """
    path = os.path.join(root, paths.definition_file(version))
    try:
        content = storage_of(path).read(path)
    except FileNotFoundError as cause:
        raise CorruptTableError(f"definition {path!r} is missing; restore it from a copy") from cause
    return Definition.from_json(content, path, uuid, version, f"table {paths.name_of(root)!r}")


def _checksum(value: Mapping[str, Any]) -> int:
    """The checksum of the first definition; where the files lie may change with the table's name."""
    return checksum_of_value({name: value[name] for name in ("uuid", "schema", "options")})


def _named(folder: str) -> str:
    return f"table {os.path.basename(folder)!r}"
