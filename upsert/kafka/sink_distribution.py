"""Who writes which rows: each key has one task, in every micro-batch and every replay of it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from upsert import types
from upsert.kafka.cleanup import cleanup_warning
from upsert.kafka.declaration import given_options
from upsert.kafka.sink import record_maker
from upsert.kafka.sink_topics import partitions_of
from upsert.kafka.table import SPARK_FORMATS, KafkaTable
from upsert.spark_formats import register

_OWN = ("sink.parallelism", "sink.row-order", "sink.micro-batch", "sink.materialize")


@dataclass(frozen=True)
class Distribution:
    """How the rows of a query are shared among tasks, and the format and options that write them so.

    Attributes:
        format: name of the Spark format.
        options: all of its options; may hold secrets.
        tasks: how many tasks there are; None: as many as the query has.
        task: Spark SQL for the task of a row; None where any will do.
    """

    format: str
    options: dict[str, str] = field(repr=False)
    tasks: int | None
    task: str | None

    def of(self, df: DataFrame) -> DataFrame:
        """The rows, so shared."""
        from pyspark.sql.functions import expr

        if self.tasks is None:
            return df
        if self.task is None:
            return df.coalesce(self.tasks)
        return df.repartitionById(self.tasks, expr(self.task))


def distribution_of(table: KafkaTable, df: DataFrame) -> Distribution:
    """How the rows of a DataFrame are brought into a table; its topics are there, or are created now.

    Rows of an upsert table go to the task ``pmod(xxhash64(key), tasks)``, of ``sink.parallelism`` tasks or as
    many as the topic has partitions. Other tables keep every row, in the tasks that have them, or in at most
    ``sink.parallelism`` ones.

    Raises:
        SchemaError: the columns do not fit the table.
        ConfigurationError: a topic is missing.
    """
    record_maker(table, df.schema)
    partitions = partitions_of(table)
    if warning := cleanup_warning(table):
        warnings.warn(warning, stacklevel=4)  # as users call this through write_changes
    register(df.sparkSession)
    options = {name: text for name, text in given_options(table).items() if name.lower() not in _OWN}
    tasks: int | None = table.values["sink.parallelism"]
    task = None
    if table.is_upsert:
        tasks = tasks or max(partitions.values())
        task = _task_of_key(table, tasks)
        options |= {"sink.parallelism": str(tasks), "sink.row-order": "none", "sink.materialize": "none"}
    return Distribution(SPARK_FORMATS[table.connector], options, tasks, task)


def _task_of_key(table: KafkaTable, tasks: int) -> str:
    # Spark hashes an INT otherwise than a BIGINT: what counts is the table's type, in which tasks check it
    columns = (table.schema.column(name) for name in table.primary_key)
    casts = (f"CAST(`{c.name.replace('`', '``')}` AS {types.sql_name(c.type)})" for c in columns)
    return f"CAST(pmod(xxhash64({', '.join(casts)}), {tasks}L) AS INT)"
