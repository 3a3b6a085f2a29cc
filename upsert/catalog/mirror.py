"""Mirrors: managed tables that hold what upsert topics hold, so that their rows can be looked up.

A topic is a log and knows no row by its key. Its mirror lies with the state of the table that declares the
topic, with that table's indexes, and is kept by one streaming query, exactly once: a micro-batch that is
repeated commits nothing the second time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from upsert.catalog import persistence
from upsert.errors import ConfigurationError, SchemaError, TableNotFoundError
from upsert.schema import Column, TableSchema
from upsert.store.storage import storage_of
from upsert.store.table import Table
from upsert.store.table_options import TableOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PREFIX: Final = "mirror."
"""Options in CREATE TABLE of an upsert topic that are the mirror's: ``'mirror.bucket' = '4'``."""
_FOLDER: Final = "mirror"


@dataclass(frozen=True)
class Mirror:
    """The mirror that a table with a connector has, or may get.

    Attributes:
        owner: the folder of the table that declares the topic.
        path: the folder of the managed table.
        schema: its columns, which are the topic's, and its indexes.
        options: its options.
    """

    owner: str
    path: str
    schema: TableSchema
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, name: str, owner: str, folder: str, schema: TableSchema, options: Mapping[str, str]
    ) -> Mirror:
        """The mirror of a table.

        Args:
            name: of the table.
            owner: its folder.
            folder: where its state lies.
            schema: its columns and indexes.
            options: those of the mirror.

        Raises:
            ConfigurationError: an option is wrong.
            SchemaError: the table has a UNIQUE INDEX.
        """
        if unique := next((index for index in schema.indexes if index.unique), None):
            raise SchemaError(
                f"table {name!r}: {unique} must not be UNIQUE, for nobody checks that when a topic is "
                "written, and its mirror would stop at the first duplicate; leave out UNIQUE"
            )
        own = replace(schema, columns=tuple(_as_data(column) for column in schema.columns))
        TableOptions.parse(options, own, owner=f"table {name!r}: options '{PREFIX}*'")
        return cls(owner, os.path.join(folder, _FOLDER, name), own, dict(options))

    def table(self) -> Table | None:
        """The managed table; None while there is none."""
        try:
            return Table.open(self.path)
        except TableNotFoundError:
            return None

    def create(self) -> Table:
        """The managed table, made if it is not there.

        Raises:
            TableNotFoundError: the table that declares the topic was dropped meanwhile.
        """
        with persistence.ddl_lock(os.path.dirname(self.owner)):
            persistence.load(self.owner)
            return Table.create(self.path, self.schema, self.options, if_not_exists=True)

    def running(self, spark: SparkSession) -> StreamingQuery | None:
        """The query of this session that keeps the mirror, if it runs."""
        return next((query for query in spark.streams.active if query.name == self._query_name), None)

    def start(
        self, table: Table, changes: DataFrame, trigger: Mapping[str, Any], checkpoints: str | None
    ) -> StreamingQuery:
        """Start to keep the mirror, or go on where an earlier query has stopped.

        Raises:
            ConfigurationError: the mirror lies in an object store, and no folder is given for checkpoints.
        """
        from upsert.managed import frames

        if checkpoints is None and not storage_of(self.path).is_local:
            raise ConfigurationError(
                f"table {os.path.basename(self.path)!r}: its mirror lies in an object store, which Spark's "
                "checkpoints may not reach, and needs a folder for them, got none; SET 'checkpoint.location' "
                "= 'folder', or mirror(…, checkpoints='folder')"
            )
        # named by the mirror: a table that is dropped and made again starts from the beginning
        checkpoint = os.path.join(checkpoints or os.path.dirname(self.path), f"checkpoint-{table.uuid}")
        writer = frames.write_changes(changes, self.path).option("checkpointLocation", checkpoint)
        writer = writer.trigger(**trigger) if trigger else writer
        return writer.queryName(self._query_name).start()

    @property
    def _query_name(self) -> str:
        return f"mirror of {self.owner}"


def split_options(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The options of CREATE TABLE that are the connector's, and those of the mirror, without their prefix.

    >>> split_options({"topic": "words", "mirror.bucket": "4"})
    ({'topic': 'words'}, {'bucket': '4'})
    """
    own = {key: value for key, value in options.items() if not key.lower().startswith(PREFIX)}
    of_mirror = {key[len(PREFIX) :]: value for key, value in options.items() if key not in own}
    return own, of_mirror


def _as_data(column: Column) -> Column:
    """A column as the mirror stores it: metadata of a record is data there."""
    return replace(column, metadata=None, virtual=False)
