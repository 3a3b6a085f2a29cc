"""The file that makes a folder a table: its identity, schema and options, written once."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import uuid4

from upsert.errors import ConfigurationError, CorruptTableError, TableExistsError, TableNotFoundError
from upsert.schema import TableSchema
from upsert.store import paths
from upsert.store.layout import Layout
from upsert.store.publication import put_if_absent
from upsert.store.snapshot_info import FORMAT_VERSION, parse_versioned
from upsert.store.table_options import TableOptions


@dataclass(frozen=True)
class TableFile:
    """What ``table.json`` says."""

    uuid: str
    schema: TableSchema
    options: TableOptions

    @property
    def layout(self) -> Layout:
        """The physical form that schema and options mean."""
        return Layout.of(self.schema, self.options.bucket, self.options.bucket_key)


def create(root: str, schema: TableSchema, options: Mapping[str, str]) -> TableFile:
    """Make the folder ``root`` a table. After a crash it is one, or it is not, never half of one.

    Raises:
        ConfigurationError: an option is wrong, or the file system has no hard links.
        SchemaError: the schema uses a name that the files need.
        TableExistsError: there is one already.
    """
    parsed = TableOptions.parse(options, schema, owner=f"table {os.path.basename(root)!r}")
    table = TableFile(uuid4().hex, schema, parsed)
    table.layout  # noqa: B018 - refuses what cannot be stored before anything is written
    value = {
        "format": FORMAT_VERSION,
        "uuid": table.uuid,
        "schema": schema.to_json(),
        "options": dict(options),
    }
    try:
        # the folder of snapshots comes first: whoever sees table.json may count on it
        paths.make_parent(os.path.join(root, paths.SNAPSHOT_FOLDER, "-"))
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
        with open(path, "rb") as file:
            content = file.read()
    except (FileNotFoundError, NotADirectoryError) as cause:
        raise TableNotFoundError(f"no table lies at {root!r}; create it, or correct the path") from cause
    value = parse_versioned(content, path)
    if "connector" in value:
        raise ConfigurationError(
            f"table {os.path.basename(root)!r} must be a managed table, got one of the connector "
            f"{value['connector']!r}; use read_changes, read and write_changes of its catalog"
        )
    try:
        schema = TableSchema.from_json(value["schema"])
        return TableFile(str(value["uuid"]), schema, TableOptions.parse(value["options"], schema, owner=path))
    except (KeyError, TypeError, AttributeError, ConfigurationError) as cause:
        raise CorruptTableError(f"{path}: the table's file cannot be read, {cause!r}; restore it") from cause
