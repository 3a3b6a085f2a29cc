"""Tables of a catalog whose rows lie elsewhere: one protocol, and the connector that a definition names.

Connectors are imported when a table needs one: every worker of a query imports the catalog.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from upsert.catalog import spark_connector
from upsert.catalog.definitions import Definition, state_folder
from upsert.errors import ConfigurationError, SchemaError
from upsert.materializer.choice import Sink
from upsert.options import suggestion

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from upsert.store.table import Table


_STATE_OPTION: Final = "state.path"
_STATE_FOLDER: Final = "state"

_MIRRORED: Final = frozenset({"upsert-kafka"})
"""Connectors whose tables have a mirror, and so may have an INDEX."""


class ConnectorTable(Protocol):
    """A table with a connector, as the catalog uses it."""

    @property
    def sink_key(self) -> tuple[str, ...]:
        """The columns by which a written row replaces an older one; empty if rows are only added."""

    @property
    def sink(self) -> Sink:
        """The table as a sink of changes."""

    @property
    def has_order(self) -> bool:
        """Whether a column says which of several written rows of a key is the newest."""

    def read_changes(self, spark: SparkSession, **options: object) -> DataFrame:
        """The table as a streaming DataFrame."""

    def read(self, spark: SparkSession) -> DataFrame:
        """The table's rows as a batch DataFrame."""

    def write_changes(self, df: DataFrame) -> DataStreamWriter:
        """A writer of a streaming DataFrame's changes."""

    def write_upsert(self, df: DataFrame) -> DataStreamWriter:
        """A writer of a streaming DataFrame in update mode."""

    def write(self, df: DataFrame) -> None:
        """Write all rows of a batch DataFrame."""

    def fill(self, df: DataFrame) -> None:
        """Write the rows of ``CREATE TABLE AS``."""

    def check_unused(self, spark: SparkSession) -> None:
        """Refuse a topic or folder that has rows, which a new table would mix with its own."""

    def prepare(self) -> tuple[str, ...]:
        """Create what the table lacks outside; returns the names of what was created."""
        return ()

    def clean_up(self, made: tuple[str, ...]) -> None:
        """Delete what ``prepare`` has created, for a table that was never visible (FLIP-218)."""

    def keep_mirror(
        self, spark: SparkSession, trigger: Mapping[str, Any], checkpoints: str | None
    ) -> StreamingQuery:
        """The query that keeps the table's mirror, started if it does not run.

        Args:
            spark: the session that runs it.
            trigger: as ``DataStreamWriter.trigger`` takes it.
            checkpoints: folder in which its checkpoint lies; None: beside the mirror.
        """

    def mirror_table(self) -> Table:
        """The managed table that mirrors this one."""


def connect(
    name: str, definition: Definition, folder: str, options: Mapping[str, str] = {}
) -> ConnectorTable:
    """The table that a definition describes, after every check that needs no connection.

    Args:
        name: of the table, for messages.
        definition: its connector, schema and options.
        folder: that of the definition; state lies there unless ``state.path`` says otherwise.
        options: those of one query, which replace options of the definition.

    Raises:
        ConfigurationError: the connector is unknown, or an option is wrong.
        SchemaError: the columns do not fit the connector.
    """
    from upsert.kafka.options import CONNECTOR_ALIASES, OPTIONS, key_of

    definition = replace(definition, options={**definition.options, **options})
    connector = definition.connector.lower()
    if connector in (*spark_connector.FORMATS, spark_connector.SPARK):
        _refuse_clauses_of_managed_tables(name, connector, definition)
        return spark_connector.SparkConnector.of(name, connector, definition.schema, definition.options)
    known = (*OPTIONS, *CONNECTOR_ALIASES, *spark_connector.FORMATS, spark_connector.SPARK)
    if connector not in known:
        hint = suggestion(connector, known, "connectors are")
        raise ConfigurationError(f"table {name!r}: unknown connector {definition.connector!r}; {hint}")
    connector = CONNECTOR_ALIASES.get(connector, connector)
    _refuse_clauses_of_managed_tables(name, connector, definition)
    from upsert.catalog.kafka_connector import MIRROR_OPTION, KafkaConnector, Mirror, split_options
    from upsert.kafka.table import KafkaTable

    given = dict(definition.options)
    if _STATE_OPTION not in map(str.lower, given):
        given[_STATE_OPTION] = os.path.join(state_folder(folder, definition), _STATE_FOLDER)
    mirror = None
    if connector in _MIRRORED:
        given, of_mirror = split_options(given)
        mirror = Mirror.of(name, folder, state_folder(folder, definition), definition.schema, of_mirror)
        given[MIRROR_OPTION] = mirror.path
    table = KafkaTable.of(connector, definition.schema, given, name=name)
    return KafkaConnector(table, mirror, frozenset(map(key_of, options)))


def _refuse_clauses_of_managed_tables(name: str, connector: str, definition: Definition) -> None:
    schema = definition.schema
    clauses: dict[str, object] = {"PARTITIONED BY": schema.partitioned_by}
    if connector not in _MIRRORED:
        clauses["INDEX"] = schema.indexes
    for clause, given in clauses.items():
        if given:
            raise SchemaError(
                f"table {name!r}: the connector {connector!r} has no {clause}; leave it out, or leave out "
                "'connector' for a managed table"
            )
