"""Tables of Delta Lake with a PRIMARY KEY in a catalog: they have a mirror, and changes are merged into them.

Without a key a Delta table is one of Spark's formats, whose rows are only added (``spark_connector``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from upsert.catalog.connectors.base import KeyedConnector, has_rows_already
from upsert.catalog.connectors.mirror import Mirror, split_options
from upsert.delta import sink
from upsert.delta.table import CONNECTOR, DeltaTable, read_feed
from upsert.errors import ConfigurationError
from upsert.managed import frames
from upsert.materializer.keyed_sink import KeyedSink, as_declared
from upsert.schema import TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True)
class DeltaConnector(KeyedConnector):
    """A Delta table: batches read it, streams read its mirror, and changes are merged into it.

    ``state`` is the folder for the rows of keys that do not tell the rows of a query apart.
    """

    table: DeltaTable
    mirror: Mirror
    state: str

    @classmethod
    def of(
        cls, name: str, schema: TableSchema, options: Mapping[str, str], owner: str, folder: str
    ) -> DeltaConnector:
        """The table that the definition in ``owner`` means; what belongs to it lies in ``folder``."""
        own, of_mirror = split_options(options)
        table = DeltaTable.of(name, schema, own)
        mirror = Mirror.of(name, owner, folder, schema, of_mirror)
        return cls(table, mirror, os.path.join(folder, "state"))

    def check_target(self, session: Callable[[], SparkSession]) -> None:
        """Refuse a Delta table that is not there, or has other columns."""
        self.table.check(session())

    @property
    def keyed(self) -> KeyedSink:
        """Each micro-batch is one MERGE."""
        return sink.sink_of(self.table, self.state)

    def read_changes(self, spark: SparkSession, **options: object) -> DataFrame:
        """The changes of the mirror; ``options`` are those of a managed table."""
        return frames.read_changes(spark, self.mirror_table().path, **options)

    def read(self, spark: SparkSession) -> DataFrame:
        """The rows of the Delta table now."""
        self.table.check(spark)
        return as_declared(spark.read.format("delta").load(self.table.path), self.table.schema)

    def lookup_rows(self, spark: SparkSession, columns: Sequence[str] | None) -> DataFrame:
        """The rows of the mirror."""
        return frames.read(spark, self.mirror_table().path, columns=columns)

    def write(self, df: DataFrame) -> None:
        """Merge the rows of a batch DataFrame, in one commit."""
        sink.write(df, self.table)

    def check_unused(self, spark: SparkSession) -> None:
        """Refuse a Delta table that has rows, which a new table would have beside its own."""
        if not self.read(spark).isEmpty():
            raise has_rows_already(self.table.shown)

    def keep_mirror(
        self, spark: SparkSession, trigger: Mapping[str, Any], checkpoints: str | None
    ) -> StreamingQuery:
        """The query of this session that keeps the mirror; a new one continues where the last one stopped."""
        return self.mirror.kept(spark, lambda: read_feed(spark, self.table), trigger, checkpoints)

    def without_mirror(self) -> ConfigurationError:
        """The mirror was not begun."""
        return ConfigurationError(
            f"table {self.table.name!r}: streams and lookups read the mirror of a table of the connector "
            f"{CONNECTOR!r}, got one without; write ALTER TABLE … START MIRROR, or SELECT "
            "from it in 'execution.runtime-mode' = 'batch'"
        )
