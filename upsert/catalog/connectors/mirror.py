"""Mirrors: managed tables that hold what a topic or a table of another system holds, so that joins find rows.

A mirror lies with the state of the table that declares the other one, with that table's indexes, and is kept
by one streaming query, exactly once: a repeated micro-batch commits nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from upsert.catalog import warehouse
from upsert.catalog.namespace import DEFAULT
from upsert.errors import ConfigurationError, SchemaError, TableNotFoundError
from upsert.managed import frames
from upsert.schema import TableSchema
from upsert.spark.query_writer import triggered
from upsert.store.alterations import Alteration, ResetOptions, SetOptions, differences
from upsert.store.metadata import table_file
from upsert.store.paths import TABLE_FILE
from upsert.store.storage import storage_of
from upsert.store.table import Table
from upsert.store.table_options import TableOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PREFIX: Final = "mirror."
"""Options in CREATE TABLE of a table with a mirror that are the mirror's: ``'mirror.bucket' = '4'``."""

_FOLDER: Final = "mirror"


@dataclass(frozen=True)
class Mirror:
    """The mirror that a table with a connector has, or may get: a managed table in the folder ``path``.

    ``owner`` is the folder of the table that declares the other one.
    """

    owner: str
    path: str
    schema: TableSchema
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, name: str, owner: str, folder: str, schema: TableSchema, options: Mapping[str, str]
    ) -> Mirror:
        """The mirror of a table; refuses wrong options, and a UNIQUE INDEX."""
        if unique := next((index for index in schema.indexes if index.unique), None):
            raise SchemaError(
                f"table {name!r}: {unique} must not be UNIQUE, because that is not checked when rows are "
                "written, and the mirror would stop at the first duplicate; leave out UNIQUE"
            )
        # records give each column a value, and a DEFAULT would be refused where rows are there already
        columns = (replace(column.as_data, default=None) for column in schema.columns)
        own = replace(schema, columns=tuple(columns))
        TableOptions.parse(options, own, owner=f"table {name!r}: options '{PREFIX}*'")
        return cls(owner, _path(os.path.join(folder, _FOLDER), name), own, dict(options))

    def kept(
        self,
        spark: SparkSession,
        changes: Callable[[], DataFrame],
        trigger: Mapping[str, Any],
        checkpoints: str | None,
    ) -> StreamingQuery:
        """The query of this session that keeps the mirror; a new one continues where the last one stopped.

        Args:
            spark: the session that runs it.
            changes: gives the stream of changes.
            trigger: of the query, as ``DataStreamWriter.trigger`` takes it.
            checkpoints: folder in which the checkpoint gets a folder; None: beside the mirror.
        """
        name = f"mirror of {self.owner}"
        running = next((query for query in spark.streams.active if query.name == name), None)
        if running is not None:
            return running
        with warehouse.ddl_lock(os.path.dirname(self.owner)):
            table_file.table_in(self.owner)  # it may have been dropped meanwhile
            table = Table.create(self.path, self.schema, self.options, if_not_exists=True)
            self.bring_along()
        if checkpoints is None and not storage_of(self.path).is_local:
            raise ConfigurationError(
                f"table {os.path.basename(self.path)!r}: its mirror lies in an object store, which Spark's "
                "checkpoints may not reach, and needs a folder for them, got none; SET 'checkpoint.location' "
                "= 'folder', or mirror(…, checkpoints='folder')"
            )
        # named by the mirror: a table that is dropped and created again starts from the beginning
        checkpoint = os.path.join(checkpoints or os.path.dirname(self.path), f"checkpoint-{table.uuid}")
        writer = frames.write_changes(changes(), self.path).option("checkpointLocation", checkpoint)
        return triggered(writer, trigger).queryName(name).start()

    def bring_along(self) -> None:
        """Let the managed table, if it was begun, have the columns, indexes and options it should have."""
        if (table := self.table()) is None:
            return
        before = table.definition.given
        changes: list[Alteration] = [*differences(table.schema, self.schema)]
        if new := {key: text for key, text in self.options.items() if before.get(key) != text}:
            changes.append(SetOptions(new))
        if gone := tuple(key for key in before if key not in self.options):
            changes.append(ResetOptions(gone))
        if changes:
            table.alter(*changes)

    def table(self) -> Table | None:
        """The managed table; None if it was not begun."""
        try:
            return Table.open(self.path)
        except TableNotFoundError:
            return None


def _path(folder: str, name: str) -> str:
    """The mirror's folder, which has the name of its table, or an earlier one if that was renamed."""
    # the name has a catalog before it where another one is the present one
    *_, database, last = f"{DEFAULT}.{name}".split(".")
    path = os.path.join(folder, last if database == DEFAULT else f"{database}.{last}")
    if os.path.isdir(path) or not os.path.isdir(folder):  # also in an object store: nothing is renamed there
        return path
    begun = [entry.path for entry in os.scandir(folder) if os.path.exists(os.path.join(entry, TABLE_FILE))]
    return begun[0] if len(begun) == 1 else path


def split_options(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The options of CREATE TABLE that are the connector's, and those of the mirror, without their prefix.

    >>> split_options({"topic": "words", "mirror.bucket": "4"})
    ({'topic': 'words'}, {'bucket': '4'})
    """
    own = {key: value for key, value in options.items() if not key.lower().startswith(PREFIX)}
    of_mirror = {key[len(PREFIX) :]: value for key, value in options.items() if key not in own}
    return own, of_mirror
