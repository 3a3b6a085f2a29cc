"""The rows that statements find with those of another query: of a large target those that few rows may meet.

They are those that ``MERGE INTO`` joins, or that ``WHERE column IN (SELECT …)`` of DELETE and UPDATE finds. A
source with few rows is read once, before the statement is planned: its rows are in the plan, and the values
of its columns that are compared name the rows of the target (docs/decisions/0125).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import types as t

from upsert.catalog.run.assignments import spark_type
from upsert.catalog.run.queries import frame, not_logged
from upsert.catalog.run.scans import Scan, is_read_otherwise, zone
from upsert.errors import SchemaError
from upsert.managed.options import SCAN_WHERE
from upsert.managed.reader import read_size
from upsert.schema import Column, TableSchema
from upsert.spark.batches import collected, frame_of_rows
from upsert.spark.connect import is_connect
from upsert.spark.reads import input_size, is_filled_in
from upsert.sql import statements as s
from upsert.sql.in_query import in_query
from upsert.sql.merge_into import over_given_source
from upsert.sql.predicates import pushed
from upsert.store.predicate import where_to_json
from upsert.store.read.steps import StepSize

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from upsert.catalog.context import Context
    from upsert.sql.query import QueryText, Reference
    from upsert.store import Table
    from upsert.store.read.snapshot import Snapshot

Named = tuple[str, str, list[Any]]
"""A column of the target, ``in``, and the values of which it has one."""

LARGE_TARGET: Final = 200_000
"""A target of fewer rows is read in less time than it takes to find out what of it is needed."""

MANY_BUCKETS: Final = 8
"""A target with rows in so many is not: each is read by a task of its own, however few rows it has."""

MOST_ROWS: Final = 5_000
"""A source that reads or has more rows is joined as any other: it would be computed twice."""

_MOST_BYTES: Final = 32 << 20
"""So is one that reads more bytes, as they are stored, or whose rows take more in this process."""

FEW_ROWS: Final = 5_000
"""So many rows of a target this process reads, and commits what becomes of them: docs/decisions/0129."""

_TIMES: Final = (t.DateType, t.TimestampType, t.TimestampNTZType)
_COMPARED: Final = (t.BooleanType, t.StringType, t.BinaryType, t.DecimalType, *_TIMES)
"""Types whose values are equal to the store where they are equal to Spark; so are whole numbers of any."""

_HANDED_OVER: Final = (*_COMPARED, t.IntegralType, t.FloatType, t.DoubleType, t.NullType)
"""Types of columns that come back from Arrow as they were."""


@dataclass(frozen=True)
class MergedRows:
    """The rows of a MERGE.

    Attributes:
        joined: those of its query.
        named: what is true of each row of the target that can be among them; of others it may be too.
        are_few: whether it is known that those of both tables are few; they are in one partition then.
    """

    joined: DataFrame
    named: Sequence[Named] = ()
    are_few: bool = False


def merged_rows(
    context: Context, spark: SparkSession, statement: s.Merge, table: Table, snapshot: int
) -> MergedRows:
    """What a resolved statement joins: its source, and its target as of a snapshot."""
    return _of_few(context, spark, statement, table, snapshot) or MergedRows(
        frame(context, spark, statement.rows, is_streaming=False, pinned={statement.name: snapshot})
    )


def _of_few(
    context: Context, spark: SparkSession, statement: s.Merge, table: Table, snapshot: int
) -> MergedRows | None:
    """The rows, of a source with few ones; None if it is another one, or if it names none of many."""
    is_whole = any(one.rows is s.MergeRows.NOT_MATCHED_BY_SOURCE for one in statement.clauses)
    target = table.snapshot(snapshot)
    is_small = target.info.rows <= FEW_ROWS
    if not _takes_long(target) or (not is_small and (is_whole or not statement.equal)):
        return None
    if is_connect(spark) or is_read_otherwise(spark, statement.rows.text):
        return None
    query = over_given_source(statement)
    if len(query.references) > 2:
        return None  # another table would be of a later state than where the source reads it
    own = replace(statement.source, args=statement.rows.args)
    source = frame(context, spark, own, is_streaming=False, pinned={statement.name: snapshot})
    pairs = [] if is_whole else list(_comparable(statement, table.schema, source.schema))
    if not (pairs or is_small) or (found := _few_rows(source)) is None:
        return None
    values = collected(found)
    named = [one for column, place in pairs if (one := _named(column, values.column(place))) is not None]
    of, is_hashed = Given(source, found), bool(statement.equal)
    joined = _over_given(context, spark, query, table.schema, snapshot, named, of, is_hashed=is_hashed)
    return None if joined is None else MergedRows(joined.rows, named, joined.are_few)


def _takes_long(target: Snapshot) -> bool:
    """Whether to read a target takes longer than to find out what of it is needed."""
    return target.info.rows >= LARGE_TARGET or len(target.files.buckets()) >= MANY_BUCKETS


class FoundRows(NamedTuple):
    """The rows of a DELETE or UPDATE, or what is made of them, and whether it is known that they are few."""

    rows: DataFrame
    are_few: bool

    def made(self, made: Callable[[DataFrame], DataFrame]) -> FoundRows:
        """What a function makes of the rows, about as many."""
        return FoundRows(made(self.rows), self.are_few)


def rows_found(
    context: Context, spark: SparkSession, name: str, query: QueryText, table: Table, snapshot: int
) -> FoundRows:
    """The rows of a DELETE or UPDATE, in whose query the table is that of a snapshot."""
    if (found := _found_here(context, spark, query, snapshot)) is not None:
        return FoundRows(found, are_few=True)
    if (by_source := _found_in_few(context, spark, name, query, table, snapshot)) is not None:
        return by_source
    rows = frame(context, spark, query, is_streaming=False, pinned={name: snapshot})
    return FoundRows(rows, are_few=False)


def _found_here(context: Context, spark: SparkSession, query: QueryText, snapshot: int) -> DataFrame | None:
    """The rows, of a table of which this process reads what may be among them; None if that is much."""
    if is_connect(spark) or is_read_otherwise(spark, query.text) or len(query.references) > 1:
        return None
    target = Scan(_at(query.references[0], snapshot), is_streaming=False, subject=query.subject)
    rows = target.few_rows(context, spark, few())
    return None if rows is None else frame(context, spark, query, is_streaming=False, given={0: rows})


def _at(reference: Reference, snapshot: int) -> Reference:
    """A table of a query as of a snapshot."""
    return replace(reference, options={"scan.mode": "from-snapshot", "scan.snapshot-id": str(snapshot)})


def _found_in_few(
    context: Context, spark: SparkSession, name: str, query: QueryText, table: Table, snapshot: int
) -> FoundRows | None:
    """The rows, of a column that is among few values; None if it is another condition, or not known."""
    if not _takes_long(table.snapshot(snapshot)):
        return None
    if is_connect(spark) or is_read_otherwise(spark, query.text):
        return None
    found = in_query(query)
    if found is None or len(found.over_given.references) > 2:
        return None  # another table would be of a later state than where the query reads it
    columns = [column for column in table.schema.columns if column.name.lower() == found.column.lower()]
    try:
        source = frame(context, spark, found.rows, is_streaming=False, pinned={name: snapshot})
    except SchemaError:  # it has columns of the row
        return None
    if not len(columns) == len(source.columns) == 1:
        return None
    are_alike = _are_alike(spark_type(columns[0]), source.schema[0].dataType)
    if not are_alike or (rows := _few_rows(source)) is None:
        return None
    one = _named(columns[0], collected(rows).column(0).drop_null())
    named = [] if one is None else [one]
    return _over_given(context, spark, found.over_given, table.schema, snapshot, named, Given(source, rows))


class Given(NamedTuple):
    """A query, and its rows."""

    query: DataFrame
    rows: pa.Table


def _over_given(
    context: Context,
    spark: SparkSession,
    query: QueryText,
    schema: TableSchema,
    snapshot: int,
    named: Sequence[Named],
    source: Given,
    *,
    is_hashed: bool = False,
) -> FoundRows | None:
    """A query of a target and of given rows, its two references; None if it needs what these do not have.

    For ``is_hashed`` see `in_one_task`.
    """
    reference = _at(query.references[0], snapshot)
    if named:
        where = where_to_json([*named, *pushed(reference.where, schema, zone(spark))])
        reference = replace(reference, options={**reference.options, SCAN_WHERE: where})
    target = Scan(reference, is_streaming=False, subject=query.subject)
    own = target.few_rows(context, spark, few())
    given = {1: frame_of_rows(spark, source.rows, source.query.schema)}
    if own is not None:
        both = {0: own, **given}
        given = {place: in_one_task(rows, is_hashed=is_hashed) for place, rows in both.items()}
    else:
        given[0] = target.rows(context, spark)
    try:
        found = frame(context, spark, query, is_streaming=False, given=given)
    except SchemaError:  # only the source itself has a column that it does not list, as _metadata of files
        return None
    if is_filled_in(source.query) and is_filled_in(found):
        return None  # they would have two times
    return FoundRows(found, are_few=own is not None)


def few() -> StepSize:
    """As much of a target as this process reads."""
    return StepSize(FEW_ROWS, _MOST_BYTES)


def in_one_task(few: DataFrame, *, is_hashed: bool) -> DataFrame:
    """Few rows as one partition, so that joins and groups move none.

    ``is_hashed`` says that they are joined by equal values: then a hint lets Spark send them nowhere either.
    """
    rows = few.coalesce(1)
    return rows.hint("shuffle_hash") if is_hashed else rows  # Spark warns of one that it cannot follow


def _comparable(
    statement: s.Merge, schema: TableSchema, source: t.StructType
) -> Iterator[tuple[Column, int]]:
    """The columns of the target that can be named, with the places of those of the source that they equal."""
    places: dict[str, list[int]] = {}
    for place, field in enumerate(source.fields):
        places.setdefault(field.name.lower(), []).append(place)
    for target, name in statement.equal:
        columns = [column for column in schema.columns if column.name.lower() == target]
        found = places.get(name, [])
        if len(columns) == len(found) == 1 and _are_alike(spark_type(columns[0]), source[found[0]].dataType):
            yield columns[0], found[0]


def _are_alike(one: t.DataType, other: t.DataType) -> bool:
    """Whether values of two types are equal to Spark just where they are to the store."""
    if isinstance(one, t.IntegralType):
        return isinstance(other, t.IntegralType)
    return one == other and isinstance(one, _COMPARED)


def _few_rows(source: DataFrame) -> pa.Table | None:
    """All rows of a source, if these are few; None if not, or if Arrow does not have all of their values."""
    names = {name.lower() for name in source.columns}
    if source.isStreaming or len(names) < len(source.columns):
        return None
    if not all(map(_is_handed_over, source.schema.fields)):
        return None
    try:
        with not_logged():
            size = input_size(source, read_size)
            if size is None or size.rows > MOST_ROWS or size.bytes > _MOST_BYTES:
                return None
            found = source.limit(MOST_ROWS + 1).toArrow()
    except PySparkException:  # the join tells it, if a clause needs the value that has failed
        return None
    return found if found.num_rows <= MOST_ROWS and found.nbytes <= _MOST_BYTES else None


def _is_handed_over(field: t.StructField) -> bool:
    if isinstance(field.dataType, t.StringType):
        return field.dataType == t.StringType()  # in no other order, and of any length
    return isinstance(field.dataType, _HANDED_OVER)


def _named(column: Column, values: pa.ChunkedArray) -> Named | None:
    """What is true of a column that equals one of some values; None if not all of these can be told."""
    distinct = pc.unique(values)
    if distinct.null_count and column.nullable:
        return None  # <=> finds the rows without a value
    try:
        return column.name, "in", distinct.drop_null().to_pylist()
    except (ValueError, OverflowError):  # a time beyond those of Python, or a text that is none
        return None
