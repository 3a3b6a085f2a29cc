"""Kafka tables as DataFrames: what ``Catalog`` gives its users."""

from __future__ import annotations

import warnings
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from upsert.kafka.cleanup import cleanup_warning
from upsert.kafka.declaration import given_options
from upsert.kafka.options import OPTIONS
from upsert.kafka.table import SPARK_FORMATS, KafkaTable
from upsert.spark_formats import register

_KEYS: Final = {
    name: option.key
    for options in OPTIONS.values()
    for option in options
    for name in (option.key, *option.aliases)
}
_KEYWORDS: Final = {name.replace(".", "_").replace("-", "_"): key for name, key in _KEYS.items()}


def read_changes(spark: SparkSession, table: KafkaTable, **options: object) -> DataFrame:
    """A table as a streaming DataFrame: its columns, then ``_row_kind`` where its rows are changes.

    Args:
        spark: the session; the formats are registered in it.
        table: the table.
        **options: those of the connector, as keywords: ``changelog="upsert"``,
            ``max_rows_per_trigger=10_000``. For this query they replace those of the table.

    Raises:
        ConfigurationError: an option is unknown or wrong, or a topic is missing.
        KafkaUnavailableError: the brokers do not answer.
    """
    changed = _changed(table, options)
    if warning := cleanup_warning(changed):
        warnings.warn(warning, stacklevel=4)  # as the catalog calls this
    register(spark)
    reader = spark.readStream.format(SPARK_FORMATS[changed.connector])
    return reader.options(**given_options(changed)).load()


def read(spark: SparkSession, table: KafkaTable) -> DataFrame:
    """The rows that a table holds now, as a batch DataFrame.

    Of an upsert topic these are the rows that are not deleted, without ``_row_kind``; of a topic of changes
    the changes, with it; of other topics all rows.
    """
    register(spark)
    reader = spark.read.format(SPARK_FORMATS[table.connector]).options(**given_options(table))
    return reader.option("row-kind", str(not table.is_upsert).lower()).load()


def _changed(table: KafkaTable, options: dict[str, object]) -> KafkaTable:
    if not options:
        return table
    new = {_KEYWORDS.get(keyword, keyword): str(value) for keyword, value in options.items()}
    given = {name: text for name, text in table.given.items() if _KEYS.get(name.lower(), name) not in new}
    return KafkaTable.called(table.name, table.connector, table.schema, given | new)
