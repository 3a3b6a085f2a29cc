"""Mirrors: managed tables that hold what upsert topics hold, so that their rows can be looked up.

A topic is a log and knows no row by its key. Its mirror lies in the folder of the table that declares the
topic, with that table's indexes, and is kept by one streaming query, exactly once: a micro-batch that is
repeated commits nothing the second time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from upsert.catalog import persistence
from upsert.catalog.bucket_warehouse import refuse_object_store
from upsert.errors import SchemaError, TableNotFoundError
from upsert.schema import Column, TableSchema
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
        path: the folder of the managed table.
        schema: its columns, which are the topic's, and its indexes.
        options: its options.
    """

    path: str
    schema: TableSchema
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, folder: str, schema: TableSchema, options: Mapping[str, str]) -> Mirror:
        """The mirror of the table ``name`` in ``folder``.

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
        return cls(os.path.join(folder, _FOLDER, name), own, dict(options))

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
        with persistence.ddl_lock(os.path.dirname(self._owner)):
            persistence.load(self._owner)
            return Table.create(self.path, self.schema, self.options, if_not_exists=True)

    @property
    def _owner(self) -> str:
        """The folder of the table that declares the topic."""
        return os.path.dirname(os.path.dirname(self.path))

    def running(self, spark: SparkSession) -> StreamingQuery | None:
        """The query of this session that keeps the mirror, if it runs."""
        return next((query for query in spark.streams.active if query.name == self._query_name), None)

    def start(self, table: Table, changes: DataFrame, trigger: Mapping[str, Any]) -> StreamingQuery:
        """Start to keep the mirror, or go on where an earlier query has stopped."""
        from upsert.managed import frames

        refuse_object_store(self._owner, os.path.basename(self.path), "a mirror")
        # the folder is the table's own: a table that is dropped and made again starts from the beginning
        checkpoint = os.path.join(os.path.dirname(self.path), f"checkpoint-{table.uuid}")
        writer = frames.write_changes(changes, self.path).option("checkpointLocation", checkpoint)
        writer = writer.trigger(**trigger) if trigger else writer
        return writer.queryName(self._query_name).start()

    @property
    def _query_name(self) -> str:
        return f"mirror of {self._owner}"


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
