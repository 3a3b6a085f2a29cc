"""Kafka topics as tables of a catalog; a topic knows no row by its key, so a topic with keys has a mirror.

This module brings all of Kafka along, and is imported for a table that needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from upsert.catalog.connectors.base import MIRRORED, Connector
from upsert.catalog.connectors.mirror import Mirror
from upsert.errors import ConfigurationError
from upsert.kafka import frames, topics
from upsert.kafka.encode import sink_of
from upsert.kafka.options import check_in_use, key_of
from upsert.kafka.table import KafkaTable
from upsert.managed import frames as managed_frames
from upsert.materializer.choice import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

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
    def kept_in(self) -> str | None:
        """The option ``state.path``."""
        path: str | None = self.table.values["state.path"]
        return path

    @property
    def sink(self) -> Sink:
        """The topic as a sink of changes."""
        return sink_of(self.table)

    @property
    def has_order(self) -> bool:
        """Whether there is a ``sequence.field``."""
        return self.table.values.get("sequence.field") is not None

    @property
    def is_upsert(self) -> bool:
        """Whether it is of the connector ``upsert-kafka``."""
        return self.table.is_upsert

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

    def read_some(self, spark: SparkSession, columns: Sequence[str] | None) -> DataFrame:
        """The rows that the topic holds now, of which only these columns are decoded."""
        return frames.read(spark, self._to_read(), columns)

    def lookup_rows(self, spark: SparkSession, columns: Sequence[str] | None) -> DataFrame:
        """The rows of the topic, for which the planner takes its mirror; of changes those of the mirror."""
        if self.is_upsert or self.mirror is None:
            return self.read(spark)
        return managed_frames.read(spark, self.mirror_table().path, columns=columns)

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
        if (mirror := self.mirror) is None:
            raise self.without_mirror()
        # the mirror replaces rows by key, so it needs no images; but deletions by key have NULLs elsewhere
        needs_images = any(
            not c.nullable and c.name not in self.table.primary_key for c in mirror.schema.columns
        )
        own = {"changelog": "all" if needs_images else "upsert"} if self.is_upsert else self._net
        return mirror.kept(spark, lambda: self.read_changes(spark, **own), trigger, checkpoints)

    @property
    def _net(self) -> Mapping[str, str]:
        """Options to read of a topic what its changes leave of each key, unless a normalizer does that."""
        if self.table.values["cdc-events-duplicate"]:
            return {}
        return {"scan.net-changes": "true", "scan.needs-before": "false"}

    def without_mirror(self) -> ConfigurationError:
        """The topic is one of changes, or its mirror was not begun."""
        if self.mirror is not None:
            return ConfigurationError(
                f"{self.table.name} must be a managed table or have a mirror, got a table of the connector "
                f"{self.table.connector!r} without one; write ALTER TABLE … START MIRROR, or "
                "catalog.mirror(spark, …), or use read_changes, read and write_changes"
            )
        return ConfigurationError(
            f"{self.table.name}: a mirror needs {MIRRORED}, got {self.table.value.format_name!r} and the key "
            f"{self.table.primary_key}; write its changes into a managed table, by a streaming INSERT INTO "
            "or by write_changes"
        )
