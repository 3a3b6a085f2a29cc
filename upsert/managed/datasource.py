"""The Spark format ``upsert-table``: wiring only."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from upsert.managed.log_reader import stream_reader
from upsert.managed.options import ReadOptions, WriteOptions
from upsert.managed.reader import RowMetadata, SnapshotReader
from upsert.managed.stepping import StepSource
from upsert.managed.writer import BatchWriter, StreamWriter
from upsert.spark.columns import spark_schema
from upsert.spark.formats import FORMAT
from upsert.store.table import Table


class UpsertTableSource(DataSource):
    """``spark.read``, ``readStream``, ``write`` and ``writeStream`` of a managed table.

    See ``upsert.managed.options`` for the options. Without ``.schema(…)`` a read has all columns of
    the table, and ``_row_kind`` last; with it, those that it names.
    """

    @classmethod
    def name(cls) -> str:
        """``upsert-table``."""
        return FORMAT

    def schema(self) -> StructType:
        """The table's columns, those of ``metadata.columns``, and ``_row_kind`` unless it is off."""
        options = ReadOptions.parse(self.options)
        table = Table.open(options.path)
        metadata = RowMetadata.asked(options.metadata, table.schema, None, f"table {table.name!r}")
        own = spark_schema(table.schema, row_kind=options.row_kind, upserts=options.changelog == "upsert")
        return metadata.added_to(own)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read."""
        return SnapshotReader(ReadOptions.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A stream read."""
        return stream_reader(ReadOptions.parse(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch write."""
        return BatchWriter(WriteOptions.parse(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """A stream write."""
        return StreamWriter(WriteOptions.parse(self.options), schema, overwrite)


class TableStepSource(StepSource):
    """The changes of a table between two of its states, as a batch."""

    stream = UpsertTableSource
