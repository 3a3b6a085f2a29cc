"""Tables of a catalog that lie elsewhere: which connector serves them, behind one protocol.

Connectors are imported when a table needs one: every worker of a query imports the catalog.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, Protocol

from upsert.catalog.persistence import Definition
from upsert.errors import ConfigurationError, SchemaError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from upsert.kafka.table import KafkaTable

_STATE_OPTION: Final = "state.path"
_STATE_FOLDER: Final = "state"


class ConnectorTable(Protocol):
    """What the catalog asks of a table with a connector."""

    @property
    def sink_key(self) -> tuple[str, ...]:
        """The columns by which a written row replaces an older one; empty if rows are only added."""

    def read_changes(self, spark: SparkSession, **options: object) -> DataFrame:
        """The table as a streaming DataFrame."""

    def read(self, spark: SparkSession) -> DataFrame:
        """The table's rows as a batch DataFrame."""

    def write_changes(self, df: DataFrame) -> DataStreamWriter:
        """A writer of a streaming DataFrame's changes."""

    def write_upsert(self, df: DataFrame) -> DataStreamWriter:
        """A writer of a streaming DataFrame in update mode."""


@dataclass(frozen=True)
class KafkaConnector:
    """A Kafka topic as a table of the catalog."""

    table: KafkaTable

    @property
    def sink_key(self) -> tuple[str, ...]:
        """The primary key of an upsert table, and the column that names the topic of a row.

        A row that goes to another topic than before does not replace the older one. Tables of the other
        connector keep every record.
        """
        if not self.table.is_upsert:
            return ()
        written = self.table.metadata(writing=True)
        return (*self.table.primary_key, *(c.column.name for c in written if c.key.key == "topic"))

    def read_changes(self, spark: SparkSession, **options: object) -> DataFrame:
        """The topic as a streaming DataFrame; ``options`` replace those of the table."""
        from upsert.kafka import frames

        return frames.read_changes(spark, self.table, **options)

    def read(self, spark: SparkSession) -> DataFrame:
        """The rows that the topic holds now."""
        from upsert.kafka import frames

        return frames.read(spark, self.table)

    def write_changes(self, df: DataFrame) -> DataStreamWriter:
        """A writer of changes, or of upserts, into the topic."""
        from upsert.kafka import frames

        return frames.write_changes(df, self.table)

    def write_upsert(self, df: DataFrame) -> DataStreamWriter:
        """A writer in update mode; only upsert topics have one."""
        from upsert.kafka import frames

        if not self.table.is_upsert:
            raise ConfigurationError(
                f"{self.table.name}: write_upsert needs the connector 'upsert-kafka', got "
                f"{self.table.connector!r}; use write_changes"
            )
        return frames.write_upsert(df, self.table)


def connect(name: str, definition: Definition, folder: str) -> ConnectorTable:
    """The table that a definition means, after every check that needs no look at the outside.

    Args:
        name: of the table, for messages.
        definition: its connector, schema and options.
        folder: the table's own folder; state lies in it unless ``state.path`` says otherwise.

    Raises:
        ConfigurationError: the connector is unknown, or an option is wrong.
        SchemaError: the columns do not fit the connector.
    """
    from upsert.kafka.options import CONNECTOR_ALIASES, OPTIONS
    from upsert.kafka.table import KafkaTable

    connector = definition.connector.lower()
    known = (*OPTIONS, *CONNECTOR_ALIASES)
    if connector not in known:
        close = get_close_matches(connector, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"connectors are {', '.join(known)}"
        raise ConfigurationError(f"table {name!r}: unknown connector {definition.connector!r}; {hint}")
    _refuse_clauses_of_managed_tables(name, connector, definition)
    options = dict(definition.options)
    if _STATE_OPTION not in map(str.lower, options):
        options[_STATE_OPTION] = os.path.join(folder, _STATE_FOLDER)
    return KafkaConnector(KafkaTable.of(connector, definition.schema, options, name=name))


def _refuse_clauses_of_managed_tables(name: str, connector: str, definition: Definition) -> None:
    clauses = {"INDEX": definition.schema.indexes, "PARTITIONED BY": definition.schema.partitioned_by}
    for clause, given in clauses.items():
        if given:
            raise SchemaError(
                f"table {name!r}: the connector {connector!r} has no {clause}; leave it out, or leave out "
                "'connector' for a managed table"
            )
