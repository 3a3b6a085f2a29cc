"""``INSERT``: the columns of a query, by their places, into those of a table; a batch, or a stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from upsert import types
from upsert.catalog.connectors import definition_in
from upsert.catalog.results import Done, Result, Running
from upsert.catalog.run import jobs
from upsert.catalog.run.definitions import refuse_view
from upsert.catalog.run.jobs import needed
from upsert.catalog.run.queries import check_stable, frame
from upsert.errors import ConfigurationError, CorruptTableError, SchemaError
from upsert.managed import frames
from upsert.managed.writer import sink_of
from upsert.materializer.choice import Sink, mode_of
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import Column, TableSchema
from upsert.sql import statements as s
from upsert.store import Table
from upsert.store.rows.merge_rules import DEDUPLICATE
from upsert.store.rows.partitions import specified
from upsert.types import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession

    from upsert.catalog.connectors import ConnectorTable
    from upsert.catalog.context import Context


def _spark_type(column: Column) -> Any:
    from pyspark.sql.types import StructType

    field = {"name": "c", "type": types.to_json(column.type), "nullable": True, "metadata": {}}
    return StructType.fromJson({"type": "struct", "fields": [field]})["c"].dataType


def _is_assignable(given: Any, wanted: Any) -> bool:
    """Whether SQL lets values of one type go into a column of another; numbers that do not fit are errors."""
    from pyspark.sql import types as t

    times = (t.DateType, t.TimestampType, t.TimestampNTZType)
    if isinstance(given, t.NullType):
        return True
    if isinstance(given, t.NumericType) and isinstance(wanted, t.NumericType):
        return True
    if isinstance(given, times) and isinstance(wanted, times):
        return True
    if isinstance(wanted, t.StringType):
        return isinstance(given, t.AtomicType) and not isinstance(given, t.BinaryType)
    if isinstance(given, t.ArrayType) and isinstance(wanted, t.ArrayType):
        own, other = given.elementType, wanted.elementType
        return _is_assignable(own, other) or own == other
    try:
        names = {types.sql_name(types.from_json(one.jsonValue())) for one in (given, wanted)}
        return len(names) == 1
    except CorruptTableError:  # a type that no table can have
        return False


def assigned_type(column: Column, given: Any, subject: str) -> Any:
    """Spark's type of a column that gets values of a type; refuses what SQL does not let go into it."""
    wanted = _spark_type(column)
    if not _is_assignable(given, wanted):
        name = types.sql_name(column.type)
        raise SchemaError(
            f"{subject}: column {column.name!r} must be {name}, got {given.simpleString().upper()}; write "
            f"CAST(… AS {name}) in the query"
        )
    return wanted


START_FROM: Final = "start-from"
"""Option of a streaming statement: checkpoint of a stopped query from which its delta joins continue."""

_OVERWRITE_MODE: Final = "partition-overwrite-mode"


def planned(context: Context, statement: s.Insert, spark: SparkSession | None) -> Callable[[], Result]:
    """What runs an ``INSERT``, after all checks that are possible before it runs."""
    is_streaming = context.options.is_streaming
    start_from = statement.options.get(START_FROM)
    what = _what(statement)
    if start_from is not None and not is_streaming:
        raise ConfigurationError(
            f"{what}: option {START_FROM!r} must go with a stream, got {start_from!r} for a batch; leave it "
            "out, or SET 'execution.runtime-mode' = 'streaming'"
        )
    target = target_of(context, statement)
    if is_streaming and statement.overwrite:
        raise ConfigurationError(
            f"{what}: a stream cannot overwrite, for it never has all rows; use INSERT INTO, or "
            "SET 'execution.runtime-mode' = 'batch'"
        )
    session = needed(spark, what, context.options.forwarded())
    rows = target.fitted(frame(context, session, statement.query, is_streaming=is_streaming))
    if rows.isStreaming:
        check_stable(context, statement.query, target.key, what)
        return target.planned(context, rows, start_from, replaces=_replaces_rows(context, statement))
    if statement.query.is_list:
        rows = target.last_of_each_key(rows)

    def write() -> Result:
        target.write(rows, overwrite=statement.overwrite)
        return Done(what, "overwritten" if statement.overwrite else "written")

    return write


def _what(statement: s.Insert) -> str:
    return f"INSERT {'OVERWRITE' if statement.overwrite else 'INTO'} {statement.name}"


def target_of(context: Context, statement: s.Insert) -> Target:
    """The table of a statement in this session."""
    options = {key: value for key, value in statement.options.items() if key != START_FROM}
    if context.options.is_streaming:
        options = _with_materialize(context, statement.name, options)
    return Target.of(context, replace(statement, options=options), _what(statement))


@dataclass(frozen=True)
class Target:
    """The table that rows go into.

    Attributes:
        what: the statement, first words of every refusal.
        table: a managed one, or one with a connector, its options replaced by those of the hint.
        columns: those that the query gives, in its order.
        partition: values of columns that all rows have.
        dynamic: columns of PARTITION without a value: of partitions only those in which rows are written are
            overwritten.
    """

    what: str
    name: str
    schema: TableSchema
    table: Table | ConnectorTable
    columns: tuple[Column, ...]
    partition: Mapping[str, Any]
    dynamic: tuple[str, ...]
    options: Mapping[str, str]

    @classmethod
    def of(cls, context: Context, statement: s.Insert, what: str) -> Target:
        """The target of a statement, which may name columns that the table has and that can be written."""
        schema = context.schema(statement.name)
        connected = context.connected(statement.name, statement.options)
        if connected is not None and (statement.overwrite or statement.partition or statement.dynamic):
            clause = "OVERWRITE" if statement.overwrite else "PARTITION"
            raise ConfigurationError(
                f"{what}: {clause} needs a managed table, got one with a connector; leave it out"
            )
        writable = {c.name: c for c in schema.columns if c.metadata is None or not c.virtual}
        for name in (*statement.partition, *statement.dynamic):
            if name not in schema.partitioned_by:
                known = ", ".join(schema.partitioned_by) or "none"
                raise SchemaError(f"{what}: PARTITION names {name!r}; partition columns are {known}")
        given = {
            name: value
            for name, value in statement.partition.items()
            if not pa.types.is_string(schema.type_of(name))  # any value has a text
        }
        specified(schema, given, what)
        chosen = statement.columns
        if chosen is None:
            chosen = tuple(name for name in writable if name not in statement.partition)
        for name in chosen:
            cls._check_writable(what, name, schema, writable)
        if repeated := next((name for name in chosen if chosen.count(name) > 1), None):
            raise SchemaError(f"{what}: column {repeated!r} is named twice")
        if both := next((name for name in chosen if name in statement.partition), None):
            raise SchemaError(
                f"{what}: column {both!r} has a value in PARTITION, and one in the query; leave one out"
            )
        table = context.managed(statement.name) if connected is None else connected
        if isinstance(table, Table):
            refuse_view(table, what)
        if lacking := next((name for name in statement.dynamic if name not in chosen), None):
            raise SchemaError(
                f"{what}: PARTITION names {lacking!r} without a value, and the query does not give it; write "
                f"{lacking} = value, or name it among the columns"
            )
        columns = tuple(writable[name] for name in chosen)
        clauses = statement.partition, statement.dynamic, statement.options
        return cls(what, statement.name, schema, table, columns, *clauses)

    @staticmethod
    def _check_writable(what: str, name: str, schema: TableSchema, writable: Mapping[str, Column]) -> None:
        if name in writable:
            return
        if computed := next((column for column in schema.computed if column.name == name), None):
            why = "computed from others" if computed.metadata is None else "METADATA, which is only read"
            raise SchemaError(f"{what}: column {name!r} is {why}; leave it out")
        if name in schema.names:
            raise SchemaError(
                f"{what}: column {name!r} is VIRTUAL metadata, which is only read; leave it out"
            )
        raise SchemaError(f"{what}: unknown column {name!r}; columns are {', '.join(writable)}")

    def fitted(self, df: DataFrame) -> DataFrame:
        """The query's columns under the names of the table's, of its types, with all that the table has."""
        rows = df.drop(ROW_KIND_COLUMN) if df.isStreaming else df
        if len(rows.columns) != len(self.columns):
            raise SchemaError(
                f"{self.what}: the query must give {len(self.columns)} columns "
                f"({', '.join(column.name for column in self.columns)}), got {len(rows.columns)} "
                f"({', '.join(rows.columns)}); name the columns after the table's name, or select others"
            )
        named = rows.toDF(*(column.name for column in self.columns))
        fields = dict(zip(named.columns, named.schema.fields, strict=True))
        given = {column.name: self._cast(column, fields[column.name].dataType) for column in self.columns}
        written = (column for column in self.schema.columns if column.metadata is None or not column.virtual)
        return named.select(*(self._expression(column, given) for column in written))

    @property
    def sink(self) -> Sink:
        """What counts of the table where changes go into it."""
        if isinstance(self.table, Table):
            return sink_of(self.table, mode_of(self.options, self.what))
        return self.table.sink

    @property
    def key(self) -> tuple[str, ...]:
        """The columns by which a row that goes in replaces an older one; () if rows are counted."""
        return self.schema.primary_key if isinstance(self.table, Table) else self.table.sink_key

    def last_of_each_key(self, rows: DataFrame) -> DataFrame:
        """Of each key the row that comes last in a list of rows, where rows replace each other as they come.

        Tasks share the rows, and their order is lost then.
        """
        key = self.key
        if not key or self._has_order:
            return rows
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        number, rank = (_free_name(name, rows.columns) for name in ("number", "rank"))
        of_key = Window.partitionBy(*(F.col(quoted(name)) for name in key)).orderBy(F.desc(number))
        numbered = rows.withColumn(number, F.monotonically_increasing_id())
        newest = numbered.withColumn(rank, F.row_number().over(of_key)).where(F.col(rank) == 1)
        return newest.drop(number, rank)

    @property
    def _has_order(self) -> bool:
        """Whether the table itself decides between two rows of one key."""
        if not isinstance(self.table, Table):
            return self.table.has_order
        merge = self.table.options.merge
        return merge.engine != DEDUPLICATE or bool(merge.sequence)

    def _expression(self, column: Column, given: Mapping[str, SparkColumn]) -> SparkColumn:
        from pyspark.sql import functions as F

        if column.name in given:
            return given[column.name]
        value = self.partition.get(column.name)
        if value is None and not column.nullable:
            raise SchemaError(
                f"{self.what}: column {column.name!r} is NOT NULL, and the statement gives it no value"
            )
        return F.lit(value).cast(_spark_type(column)).alias(column.name)

    def _cast(self, column: Column, given: Any) -> SparkColumn:
        from pyspark.sql import functions as F

        own = F.col(quoted(column.name))
        if given == _spark_type(column):
            return own
        return own.cast(assigned_type(column, given, self.what)).alias(column.name)

    def write(self, rows: DataFrame, *, overwrite: bool) -> None:
        """Write the rows of a batch."""
        if not isinstance(self.table, Table):
            self.table.write(rows)
            return
        options = dict(self.options)
        if overwrite and self.dynamic:
            options = {_OVERWRITE_MODE: "dynamic", **{key.lower(): text for key, text in options.items()}}
        if overwrite and self.partition:
            options["partition"] = json.dumps({name: _plain(value) for name, value in self.partition.items()})
        frames.write(rows, self.table.path, options, overwrite=overwrite)

    def planned(
        self, context: Context, rows: DataFrame, start_from: str | None, *, replaces: bool
    ) -> Callable[[], Result]:
        """What starts the query of a stream, an aggregate without a watermark if ``replaces``.

        Without a micro-batch of its own it continues from the checkpoint ``start_from``, if that is not None.
        """
        table = self.table
        uuid = table.uuid if isinstance(table, Table) else ""
        job = jobs.Job.of(context, self.name, self.what, uuid)
        start_from = None if job.has_begun else start_from
        changes = context.optimized(rows, self.name, self.sink, start_from)
        if isinstance(table, Table):
            writer = frames.write_changes(changes, table.path, self.options)
        elif replaces and table.sink_key and ROW_KIND_COLUMN not in changes.columns:
            writer = table.write_upsert(changes).outputMode("update")
        else:
            writer = table.write_changes(changes)
        settings = job.settings(context.options)
        return lambda: Running(self.what, job.started(writer, settings), job.checkpoint)


def _with_materialize(context: Context, name: str, options: Mapping[str, str]) -> dict[str, str]:
    """The options of a stream into a table, and ``sink.materialize`` of the session if that counts there."""
    if (connected := context.connected(name)) is not None:
        definition = definition_in(context.databases.resolve(name).existing())
        key, given = connected.sink_key, {} if definition is None else definition.options
    else:
        table = context.managed(name).definition
        key, given = table.schema.primary_key, table.given
    return context.options.with_materialize(options, given) if key else dict(options)


def _replaces_rows(context: Context, statement: s.Insert) -> bool:
    """Whether the query is an aggregate without a watermark: later rows of a group replace earlier ones."""
    if statement.query.tree.args.get("group") is None:
        return False
    refs = (context.databases.resolve(reference.name) for reference in statement.query.references)
    return not any(ref.exists and context.schema(ref.qualified).watermark for ref in refs)


def _free_name(name: str, taken: Sequence[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, date | Decimal) else value
