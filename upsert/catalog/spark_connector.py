"""Tables over formats that Spark reads itself: files, other lakes, databases. They are for reading only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from upsert.errors import ConfigurationError, SchemaError
from upsert.managed.spark_schema import spark_schema
from upsert.schema import TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from upsert.store.table import Table

FORMATS: Final = ("parquet", "orc", "json", "csv", "text", "avro", "xml", "delta", "iceberg", "jdbc", "rate")
"""Connectors that are names of Spark's formats; any other one is ``'connector' = 'spark', 'format' = …``."""
SPARK: Final = "spark"
_KNOW_THEIR_COLUMNS: Final = frozenset({"delta", "iceberg", "jdbc", "rate"})
"""Formats that refuse to be told a schema."""


@dataclass(frozen=True)
class SparkConnector:
    """A table that Spark reads by itself.

    Attributes:
        name: of the table, for messages.
        format: Spark's name of the format.
        schema: the columns of CREATE TABLE, which are read.
        options: of the format, as they were written.
    """

    name: str
    format: str
    schema: TableSchema
    options: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, name: str, connector: str, schema: TableSchema, options: Mapping[str, str]) -> SparkConnector:
        """The table that a definition means.

        Raises:
            ConfigurationError: the connector is ``spark``, and there is no ``format``.
            SchemaError: the columns are none that a file has.
        """
        own = dict(options)
        format_ = connector if connector != SPARK else own.pop("format", None)
        if format_ is None:
            raise ConfigurationError(f"table {name!r}: the connector 'spark' needs the option 'format'")
        if schema.metadata:
            raise SchemaError(
                f"table {name!r}: the connector {connector!r} has no METADATA columns, got "
                f"{schema.metadata[0].name!r}; leave it out"
            )
        return cls(name, format_, schema, own)

    @property
    def sink_key(self) -> tuple[str, ...]:
        """None: nothing is written."""
        return ()

    def read_changes(self, spark: SparkSession, **options: object) -> DataFrame:
        """The rows that are added, as a stream without ``_row_kind``."""
        return self._loaded(spark.readStream, options)

    def read(self, spark: SparkSession) -> DataFrame:
        """The rows that are there now."""
        return self._loaded(spark.read, {})

    def _loaded(self, reader: Any, options: Mapping[str, object]) -> DataFrame:
        wanted = spark_schema(self.schema, row_kind=False)
        reader = reader.format(self.format).options(**{**self.options, **options})
        if self.format not in _KNOW_THEIR_COLUMNS:
            found: DataFrame = reader.schema(wanted).load()
            return found
        df: DataFrame = reader.load()
        if missing := [column for column in wanted.names if column not in df.columns]:
            raise SchemaError(
                f"table {self.name!r}: column {missing[0]!r} is not in the {self.format} table, whose "
                f"columns are {', '.join(df.columns)}"
            )
        return df.selectExpr(*(_cast(one.name, one.dataType.simpleString()) for one in wanted.fields))

    def write_changes(self, df: DataFrame) -> DataStreamWriter:  # noqa: ARG002
        """Nothing: the table is for reading."""
        raise self._only_read()

    def write_upsert(self, df: DataFrame) -> DataStreamWriter:  # noqa: ARG002
        """Nothing: the table is for reading."""
        raise self._only_read()

    def write(self, df: DataFrame) -> None:  # noqa: ARG002
        """Nothing: the table is for reading."""
        raise self._only_read()

    def _only_read(self) -> ConfigurationError:
        return ConfigurationError(
            f"table {self.name!r}: tables of Spark's format {self.format!r} are only read here; write with "
            f"df.write.format({self.format!r}), or into a managed table"
        )

    def prepare(self) -> tuple[str, ...]:
        """Nothing: the data are there."""
        raise self._only_read()

    def clean_up(self, made: tuple[str, ...]) -> None:
        """Nothing was made."""

    def keep_mirror(self, spark: SparkSession, trigger: Mapping[str, Any]) -> StreamingQuery:  # noqa: ARG002
        """Nothing: only upsert topics have a mirror."""
        raise self._no_mirror()

    def mirror_table(self) -> Table:
        """Nothing: only upsert topics have a mirror."""
        raise self._no_mirror()

    def _no_mirror(self) -> ConfigurationError:
        return ConfigurationError(
            f"table {self.name!r} must be a managed table or have a mirror, got one of Spark's format "
            f"{self.format!r}; read it with catalog.read, or a query"
        )


def _cast(name: str, type_: str) -> str:
    quoted = f"`{name.replace('`', '``')}`"
    return f"CAST({quoted} AS {type_}) AS {quoted}"
