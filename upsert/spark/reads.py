"""Reads of this project's formats, whose sources the driver makes itself: docs/decisions/0099.

Spark asks a process for an instance of a format's class and for its columns, and another one for the function
that tasks read with and the partitions of a batch. Each loads Arrow and these packages first, while the query
waits.
"""

from __future__ import annotations

import json
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakKeyDictionary

import pyarrow as pa
from cachetools import LRUCache
from py4j.protocol import Py4JError
from pyspark.serializers import CPickleSerializer
from pyspark.sql import DataFrame
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import (
    BooleanType,
    DateType,
    DoubleType,
    FloatType,
    IntegralType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from upsert.spark.batches import arrow_schema, frame_of_rows, has_variant, read_up_to
from upsert.spark.columns import check_spark_has
from upsert.spark.connect import is_connect
from upsert.spark.formats import FORMAT, active
from upsert.spark.java import class_name, items_of, java_of, object_of, remembered, seq_of, texts_of
from upsert.store.read.steps import StepSize

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

_PICKLE: Final[Any] = CPickleSerializer()
"""Spark's own, as its processes have it."""


class SizedReader(DataSourceReader):
    """A reader of a batch that may know before it reads how much there is."""

    @abstractmethod
    def planned(self) -> tuple[Sequence[InputPartition], StepSize | None]:
        """The partitions, and how much they give at most, with all columns."""


def load_stream(
    spark: SparkSession,
    format_: type[DataSource],
    options: Mapping[str, str],
    *,
    reader_lasts: bool,
) -> DataFrame:
    """A stream of a format, with all of its columns.

    Args:
        spark: a session that knows the format.
        format_: the format.
        options: of the read.
        reader_lasts: whether a reader that is made now reads as one does that is made when the query starts;
            for other sources Spark asks a process for the function of tasks then.
    """
    reader = spark.readStream.format(format_.name())
    if is_connect(spark):
        return _loaded_by_server(reader, options, None)
    source = _source(format_, options)
    asked = source.schema()
    if isinstance(asked, StructType):  # else it is a text of ours
        check_spark_has(asked)
    df = reader.options(**options).schema(asked).load()
    _hand_over(df, source, source.streamReader(df.schema) if reader_lasts else None)
    return df


def load_batch(
    spark: SparkSession,
    format_: type[DataSource],
    options: Mapping[str, str],
    schema: StructType | None,
    *,
    is_planned_now: bool = True,
) -> DataFrame:
    """A batch of a format, with some of its columns; all for None.

    If ``is_planned_now`` its partitions are those of now, which suits a read of one state: then it is a
    function of their numbers, not a source, for Spark takes less to make rows of what a function gives. Such
    a read is known by `is_read`, and of a small one Spark knows that it is small. For others Spark asks a
    process for the partitions when the batch runs.
    """
    reader = spark.read.format(format_.name())
    if is_connect(spark):
        return _loaded_by_server(reader, options, schema)
    source = _source(format_, options)
    asked = _asked(source, schema)
    if is_planned_now:
        found = source.reader(asked)
        planned, size = found.planned() if isinstance(found, SizedReader) else (found.partitions(), None)
        parts = tuple(planned)
        if size is None or not _is_small(spark, size, asked):
            numbers, each = _numbers(spark, len(parts)), 1
        else:
            each = max(size.rows // len(parts), 1)
            numbers = spark.range(0, len(parts) * each, 1, len(parts))
        return numbers.mapInArrow(ReadBatch(found, parts, each, format_.name(), options), asked)
    df = reader.options(**options).schema(asked).load()
    _hand_over(df, source)
    return df


def load_few(
    spark: SparkSession,
    format_: type[DataSource],
    options: Mapping[str, str],
    schema: StructType | None,
    most: StepSize,
) -> DataFrame | None:
    """A batch of a format that this process reads at once, in a classic session.

    Its rows are in the plan: what Spark makes of them needs no task in Python. None for more than so much,
    and for a VARIANT, which PySpark does not hand over where it is NULL.
    """
    source = _source(format_, options)
    asked = _asked(source, schema)
    if any(has_variant(field.dataType) for field in asked.fields):
        return None
    reader = source.reader(asked)
    batches = chain.from_iterable(map(reader.read, reader.partitions()))
    rows = read_up_to(batches, most.rows, most.bytes, arrow_schema(asked))
    return None if rows is None else frame_of_rows(spark, rows, asked)


def _asked(source: DataSource, schema: StructType | None) -> StructType:
    """The columns of a read, of which Spark has the types; all that a source has for None."""
    asked = source.schema() if schema is None else schema
    assert isinstance(asked, StructType)  # our formats have one
    check_spark_has(asked)
    return asked


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
    """What a task of a stream runs: it reads the partition that comes as its only row."""

    reader: DataSourceStreamReader

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
        """The rows of the partition."""
        for batch in batches:
            for partition in batch.column(0).to_pylist():
                yield from self.reader.read(_PICKLE.loads(partition))


@dataclass(frozen=True)
class ReadParts:
    """Reads the partitions whose numbers a task is given."""

    reader: DataSourceReader | DataSourceStreamReader
    parts: tuple[InputPartition, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Their rows."""
        for numbers in batches:
            for number in numbers.column("id").to_pylist():
                yield from self._rows(number)

    def _rows(self, number: int) -> Iterator[pa.RecordBatch]:
        for batch in self.reader.read(self.parts[number]):
            assert isinstance(batch, pa.RecordBatch)  # our readers give Arrow
            yield batch


class ReadBatch(ReadParts):
    """Reads the partitions of a batch; its name, which Spark shows in plans, tells what is read.

    A task is given about as many numbers as it reads rows, if these are few: Spark knows how many numbers
    there are, and estimates what is made of them by that. With one number a task, a join of each row with
    many others would be small to it too, and sent to all tasks of the next join.
    """

    each: int
    """How many numbers a task is given, of which the first one tells its partition."""

    def __init__(
        self,
        reader: DataSourceReader,
        parts: tuple[InputPartition, ...],
        each: int,
        format_: str,
        options: Mapping[str, str],
    ) -> None:
        """Of a read of a format with some options."""
        super().__init__(reader, parts)
        object.__setattr__(self, "each", each)
        object.__setattr__(self, "__name__", f"{_READ}{format_} {json.dumps(dict(options))}")

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of the partition."""
        for batch in batches:
            numbers = batch.column("id").to_numpy()
            for first in numbers[numbers % self.each == 0]:
                yield from self._rows(int(first) // self.each)


_READ: Final = "read "
"""Begins the names of such functions."""


def is_read(node: Any) -> bool:
    """Whether a node of a plan reads a batch: a source, or a function that `load_batch` has made."""
    name = class_name(node)
    return name == "DataSourceV2Relation" or (name == "MapInArrow" and _function(node).startswith(_READ))


def read_of(spark: SparkSession, node: Any) -> tuple[str, dict[str, str]]:
    """The format and the options, by names in lower case, of what such a node reads."""
    if class_name(node) == "MapInArrow":
        format_, _, said = _function(node).removeprefix(_READ).partition(" ")
        options = json.loads(said)
    else:
        format_ = str(node.table().name())
        options = texts_of(spark, node.options().asCaseSensitiveMap())
    return format_, {key.lower(): value for key, value in options.items()}


def _function(node: Any) -> str:
    """The name of the function that a node of ``mapInArrow`` calls."""
    return remembered(node, "function", lambda one: str(one.expressions().head().name()))


def _is_small(spark: SparkSession, size: StepSize, asked: StructType) -> bool:
    """Whether a session sends as much to all tasks of a join, which then shuffles no rows of the other table.

    Columns of a fixed width take what they take; of others it is not known which part of a row is theirs.
    """
    most: int = cast("Any", spark)._jsparkSession.sessionState().conf().autoBroadcastJoinThreshold()
    are_fixed = all(isinstance(field.dataType, _FIXED) for field in asked.fields)
    return (size.rows * _WORD * (len(asked.fields) + 1) if are_fixed else size.bytes) <= most


_FIXED: Final = (BooleanType, DateType, DoubleType, FloatType, IntegralType, TimestampNTZType, TimestampType)
_WORD: Final = 8
"""Bytes that a value of these takes in a row, and the row itself."""


def _numbers(spark: SparkSession, count: int) -> DataFrame:
    """The numbers up to ``count``, one a task, in a form of which Spark does not know how few rows it has.

    Else it would take what is made of them for small, and send it to all tasks of a join. They are planned
    once in a session, for it takes some 10 ms.
    """
    with _NUMBERS_LOCK:
        known = _NUMBERS.setdefault(spark, LRUCache(maxsize=64))
        if count not in known:
            numbers: Any = spark.range(0, count, 1, count)._jdf
            known[count] = numbers.queryExecution().toRdd(), numbers.schema()
        rows, schema = known[count]
    return DataFrame(cast("Any", spark)._jsparkSession.internalCreateDataFrame(rows, schema, False), spark)


_NUMBERS: Final[WeakKeyDictionary[SparkSession, LRUCache[int, tuple[Any, Any]]]] = WeakKeyDictionary()
"""Java's RDDs and their columns, by how many numbers they have."""
_NUMBERS_LOCK: Final = threading.Lock()


def _source(format_: type[DataSource], options: Mapping[str, str]) -> DataSource:
    """The source of some options, which has them as Spark's process gives them to it."""
    return format_(cast("dict[str, str]", CaseInsensitiveDict(options)))


def _hand_over(df: DataFrame, source: DataSource, reader: DataSourceStreamReader | None = None) -> None:
    """Give the plan of a read its source and reader; where it has no place for them, Spark asks processes."""
    python = java_of(df.sparkSession).org.apache.spark.sql.execution.datasources.v2.python
    try:
        table = df._jdf.queryExecution().analyzed().table()
        provider = _field(table, "ds").get(table)
        with active(df.sparkSession):  # in which Spark looks for the format, whose session the read is of
            provider.source()
        made = python.PythonDataSourceCreationResult(_PICKLE.dumps(source), df._jdf.schema())
        _field(provider, "dataSourceInPython").set(provider, made)
        if reader is not None:
            read = _PICKLE.dumps((ReadInTask(reader), df.schema))
            provider.setReadInfo(python.PythonDataSourceReadInfo(read, seq_of(df.sparkSession, [])))
    except (Py4JError, TypeError):  # a class that Spark lacks is a package to py4j, which cannot be called
        return


def _field(owner: Any, name: str) -> Any:
    """A private field of the class of an object of Java's."""
    found = owner.getClass().getDeclaredField(name)
    found.setAccessible(True)
    return found


_UNKNOWN: Final = 1 << 62
"""Spark takes what it does not know for as large as can be."""

_OVERHEAD: Final = 8
"""Bytes of a row in Spark's estimates, beside its values."""


def input_size(df: DataFrame, stored: Callable[[Mapping[str, str]], StepSize]) -> StepSize | None:
    """About how many rows, and bytes of them, all that a batch reads has; None if it is not known of a part.

    Args:
        df: a DataFrame of a classic session.
        stored: tells it of a read of a managed table, by its options.
    """
    plan = df._jdf.queryExecution().optimizedPlan()
    rows = size = 0
    for one in (plan, *items_of(plan.subqueriesAll())):
        for found in _inputs(df.sparkSession, one, stored):
            if found is None:
                return None
            rows, size = rows + found.rows, size + found.bytes
    return StepSize(rows, size)


def _inputs(
    spark: SparkSession, node: Any, stored: Callable[[Mapping[str, str]], StepSize]
) -> Iterator[StepSize | None]:
    if is_read(node):
        format_, options = read_of(spark, node)
        yield stored(options) if format_ == FORMAT else None
        return
    children = items_of(node.children())
    for child in children:
        yield from _inputs(spark, child, stored)
    if not children:
        yield _of_leaf(node)


def _of_leaf(node: Any) -> StepSize | None:
    size = int(str(node.stats().sizeInBytes()))
    if size >= _UNKNOWN:
        return None
    columns = items_of(node.output())
    each = _OVERHEAD + sum(int(one.dataType().defaultSize()) for one in columns)
    return StepSize(max(1, size // each), size)


def is_filled_in(df: DataFrame) -> bool:
    """Whether Spark puts something into a plan whenever it runs: the time, the user or the like."""
    patterns = object_of(java_of(df.sparkSession).org.apache.spark.sql.catalyst.trees, "TreePattern")
    filled_in = patterns.CURRENT_LIKE()
    return bool(df._jdf.queryExecution().analyzed().containsPattern(filled_in))
