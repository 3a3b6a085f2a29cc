"""Kafka topics as tables of a catalog, and mirrors: managed tables that hold what upsert topics hold.

A topic is a log and knows no row by its key. Its mirror lies with the state of the table that declares the
topic, with that table's indexes, and is kept by one streaming query, exactly once: a repeated
micro-batch commits nothing. This module brings all of Kafka along, and is imported for a table that needs it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from upsert.catalog import warehouse
from upsert.catalog.connector import Connector
from upsert.errors import ConfigurationError, SchemaError, TableNotFoundError
from upsert.kafka import frames, topics
from upsert.kafka.encode import sink_of
from upsert.kafka.options import check_in_use, key_of
from upsert.kafka.table import KafkaTable
from upsert.managed import frames as managed
from upsert.materializer.choice import Sink
from upsert.schema import TableSchema
from upsert.store.alterations import Alteration, ResetOptions, SetOptions, differences
from upsert.store.metadata import table_file
from upsert.store.storage import storage_of
from upsert.store.table import Table
from upsert.store.table_options import TableOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

PREFIX: Final = "mirror."
"""Options in CREATE TABLE of an upsert topic that are the mirror's: ``'mirror.bucket' = '4'``."""

_FOLDER: Final = "mirror"


@dataclass(frozen=True)
class Mirror:
    """The mirror that a table with a connector has, or may get: a managed table in the folder ``path``.

    ``owner`` is the folder of the table that declares the topic.
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
                f"table {name!r}: {unique} must not be UNIQUE, for that is not checked when a topic is "
                "written, and its mirror would stop at the first duplicate; leave out UNIQUE"
            )
        own = replace(schema, columns=tuple(column.as_data for column in schema.columns))
        TableOptions.parse(options, own, owner=f"table {name!r}: options '{PREFIX}*'")
        return cls(owner, os.path.join(folder, _FOLDER, name), own, dict(options))

    def bring_along(self, table: Table) -> None:
        """Let the managed table that it is have the columns, indexes and options that it should have."""
        before = table.definition.given
        changes: list[Alteration] = [*differences(table.schema, self.schema)]
        if new := {key: text for key, text in self.options.items() if before.get(key) != text}:
            changes.append(SetOptions(new))
        if gone := tuple(key for key in before if key not in self.options):
            changes.append(ResetOptions(gone))
        if changes:
            table.alter(*changes)


def split_options(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The options of CREATE TABLE that are the connector's, and those of the mirror, without their prefix.

    >>> split_options({"topic": "words", "mirror.bucket": "4"})
    ({'topic': 'words'}, {'bucket': '4'})
    """
    own = {key: value for key, value in options.items() if not key.lower().startswith(PREFIX)}
    of_mirror = {key[len(PREFIX) :]: value for key, value in options.items() if key not in own}
    return own, of_mirror


MIRROR_OPTION: Final = "mirror.path"
_APART_OPTION: Final = "mirror.not-given"

HELD_BY_MIRRORS: Final = frozenset({"max-rows-per-trigger", "changelog"})
"""Options of a query that hold where its topic is read by its mirror."""


@dataclass(frozen=True)
class KafkaConnector(Connector):
    """A Kafka topic as a table of the catalog.

    ``own`` are the options that one query has for itself, in a hint.
    """

    table: KafkaTable
    mirror: Mirror | None
    own: frozenset[str] = frozenset()

    @property
    def sink(self) -> Sink:
        """The topic as a sink of changes."""
        return sink_of(self.table)

    @property
    def has_order(self) -> bool:
        """Whether there is a ``sequence.field``."""
        return self.table.values.get("sequence.field") is not None

    @property
    def has_mirror(self) -> bool:
        """Whether it is an upsert topic."""
        return self.mirror is not None

    def read_changes(self, spark: SparkSession, **options: object) -> DataFrame:
        """The topic as a streaming DataFrame; ``options`` replace those of the table."""
        return frames.read_changes(spark, self._to_read(options), **options)

    def _to_read(self, options: Iterable[str] = ()) -> KafkaTable:
        """The table for a query with these options, which its mirror may not have been given."""
        table = self.table
        check_in_use((*self.own, *options), writes=False, of=table.name)
        apart = sorted((self.own | set(map(key_of, options))) - HELD_BY_MIRRORS)
        if not apart or self.mirror is None:
            return table
        given = {name: text for name, text in table.given.items() if name != MIRROR_OPTION}
        given[_APART_OPTION] = ", ".join(map(repr, apart))
        return table.called(table.name, table.connector, table.schema, given)

    def read(self, spark: SparkSession) -> DataFrame:
        """The rows that the topic holds now."""
        return frames.read(spark, self._to_read())

    @property
    def _to_write(self) -> KafkaTable:
        check_in_use(self.own, writes=True, of=self.table.name)
        return self.table

    def write_changes(self, df: DataFrame) -> DataStreamWriter:
        """A writer of changes, or of upserts, into the topic."""
        return frames.write_changes(df, self._to_write)

    def write_upsert(self, df: DataFrame) -> DataStreamWriter:
        """A writer in update mode; only upsert topics have one."""
        table = self._to_write
        if not table.is_upsert:
            raise ConfigurationError(
                f"{table.name}: write_upsert needs the connector 'upsert-kafka', got {table.connector!r}; "
                "use write_changes"
            )
        return frames.write_upsert(df, table)

    def write(self, df: DataFrame) -> None:
        """Send all rows of a batch DataFrame."""
        frames.write(df, self._to_write)

    def prepare(self) -> tuple[str, ...]:
        """Create the topics that do not exist, where ``topic.partitions`` says how; the names of these."""
        return topics.create_missing(self.table)

    def clean_up(self, made: tuple[str, ...]) -> None:
        """Delete topics that ``prepare`` has made."""
        topics.delete(self.table, made)

    def keep_mirror(
        self, spark: SparkSession, trigger: Mapping[str, Any], checkpoints: str | None
    ) -> StreamingQuery:
        """The query of this session that keeps the mirror; a new one continues where the last one stopped."""
        mirror = self._mirror()
        name = f"mirror of {mirror.owner}"
        running = next((query for query in spark.streams.active if query.name == name), None)
        if running is not None:
            return running
        with warehouse.ddl_lock(os.path.dirname(mirror.owner)):
            table_file.table_in(mirror.owner)  # it may have been dropped meanwhile
            table = Table.create(mirror.path, mirror.schema, mirror.options, if_not_exists=True)
            mirror.bring_along(table)
        # the mirror replaces rows by key, so it needs no images; but deletions by key have NULLs elsewhere
        needs_images = any(
            not c.nullable and c.name not in self.table.primary_key for c in mirror.schema.columns
        )
        changes = self.read_changes(spark, changelog="all" if needs_images else "upsert")
        if checkpoints is None and not storage_of(mirror.path).is_local:
            raise ConfigurationError(
                f"table {os.path.basename(mirror.path)!r}: its mirror lies in an object store, which Spark's "
                "checkpoints may not reach, and needs a folder for them, got none; SET 'checkpoint.location' "
                "= 'folder', or mirror(…, checkpoints='folder')"
            )
        # named by the mirror: a table that is dropped and created again starts from the beginning
        checkpoint = os.path.join(checkpoints or os.path.dirname(mirror.path), f"checkpoint-{table.uuid}")
        writer = managed.write_changes(changes, mirror.path).option("checkpointLocation", checkpoint)
        writer = writer.trigger(**trigger) if trigger else writer
        return writer.queryName(name).start()

    def bring_mirror_along(self) -> None:
        """Let the mirror, if it was begun, have the columns, indexes and options that the table has now."""
        if self.mirror is not None:
            with suppress(TableNotFoundError):
                self.mirror.bring_along(Table.open(self.mirror.path))

    def mirror_table(self) -> Table:
        """The mirror, which must have been begun."""
        path = self._mirror().path
        try:
            return Table.open(path)
        except TableNotFoundError:
            raise ConfigurationError(
                f"{self.table.name} must be a managed table or have a mirror, got a table of the connector "
                f"{self.table.connector!r} without one; write ALTER TABLE … START MIRROR, or "
                "catalog.mirror(spark, …), or use read_changes, read and write_changes"
            ) from None

    def _mirror(self) -> Mirror:
        if self.mirror is None:
            raise self.without_mirror()
        return self.mirror

    def without_mirror(self) -> ConfigurationError:
        """The topic is one of changes."""
        return ConfigurationError(
            f"{self.table.name}: only tables of the connector 'upsert-kafka' have a mirror, got "
            f"{self.table.connector!r}; write its changes into a managed table with write_changes"
        )
