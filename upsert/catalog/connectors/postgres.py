"""Tables of PostgreSQL in a catalog: sinks of changes and of batches, and rows that are looked up by key."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from upsert.catalog.connectors.base import Connector
from upsert.catalog.connectors.lookups import lookup_rows
from upsert.errors import ConfigurationError
from upsert.materializer.choice import Sink
from upsert.materializer.keyed_sink import KeyedSink
from upsert.postgres import sink
from upsert.postgres.table import CONNECTOR, PostgresTable, check_declared, check_target
from upsert.schema import TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


@dataclass(frozen=True)
class PostgresConnector(Connector):
    """A table of PostgreSQL that changes are written into, and that streams look rows up in.

    ``state`` is the folder for the rows of keys that do not tell the rows of a query apart.
    """

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
    def sink(self) -> Sink:
        """The table as a sink of changes."""
        return self._keyed.sink

    @property
    def _keyed(self) -> KeyedSink:
        return sink.sink_of(self.table, self.state)

    def read_changes(self, spark: SparkSession, **options: object) -> DataFrame:  # noqa: ARG002
        """Nothing: the database does not tell its changes."""
        raise self.without_mirror()

    def read(self, spark: SparkSession) -> DataFrame:  # noqa: ARG002
        """Nothing: Spark's own connector ``jdbc`` reads such a table."""
        raise self.without_mirror()

    def lookup_rows(self, spark: SparkSession, columns: Sequence[str] | None) -> DataFrame:
        """The rows of keys, when a row of a stream needs them."""
        return lookup_rows(spark, self.table, columns)

    def write_changes(self, df: DataFrame) -> DataStreamWriter:
        """A writer of changes, or of upserts; each micro-batch is one transaction, which counts once."""
        return self._keyed.write_changes(df)

    def write_upsert(self, df: DataFrame) -> DataStreamWriter:
        """A writer in update mode."""
        return self._keyed.write_upsert(df)

    def write(self, df: DataFrame) -> None:
        """Upsert the rows of a batch DataFrame, in one transaction."""
        sink.write(df, self.table)

    def fill(self, df: DataFrame) -> None:
        """Write the rows of CREATE TABLE AS; refuses existing rows."""
        self.check_unused(df.sparkSession)
        self.write(df)

    def check_unused(self, spark: SparkSession) -> None:  # noqa: ARG002
        """Refuse a table that has rows, which a new table would have beside its own."""
        sink.check(self.table, check_target)
        if sink.has_rows(self.table):
            raise ConfigurationError(
                f"{self.table.shown}: CREATE TABLE AS needs an empty table, got one with rows; create the "
                "table without AS and INSERT INTO it"
            )

    def without_mirror(self) -> ConfigurationError:
        """The table is written, and looked up by key."""
        return ConfigurationError(
            f"table {self.table.name!r}: a table of the connector {CONNECTOR!r} is written, and looked up by "
            "key, … JOIN t FOR SYSTEM_TIME AS OF PROCTIME() ON …; read it whole with 'connector' = 'jdbc', "
            "or follow it with Debezium"
        )
