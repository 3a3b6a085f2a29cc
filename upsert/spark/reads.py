"""Reads of this project's formats, whose sources the driver makes itself: docs/decisions/0099.

Spark asks a process for an instance of a format's class and for its columns, and another one for the function
that tasks read with and the partitions of a batch. Each loads Arrow and these packages first, while the query
waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.serializers import CPickleSerializer
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from upsert.spark.connect import is_connect
from upsert.spark.formats import active
from upsert.spark.java import java_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader


_PICKLE: Final[Any] = CPickleSerializer()
"""Spark's own, as its processes have it."""


def load_stream(
    spark: SparkSession,
    format_: type[DataSource],
    options: Mapping[str, str],
    schema: StructType | None = None,
    *,
    reader_lasts: bool = False,
) -> DataFrame:
    """A stream of a format.

    Args:
        spark: a session that knows the format.
        format_: the format.
        options: of the read.
        schema: the columns to read; if None, those of the source.
        reader_lasts: whether a reader that is made now reads as one does that is made when the query starts;
            for other sources Spark asks a process for the function of tasks then.
    """
    reader = spark.readStream.format(format_.name())
    if is_connect(spark):
        return _loaded_by_server(reader, options, schema)
    source = _source(format_, options)
    df = reader.options(**options).schema(source.schema() if schema is None else schema).load()
    _hand_over(df, source, source.streamReader(df.schema) if reader_lasts else None)
    return df


def load_batch(
    spark: SparkSession,
    format_: type[DataSource],
    options: Mapping[str, str],
    schema: StructType | None = None,
    *,
    is_planned_now: bool = True,
) -> DataFrame:
    """A batch of a format, with the same arguments.

    If ``is_planned_now`` its partitions are those of now, which suits a read of one state. For others Spark
    asks a process for them when the batch runs.
    """
    reader = spark.read.format(format_.name())
    if is_connect(spark):
        return _loaded_by_server(reader, options, schema)
    source = _source(format_, options)
    df = reader.options(**options).schema(source.schema() if schema is None else schema).load()
    if not is_planned_now:
        _hand_over(df, source)
        return df
    planned = source.reader(df.schema)
    _hand_over(df, source, planned, planned.partitions())
    return df


def _loaded_by_server(
    reader: DataFrameReader | DataStreamReader, options: Mapping[str, str], schema: StructType | None
) -> DataFrame:
    """A read whose source a server of Spark Connect makes; a path stands in its plan as such."""
    if schema is not None:
        reader = reader.schema(schema)
    given = dict(options)
    path = given.pop("path", None)
    return reader.options(**given).load(path)


@dataclass(frozen=True)
class ReadInTask:
    """What a task runs: it reads the partition that comes as its only row."""

    reader: DataSourceReader | DataSourceStreamReader

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
        """The rows of the partition."""
        for batch in batches:
            for partition in batch.column(0).to_pylist():
                yield from self.reader.read(_PICKLE.loads(partition))


def _source(format_: type[DataSource], options: Mapping[str, str]) -> DataSource:
    """The source of some options, which has them as Spark's process gives them to it."""
    return format_(cast("dict[str, str]", CaseInsensitiveDict(options)))


def _hand_over(
    df: DataFrame,
    source: DataSource,
    reader: DataSourceReader | DataSourceStreamReader | None = None,
    partitions: Sequence[InputPartition] = (),
) -> None:
    """Give the plan of a read its source and reader; where it has no place for them, Spark asks processes.

    The partitions are those of a batch; a stream's are asked for with each micro-batch.
    """
    jvm = java_of(df.sparkSession)
    python = jvm.org.apache.spark.sql.execution.datasources.v2.python
    try:
        table = df._jdf.queryExecution().analyzed().table()
        provider = _field(table, "ds").get(table)
        with active(df.sparkSession):  # in which Spark looks for the format, whose session the read is of
            provider.source()
        made = python.PythonDataSourceCreationResult(_PICKLE.dumps(source), df._jdf.schema())
        _field(provider, "dataSourceInPython").set(provider, made)
        if reader is not None:
            read = _PICKLE.dumps((ReadInTask(reader), df.schema))
            parts = jvm.org.apache.spark.api.python.PythonUtils.toSeq([*map(_PICKLE.dumps, partitions)])
            provider.setReadInfo(python.PythonDataSourceReadInfo(read, parts))
    except (Py4JError, TypeError):  # a class that Spark lacks is a package to py4j, which cannot be called
        return


def _field(owner: Any, name: str) -> Any:
    """A private field of the class of an object of Java's."""
    found = owner.getClass().getDeclaredField(name)
    found.setAccessible(True)
    return found
