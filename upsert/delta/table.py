"""A table of Delta Lake as CREATE TABLE declares it: options, whether the real one fits, its change feed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from pyspark.errors import AnalysisException, ParseException

from upsert import options
from upsert.errors import ConfigurationError, SchemaError
from upsert.materializer.keyed_sink import as_declared
from upsert.options import Option
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.schema import Column, TableSchema
from upsert.spark.columns import stored_type
from upsert.store.table_options import SINK_MATERIALIZE
from upsert.types import quoted, sql_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

CONNECTOR: Final = "delta"

PACKAGE: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
"""The newest release of Delta Lake, and the Spark that it is for."""

OPTIONS: Final = (
    Option("path", options.text, "folder of the Delta table, as Spark reaches it"),
    SINK_MATERIALIZE,
)
"""Options of ``'connector' = 'delta'`` with a PRIMARY KEY; without one they are those of Delta's format."""

_SETTINGS: Final = (
    "'spark.sql.extensions' = 'io.delta.sql.DeltaSparkSessionExtension' and "
    "'spark.sql.catalog.spark_catalog' = 'org.apache.spark.sql.delta.catalog.DeltaCatalog'"
)
FEED: Final = "delta.enableChangeDataFeed"


@dataclass(frozen=True)
class DeltaTable:
    """What counts of a declared table for what follows it and what writes it.

    Attributes:
        name: for messages.
        path: folder of the table.
        schema: the columns that are read and written, by the names that they have there.
        materialize: ``sink.materialize``.
    """

    name: str
    path: str
    schema: TableSchema
    materialize: str

    @classmethod
    def of(cls, name: str, schema: TableSchema, given: Mapping[str, str]) -> DeltaTable:
        """The table that a definition means, after every check that needs no Spark.

        Raises:
            ConfigurationError: an option is unknown, missing or wrong.
        """
        of = f"table {name!r}"
        values = options.parse(of, OPTIONS, given)
        if not urlsplit(values["path"]).scheme and not values["path"].startswith("/"):
            raise ConfigurationError(
                f"{of}: option 'path' must be a whole path, as in '/lake/orders' or 's3a://lake/orders', got "
                f"{values['path']!r}"
            )
        return cls(name, values["path"], schema, values["sink.materialize"])

    @property
    def shown(self) -> str:
        """The table for messages: its name here, and where it lies."""
        return f"table {self.name!r} ({self.path!r})"

    @property
    def in_spark(self) -> str:
        """The table as Spark SQL names it."""
        return f"delta.{quoted(self.path)}"

    @property
    def ddl(self) -> str:
        """A statement of Spark SQL that creates a table which fits."""
        columns = ", ".join(f"{quoted(one.name)} {sql_name(one.type)}" for one in self.schema.columns)
        return f"CREATE TABLE {self.in_spark} ({columns}) USING delta TBLPROPERTIES ('{FEED}' = 'true')"

    def check(self, spark: SparkSession) -> StructType:
        """The columns of the Delta table, which has those that are declared.

        Raises:
            ConfigurationError: Spark has no Delta Lake, or there is no such table.
            SchemaError: a declared column is missing there, or of another type.
        """
        found = columns_at(spark, self.path, self.shown, self.ddl)
        by_name = {field.name: field for field in found.fields}
        for column in self.schema.columns:
            there = by_name.get(column.name)
            if there is None:
                raise SchemaError(
                    f"{self.shown}: column {column.name!r} must be in the Delta table, whose columns are "
                    f"{', '.join(by_name)}, upper and lower case count; it may have been dropped or renamed "
                    "there: DROP TABLE, and create it with these columns"
                )
            type_ = stored_type(there, self.shown)
            if sql_name(type_) != sql_name(column.type):  # which says nothing of NULL in nested values
                raise SchemaError(
                    f"{self.shown}: column {column.name!r} must be {sql_name(type_)} as in the Delta table, "
                    f"got {sql_name(column.type)}; DROP TABLE, and create it with this type"
                )
        return found

    def properties(self, spark: SparkSession) -> dict[str, str]:
        """The table properties of the Delta table.

        Raises:
            ConfigurationError: the session reads Delta tables, but was not given Delta's SQL.
        """
        try:
            detail = spark.sql(f"DESCRIBE DETAIL {self.in_spark}").collect()[0]
        except (ParseException, AnalysisException) as cause:
            raise ConfigurationError(
                f"{self.shown}: the session must have Delta's SQL, it has not: {_first_line(cause)}; start "
                f"it with {_SETTINGS}"
            ) from cause
        return dict(detail["properties"])


def columns_at(spark: SparkSession, path: str, shown: str, ddl: str | None = None) -> StructType:
    """The columns of the Delta table in a folder; ``shown`` begins every refusal, ``ddl`` would create it.

    Raises:
        ConfigurationError: Spark has no Delta Lake, or there is no such table.
    """
    try:
        return spark.read.format("delta").load(path).schema
    except AnalysisException as cause:
        hint = f"; {ddl}" if ddl else ""
        raise ConfigurationError(
            f"{shown}: there must be a Delta table, Spark finds none: {_first_line(cause)}{hint}"
        ) from cause
    except Exception as cause:  # PySpark has no class for this error of the JVM
        if "[DATA_SOURCE_NOT_FOUND]" not in str(cause):
            raise
        raise ConfigurationError(
            f"{shown}: the connector {CONNECTOR!r} needs Delta Lake in the session, which Spark "
            f"{spark.version} has not; start it with 'spark.jars.packages' = {PACKAGE!r}, the newest "
            f"release, which is for Spark 4.2, and with {_SETTINGS}"
        ) from cause


def _first_line(cause: AnalysisException) -> str:
    """What an error of Spark says, without its plan and stack."""
    return str(cause.getMessage() or cause).strip().splitlines()[0]


def declared_columns(found: StructType, shown: str) -> tuple[Column, ...]:
    """The columns of a Delta table as CREATE TABLE would declare them."""
    return tuple(
        Column(field.name, stored_type(field, shown), field.nullable, field.metadata.get("comment"))
        for field in found.fields
    )


_UNLIMITED: Final = 2**31 - 1
_CHANGE_TYPE: Final = "_change_type"
_KINDS: Final = {
    "insert": RowKind.INSERT,
    "delete": RowKind.DELETE,
    "update_preimage": RowKind.UPDATE_BEFORE,  # Delta and Spark
    "update_postimage": RowKind.UPDATE_AFTER,
    "update_before": RowKind.UPDATE_BEFORE,  # Iceberg, in upper case
    "update_after": RowKind.UPDATE_AFTER,
}


def changes_of_feed(feed: DataFrame, schema: TableSchema) -> DataFrame:
    """The rows of a change feed, of a stream or a batch, as changes: the columns of a schema, ``_row_kind``.

    A feed is a DataFrame with the columns of a table and ``_change_type``, as Delta's ``readChangeFeed``,
    Spark's own ``changes`` and Iceberg's changelog views have it. All of these say what a change takes away,
    so the rows of some versions are changes in any order: what cancels, cancels. A word that is none of
    ``_change_type`` is left, and refused by what takes the changes.

    >>> import pyarrow as pa
    >>> feed = spark.sql("SELECT 1 AS id, 'UPDATE_AFTER' AS _change_type, 7 AS _commit_version")
    >>> changes_of_feed(feed, TableSchema.of({"id": pa.int32()})).collect()
    [Row(id=1, _row_kind='+U')]
    """
    from pyspark.sql import functions as F

    word = F.col(_CHANGE_TYPE)
    kind = word
    for name, row_kind in _KINDS.items():
        kind = F.when(F.lower(word) == name, row_kind.value).otherwise(kind)
    return as_declared(feed.withColumn(ROW_KIND_COLUMN, kind), schema)


def read_feed(spark: SparkSession, table: DeltaTable) -> DataFrame:
    """The rows of a Delta table, then its changes, as a stream of changes.

    Raises:
        ConfigurationError: there is no Delta table, or it keeps no change feed.
        SchemaError: its columns are others than declared.
    """
    table.check(spark)
    if table.properties(spark).get(FEED, "false").lower() != "true":
        raise ConfigurationError(
            f"{table.shown}: a table with a mirror must keep a change data feed, the Delta table does not; "
            f"write ALTER TABLE {table.in_spark} SET TBLPROPERTIES ('{FEED}' = 'true'), and then start the "
            "mirror, which begins with the rows of that moment"
        )
    reader = spark.readStream.format("delta").option("readChangeFeed", "true")
    # with a limit Delta may give the new files of a version in one micro-batch, and those that they replace
    # in the next one, which would take the new rows away
    feed = reader.option("maxFilesPerTrigger", str(_UNLIMITED)).load(table.path)
    return changes_of_feed(feed, table.schema)
