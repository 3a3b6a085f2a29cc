"""Tables of a catalog that lie elsewhere: which connector serves them, behind one protocol.

Connectors are imported when a table needs one: every worker of a query imports the catalog.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Protocol

from upsert.catalog import spark_connector
from upsert.catalog.mirror import Mirror, split_options
from upsert.catalog.persistence import Definition, state_folder
from upsert.errors import ConfigurationError, SchemaError
from upsert.materializer.choice import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from upsert.kafka.table import KafkaTable
    from upsert.store.table import Table

_STATE_OPTION: Final = "state.path"
_STATE_FOLDER: Final = "state"
_MIRRORED: Final = frozenset({"upsert-kafka"})
"""Connectors whose tables have a mirror, and so may have an INDEX."""
_MIRROR_OPTION: Final = "mirror.path"
_APART_OPTION: Final = "mirror.not-given"
HELD_BY_MIRRORS: Final = frozenset({"max-rows-per-trigger", "changelog"})
"""Options of a query that hold where its topic is read by its mirror."""


class ConnectorTable(Protocol):
    """What the catalog asks of a table with a connector."""

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
        """Refuse a place that has rows, which a new table would have beside its own; nothing by default."""

    def prepare(self) -> tuple[str, ...]:
        """Make what the table needs outside and does not find there; the names of what was made."""
        return ()

    def clean_up(self, made: tuple[str, ...]) -> None:
        """Take away what ``prepare`` has made, for a table that nobody saw (FLIP-218); nothing by default."""

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


@dataclass(frozen=True)
class KafkaConnector:
    """A Kafka topic as a table of the catalog.

    ``own`` are the options that one query has for itself, in a hint.
    """

    table: KafkaTable
    mirror: Mirror | None
    own: frozenset[str] = frozenset()

    @property
    def sink_key(self) -> tuple[str, ...]:
        """The primary key of an upsert table, and the column that names the topic of a row."""
        return self.sink.key

    @property
    def sink(self) -> Sink:
        """The topic as a sink of changes."""
        from upsert.kafka.sink_columns import sink_of

        return sink_of(self.table)

    @property
    def has_order(self) -> bool:
        """Whether there is a ``sequence.field``."""
        return self.table.values.get("sequence.field") is not None

    def read_changes(self, spark: SparkSession, **options: object) -> DataFrame:
        """The topic as a streaming DataFrame; ``options`` replace those of the table."""
        from upsert.kafka import frames
        from upsert.kafka.options import key_of

        self._check_options(options, writes=False)
        return frames.read_changes(spark, self._read_with(map(key_of, options)), **options)

    def _check_options(self, names: Iterable[str] = (), *, writes: bool) -> None:
        from upsert.kafka.options import check_in_use

        check_in_use((*self.own, *names), writes=writes, of=self.table.name)

    def _read_with(self, names: Iterable[str] = ()) -> KafkaTable:
        """The table for a query with options of these names, which its mirror may not have been given."""
        apart = sorted((self.own | set(names)) - HELD_BY_MIRRORS)
        table = self.table
        if not apart or self.mirror is None:
            return table
        given = {name: text for name, text in table.given.items() if name != _MIRROR_OPTION}
        given[_APART_OPTION] = ", ".join(map(repr, apart))
        return table.called(table.name, table.connector, table.schema, given)

    def read(self, spark: SparkSession) -> DataFrame:
        """The rows that the topic holds now."""
        from upsert.kafka import frames

        self._check_options(writes=False)
        return frames.read(spark, self._read_with())

    def write_changes(self, df: DataFrame) -> DataStreamWriter:
        """A writer of changes, or of upserts, into the topic."""
        from upsert.kafka import frames

        self._check_options(writes=True)
        return frames.write_changes(df, self.table)

    def write_upsert(self, df: DataFrame) -> DataStreamWriter:
        """A writer in update mode; only upsert topics have one."""
        from upsert.kafka import frames

        self._check_options(writes=True)
        if not self.table.is_upsert:
            raise ConfigurationError(
                f"{self.table.name}: write_upsert needs the connector 'upsert-kafka', got "
                f"{self.table.connector!r}; use write_changes"
            )
        return frames.write_upsert(df, self.table)

    def write(self, df: DataFrame) -> None:
        """Send all rows of a batch DataFrame."""
        from upsert.kafka import frames

        self._check_options(writes=True)
        frames.write(df, self.table)

    def fill(self, df: DataFrame) -> None:
        """Send the rows of ``CREATE TABLE AS``; a topic that is there may hold others."""
        self.write(df)

    def check_unused(self, spark: SparkSession) -> None:
        """Nothing: a table may be declared over a topic that others write."""

    def prepare(self) -> tuple[str, ...]:
        """Create the topics that do not exist, where ``topic.partitions`` says how; the names of these."""
        from upsert.kafka import sink_topics

        return sink_topics.create_missing(self.table)

    def clean_up(self, made: tuple[str, ...]) -> None:
        """Delete topics that ``prepare`` has made."""
        from upsert.kafka import sink_topics

        sink_topics.delete(self.table, made)

    def keep_mirror(
        self, spark: SparkSession, trigger: Mapping[str, Any], checkpoints: str | None
    ) -> StreamingQuery:
        """The query of this session that keeps the mirror; a new one goes on where the last one stopped."""
        mirror = self._mirror()
        if (running := mirror.running(spark)) is not None:
            return running
        table = mirror.create()
        # the mirror replaces rows by key, so it needs no images; but deletions by key have NULLs elsewhere
        needs_images = any(
            not c.nullable and c.name not in self.table.primary_key for c in mirror.schema.columns
        )
        changes = self.read_changes(spark, changelog="all" if needs_images else "upsert")
        return mirror.start(table, changes, trigger, checkpoints)

    def mirror_table(self) -> Table:
        """The mirror, which must have been begun."""
        found = self._mirror().table()
        if found is None:
            raise ConfigurationError(
                f"{self.table.name} must be a managed table or have a mirror, got a table of the connector "
                f"{self.table.connector!r} without one; start catalog.mirror(spark, …), or use read_changes, "
                "read and write_changes"
            )
        return found

    def _mirror(self) -> Mirror:
        if self.mirror is None:
            raise ConfigurationError(
                f"{self.table.name}: only tables of the connector 'upsert-kafka' have a mirror, got "
                f"{self.table.connector!r}; write its changes into a managed table with write_changes"
            )
        return self.mirror


def connect(
    name: str, definition: Definition, folder: str, options: Mapping[str, str] = {}
) -> ConnectorTable:
    """The table that a definition means, after every check that needs no look at the outside.

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
    from upsert.kafka.table import KafkaTable

    definition = replace(definition, options={**definition.options, **options})
    connector = definition.connector.lower()
    if connector in (*spark_connector.FORMATS, spark_connector.SPARK):
        _refuse_clauses_of_managed_tables(name, connector, definition)
        return spark_connector.SparkConnector.of(name, connector, definition.schema, definition.options)
    known = (*OPTIONS, *CONNECTOR_ALIASES, *spark_connector.FORMATS, spark_connector.SPARK)
    if connector not in known:
        close = get_close_matches(connector, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"connectors are {', '.join(known)}"
        raise ConfigurationError(f"table {name!r}: unknown connector {definition.connector!r}; {hint}")
    connector = CONNECTOR_ALIASES.get(connector, connector)
    _refuse_clauses_of_managed_tables(name, connector, definition)
    given = dict(definition.options)
    if _STATE_OPTION not in map(str.lower, given):
        given[_STATE_OPTION] = os.path.join(state_folder(folder, definition), _STATE_FOLDER)
    if connector not in _MIRRORED:
        plain = KafkaTable.of(connector, definition.schema, given, name=name)
        return KafkaConnector(plain, None, frozenset(map(key_of, options)))
    given, of_mirror = split_options(given)
    mirror = Mirror.of(name, folder, state_folder(folder, definition), definition.schema, of_mirror)
    given[_MIRROR_OPTION] = mirror.path
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
