"""Tables over formats that Spark reads and writes itself: files, other lakes, databases.

Their rows are only added, never updated or deleted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import AnalysisException

from upsert.catalog.connectors.base import Connector
from upsert.errors import ConfigurationError, SchemaError
from upsert.materializer.choice import Sink
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import TableSchema
from upsert.spark.checkpoint_files import local_folder
from upsert.spark.columns import spark_schema
from upsert.types import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

FORMATS: Final = ("parquet", "orc", "json", "csv", "text", "avro", "xml", "delta", "iceberg", "jdbc", "rate")
"""Connectors that are names of Spark's formats; any other one is ``'connector' = 'spark', 'format' = …``."""
SPARK: Final = "spark"
_FILES: Final = frozenset({"parquet", "orc", "json", "csv", "text", "avro", "xml"})
_STREAMS_LOG: Final = "_spark_metadata"
"""The folder in which Spark lists the files that a stream has written."""
_KNOW_THEIR_COLUMNS: Final = frozenset({"delta", "iceberg", "jdbc", "rate"})
"""Formats that do not accept a schema."""


@dataclass(frozen=True)
class SparkConnector(Connector):
    """A table that Spark reads and writes by itself.

    ``schema`` has the columns of CREATE TABLE, which are read and written.
    """

    mirror = None

    name: str
    format: str
    schema: TableSchema
    options: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, name: str, connector: str, schema: TableSchema, options: Mapping[str, str]) -> SparkConnector:
        """The table that a definition means; refuses ``spark`` without a ``format``."""
        own = dict(options)
        format_ = connector if connector != SPARK else own.pop("format", None)
        if format_ is None:
            raise ConfigurationError(f"table {name!r}: the connector 'spark' needs the option 'format'")
        return cls(name, format_, schema, own)

    @property
    def sink(self) -> Sink:
        """A table that keeps every row."""
        return Sink(f"table {self.name!r}", (), "none")

    def read_changes(self, spark: SparkSession, **options: object) -> DataFrame:
        """The rows that are added, as a stream without ``_row_kind``."""
        return self._loaded(spark.readStream, options)

    def read(self, spark: SparkSession) -> DataFrame:
        """The rows of the table now."""
        return self._loaded(spark.read, {})

    def _loaded(self, reader: Any, options: Mapping[str, object]) -> DataFrame:
        wanted = spark_schema(self.schema, row_kind=False)
        reader = reader.format(self.format).options(**{**self.options, **options})
        knows_columns = self.format in _KNOW_THEIR_COLUMNS
        df: DataFrame = reader.load() if knows_columns else reader.schema(wanted).load()
        if not knows_columns:
            return df
        if missing := [column for column in wanted.names if column not in df.columns]:
            raise SchemaError(
                f"table {self.name!r}: column {missing[0]!r} is not in the {self.format} table, whose "
                f"columns are {', '.join(df.columns)}"
            )
        named = ((quoted(one.name), one.dataType.simpleString()) for one in wanted.fields)
        return df.selectExpr(*(f"CAST({name} AS {type_}) AS {name}" for name, type_ in named))

    def write_changes(self, df: DataFrame) -> DataStreamWriter:
        """A writer that adds the rows of a stream; to files exactly once, to others as the format can."""
        if ROW_KIND_COLUMN in df.columns:
            raise ConfigurationError(
                f"table {self.name!r}: rows of Spark's format {self.format!r} are only added, got changes "
                "with updates and deletes; write them into a managed table"
            )
        self._check_written_by(streams=True)
        return df.writeStream.format(self.format).options(**self.options)

    def write_upsert(self, df: DataFrame) -> DataStreamWriter:  # noqa: ARG002
        """Nothing: rows are only added."""
        raise ConfigurationError(
            f"table {self.name!r}: rows of Spark's format {self.format!r} are only added, got an aggregate "
            "whose rows replace each other; write it into a managed table"
        )

    def write(self, df: DataFrame) -> None:
        """Add the rows of a batch DataFrame."""
        self._write(df, "append")

    def fill(self, df: DataFrame) -> None:
        """Write the rows of CREATE TABLE AS; refuses existing rows."""
        self.check_unused(df.sparkSession)
        self._write(df, "append" if self.format in _FILES else "errorifexists")

    def check_unused(self, spark: SparkSession) -> None:
        """Refuse files that have rows, which a new table would have beside its own."""
        if self.format not in _FILES:
            return
        try:
            is_used = not self.read(spark).isEmpty()
        except AnalysisException as cause:
            if cause.getCondition() != "PATH_NOT_FOUND":
                raise
            return
        if is_used:
            raise ConfigurationError(
                f"table {self.name!r}: CREATE TABLE AS needs an empty folder, got rows in "
                f"{self.options.get('path')!r}; create the table without AS and INSERT INTO it, or give "
                "another 'path'"
            )

    def _write(self, df: DataFrame, mode: str) -> None:
        self._check_written_by(streams=False)
        try:
            df.write.format(self.format).options(**self.options).mode(mode).save()
        except AnalysisException as cause:
            reason = str(cause.getMessage() or cause).splitlines()[0]
            raise ConfigurationError(
                f"table {self.name!r}: Spark cannot write these rows in format {self.format!r}: {reason}"
            ) from cause

    def _check_written_by(self, *, streams: bool) -> None:
        """Refuse to write files by a stream beside others: of such a folder Spark reads the stream's alone.

        Known only of local folders.
        """
        folder = local_folder(self.options.get("path", ""))
        if self.format not in _FILES or folder is None or not os.path.isdir(folder):
            return
        has_stream = os.path.isdir(os.path.join(folder, _STREAMS_LOG))
        has_others = not has_stream and any(not name.startswith(("_", ".")) for name in os.listdir(folder))
        if (has_others and streams) or (has_stream and not streams):
            own, other = ("a stream", "batches") if streams else ("a batch", "a stream")
            raise ConfigurationError(
                f"table {self.name!r}: {own} must not write into {folder!r}, which {other} wrote: Spark "
                "reads the files of the stream alone; choose another folder, or a managed table"
            )

    def without_mirror(self) -> ConfigurationError:
        """Spark reads the table."""
        return ConfigurationError(
            f"table {self.name!r} must be a managed table or have a mirror, got one of Spark's format "
            f"{self.format!r}; read it with catalog.read, or a query"
        )
