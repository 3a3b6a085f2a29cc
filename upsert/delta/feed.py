"""The change feed of a table as changes: each row with what happened to it, old images included.

A feed is a DataFrame with the columns of a table and ``_change_type``, as Delta's ``readChangeFeed``, Spark's
own ``changes`` and Iceberg's changelog views have it. All of these say what a change takes away, so the rows
of some versions are changes in any order: what cancels, cancels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from upsert.delta.table import FEED, DeltaTable
from upsert.errors import ConfigurationError
from upsert.materializer.keyed_sink import as_declared
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.schema import TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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

    A word that is none of ``_change_type`` is left, and refused by what takes the changes.

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
