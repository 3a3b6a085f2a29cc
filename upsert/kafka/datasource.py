"""The Spark formats ``upsert-kafka`` and ``kafka-changelog``: wiring only."""

from __future__ import annotations

from typing import ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from upsert.kafka.declaration import declared, struct_of
from upsert.kafka.options import PLAIN, UPSERT
from upsert.kafka.sink import BatchWriter, StreamWriter, declared_for_write
from upsert.kafka.source import BatchReader, StreamReader
from upsert.kafka.table import SPARK_FORMATS, KafkaTable


class _KafkaSource(DataSource):
    """What both formats share; see ``upsert.kafka.options`` for the options.

    The columns are declared with ``columns`` and ``primary-key``, or with ``.schema(…)``; for a write they
    may be those of the query.
    """

    connector: ClassVar[str]

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return SPARK_FORMATS[cls.connector]

    def schema(self) -> StructType:
        """The declared columns, and ``_row_kind`` where rows are changes, unless ``row-kind = false``."""
        table = self._table()
        return struct_of(table, row_kind=table.values["row-kind"])

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read."""
        return BatchReader(self._table(schema), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A stream read."""
        return StreamReader(self._table(schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch write."""
        return BatchWriter(declared_for_write(self.connector, self.options, schema), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """A stream write."""
        return StreamWriter(declared_for_write(self.connector, self.options, schema), schema, overwrite)

    def _table(self, asked: StructType | None = None) -> KafkaTable:
        return declared(self.connector, self.options, asked)


class UpsertKafkaSource(_KafkaSource):
    """``spark.read`` and ``readStream`` of topics that hold the newest value of each key (FLIP-149)."""

    connector = UPSERT


class KafkaChangelogSource(_KafkaSource):
    """``spark.read`` and ``readStream`` of all other topics: rows that are only added, or changes."""

    connector = PLAIN
