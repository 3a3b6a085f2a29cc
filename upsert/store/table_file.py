"""The files that say what a table is: ``table.json``, which makes a folder one, and later definitions.

``table.json`` has the identity and version 0 of the definition, and is written once. A later version gets a
file of its own, put-if-absent; it holds from the first snapshot on that names it, so a file that no snapshot
names is waste of a process that died, and a definition changes at one place in the order of commits.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from uuid import uuid4

from upsert.errors import ConfigurationError, CorruptTableError, TableExistsError, TableNotFoundError
from upsert.schema import TableSchema
from upsert.store import paths
from upsert.store.definition import Definition
from upsert.store.publication import put_if_absent
from upsert.store.snapshot_info import FORMAT_VERSION, parse_versioned
from upsert.store.storage import storage_of


@dataclass(frozen=True)
class TableFile:
    """What ``table.json`` says: the table's identity and the first version of its definition."""

    uuid: str
    definition: Definition


def create(root: str, schema: TableSchema, options: Mapping[str, str]) -> TableFile:
    """Make the folder ``root`` a table. After a crash it is one, or it is not, never half of one.

    Raises:
        ConfigurationError: an option is wrong, or the file system has no hard links.
        SchemaError: the schema uses a name that the files need.
        TableExistsError: there is one already.
    """
    first = Definition(0, schema, options, owner=_named(root))
    first.layout  # noqa: B018 - refuses what cannot be stored before anything is written
    table = TableFile(uuid4().hex, first)
    value = {
        "format": FORMAT_VERSION,
        "uuid": table.uuid,
        "schema": schema.to_json(),
        "options": dict(options),
    }
    try:
        # the folder of snapshots comes first: whoever sees table.json may count on it
        storage_of(root).prepare(os.path.join(root, paths.SNAPSHOT_FOLDER))
        if not put_if_absent(os.path.join(root, paths.TABLE_FILE), json.dumps(value, indent=1).encode()):
            raise TableExistsError(
                f"table {root!r} exists already; choose another path, or create it if_not_exists=True"
            )
    except (NotADirectoryError, FileExistsError, PermissionError) as cause:
        raise ConfigurationError(
            f"table path must be a folder that can be written, got {root!r}: {cause.strerror}"
        ) from cause
    return table


def read(root: str) -> TableFile:
    """The table in the folder ``root``.

    Raises:
        TableNotFoundError: there is none.
        ConfigurationError: the table has a connector; it lies elsewhere.
        CorruptTableError: its file is damaged, or of another format version.
    """
    path = os.path.join(root, paths.TABLE_FILE)
    try:
        content = storage_of(path).read(path)
    except (FileNotFoundError, NotADirectoryError) as cause:
        raise TableNotFoundError(f"no table lies at {root!r}; create it, or correct the path") from cause
    value = parse_versioned(content, path)
    if "connector" in value:
        raise ConfigurationError(
            f"table {os.path.basename(root)!r} must be a managed table, got one of the connector "
            f"{value['connector']!r}; use read_changes, read and write_changes of its catalog"
        )
    try:
        first = Definition(0, TableSchema.from_json(value["schema"]), value["options"], owner=_named(root))
        first.layout  # noqa: B018 - a damaged option is found now
        return TableFile(str(value["uuid"]), first)
    except (KeyError, TypeError, ValueError, AttributeError) as cause:
        raise CorruptTableError(f"{path}: the table's file cannot be read, {cause!r}; restore it") from cause


def publish_definition(root: str, uuid: str, definition: Definition) -> Definition:
    """Write a definition under the next free version from its own on; the definition with that version.

    It holds once a snapshot names it. After a crash there may be a file that none names; it is harmless.
    """
    while True:
        path = os.path.join(root, paths.definition_file(definition.version))
        storage_of(root).prepare(os.path.dirname(path))
        if put_if_absent(path, definition.to_json(uuid)):
            return definition
        definition = replace(definition, version=definition.version + 1)


def read_definition(root: str, uuid: str, version: int) -> Definition:
    """A version of the table's definition.

    Raises:
        CorruptTableError: its file is missing or damaged.
    """
    if version == 0:
        return read(root).definition
    path = os.path.join(root, paths.definition_file(version))
    try:
        content = storage_of(path).read(path)
    except FileNotFoundError as cause:
        raise CorruptTableError(f"definition {path!r} is missing; restore it from a copy") from cause
    return Definition.from_json(content, path, uuid, version, _named(root))


def _named(root: str) -> str:
    return f"table {os.path.basename(root)!r}"
