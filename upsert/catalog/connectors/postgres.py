"""Tables of PostgreSQL in a catalog: sinks of changes and of batches, and rows that are looked up by key."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from upsert.catalog.connectors.base import KeyedConnector, has_rows_already
from upsert.catalog.connectors.lookups import lookup_rows
from upsert.errors import ConfigurationError
from upsert.materializer.keyed_sink import KeyedSink
from upsert.postgres import sink
from upsert.postgres.table import CONNECTOR, PostgresTable, check_declared, check_target
from upsert.schema import TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class PostgresConnector(KeyedConnector):
    """A table of PostgreSQL that changes are written into, and that streams look rows up in.

    ``state`` is the folder for the rows of keys that do not tell the rows of a query apart.
    """

    is_looked_up = True
    mirror = None

    table: PostgresTable
    state: str

    @classmethod
    def of(cls, name: str, schema: TableSchema, options: Mapping[str, str], folder: str) -> PostgresConnector:
        """The table that a definition means; ``folder`` is its own."""
        return cls(PostgresTable.of(name, schema, options), os.path.join(folder, "state"))

    def check_target(self, session: Callable[[], SparkSession]) -> None:  # noqa: ARG002
        """Refuse a table or view that the database does not have, or has otherwise."""
        sink.check(self.table, check_declared)

    @property
    def keyed(self) -> KeyedSink:
        """Each micro-batch is one transaction."""
        return sink.sink_of(self.table, self.state)

    def lookup_rows(self, spark: SparkSession, columns: Sequence[str] | None) -> DataFrame:
        """The rows of keys, when a row of a stream needs them."""
        return lookup_rows(spark, self.table, columns)

    def write(self, df: DataFrame) -> None:
        """Upsert the rows of a batch DataFrame, in one transaction."""
        sink.write(df, self.table)

    def check_unused(self, spark: SparkSession) -> None:  # noqa: ARG002
        """Refuse a table that has rows, which a new table would have beside its own."""
        sink.check(self.table, check_target)
        if sink.has_rows(self.table):
            raise has_rows_already(self.table.shown)

    def without_mirror(self) -> ConfigurationError:
        """The table is written, and looked up by key."""
        return ConfigurationError(
            f"table {self.table.name!r}: a table of the connector {CONNECTOR!r} is written, and looked up by "
            "key, … JOIN t FOR SYSTEM_TIME AS OF PROCTIME() ON …; read it whole with 'connector' = 'jdbc', "
            "or follow it with Debezium"
        )
