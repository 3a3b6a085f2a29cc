"""The definition file of a table that lies elsewhere: its connector, schema and options.

It is the ``table.json`` that managed tables have too. One name for both, published put-if-absent, lets
exactly one of two concurrent CREATE TABLEs win, of whatever kind they are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import uuid4

from upsert.codec import Jsonable
from upsert.errors import ConfigurationError, CorruptTableError, TableExistsError
from upsert.schema import TableSchema
from upsert.store.metadata import table_file
from upsert.store.paths import TABLE_FILE
from upsert.store.storage import storage_of


@dataclass(frozen=True)
class Definition(Jsonable):
    """What CREATE TABLE said about a table with a connector.

    Attributes:
        connector: name of the connector, as it was written.
        schema: columns, METADATA columns at their places, and the primary key.
        options: as they were written, without ``connector``; may hold secrets, so they are not in the repr.
        uuid: distinguishes the table from any other one of its name.
    """

    connector: str
    schema: TableSchema
    options: Mapping[str, str] = field(repr=False)
    uuid: str = field(default_factory=lambda: uuid4().hex)


def create(folder: str, definition: Definition) -> None:
    """Make a folder a table with a connector. After a crash it is one or it is none.

    Raises:
        TableExistsError: there is a table of either kind already.
        ConfigurationError: the folder cannot be made or written.
    """
    value = {"uuid": definition.uuid, **definition.to_json()}
    try:
        storage_of(folder).prepare(folder)
        is_new = table_file.publish_pointer(folder, value)
    except (NotADirectoryError, FileExistsError, PermissionError) as cause:
        raise ConfigurationError(
            f"table path must be a folder that can be written, got {folder!r}: "
            f"{os.strerror(cause.errno or 0)}"
        ) from cause
    if not is_new:
        raise TableExistsError(f"table {folder!r} exists already; choose another name, or IF NOT EXISTS")


def state_folder(folder: str, definition: Definition) -> str:
    """Where what belongs to a table with a connector lies: its state, its mirror.

    In an object store that is a folder of its own, which no later table of the name will use, for no folder
    there can be deleted atomically.
    """
    return folder if storage_of(folder).is_local else os.path.join(folder, definition.uuid)


def load(folder: str) -> Definition | None:
    """The definition in a folder, None for a managed table.

    Raises:
        TableNotFoundError: there is no table.
        CorruptTableError: its file is damaged, or of another format version.
    """
    value = table_file.table_in(folder)
    if "connector" not in value:
        return None
    try:
        return Definition.from_json(value)
    except (KeyError, TypeError, CorruptTableError) as cause:
        raise CorruptTableError(
            f"{os.path.join(folder, TABLE_FILE)}: the definition of the table cannot be read, {cause!r}; "
            "restore the file, or DROP TABLE and create it again"
        ) from cause
