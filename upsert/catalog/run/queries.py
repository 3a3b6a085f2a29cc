"""Queries: tables of the catalog are views of Spark while Spark reads the text."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from pyspark.errors import AnalysisException, ParseException
from pyspark.logger import PySparkLogger
from pyspark.sql import functions as F

from upsert.catalog.context import Context, OfText, Unnested
from upsert.catalog.create_as.create_as import TableFromQuery
from upsert.catalog.results import Done, Found, Frame, Live, Materialized, Result, Running
from upsert.catalog.run import jobs
from upsert.catalog.run.jobs import needed
from upsert.catalog.run.scans import STATES, Scan, as_read_by, unstable_column
from upsert.catalog.run.unknown_columns import taken_for_a_field, unknown_column
from upsert.catalog.run.without_spark.settings import Settings
from upsert.catalog.run.without_spark.statements import selected, selected_later
from upsert.catalog.session import DROP_ON_CANCEL, RESULT_MODE, TRIGGER
from upsert.catalog.system_tables import split
from upsert.errors import (
    ConfigurationError,
    DatabaseNotFoundError,
    SchemaError,
    StorageError,
    TableNotFoundError,
    UpsertError,
)
from upsert.kafka.options import CONNECTOR_ALIASES, UPSERT
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import Index
from upsert.spark.connect import is_connect
from upsert.spark.variables import with_variables
from upsert.sql import statements as s
from upsert.sql.dialect import Revision, placed, position
from upsert.sql.flink_words import is_processing_time
from upsert.sql.query import AsOfKind, QueryText, Reference
from upsert.sql.show_create import WAS_THERE
from upsert.types import quoted
from upsert.views.view import ViewText, within

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


_VIEW: Final = "_pyspark_connect_temp_view_"
"""Before the name of a table while Spark reads a query; over Connect PySpark itself names them so."""
_STREAM_IN_SUBQUERY: Final = "INVALID_SUBQUERY_EXPRESSION.STREAMING_QUERY"
_NO_FIELD: Final = "INVALID_EXTRACT_BASE_FIELD_TYPE"
_SPARKS_LOGS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_IS_LOGGED: Final = ContextVar("_IS_LOGGED", default=True)
_POSITION: Final = re.compile(r"\(?line (\d+),? pos (\d+)\)?")
_NAMES: Final = ("_NOT_FOUND", "UNRESOLVED_ROUTINE")
"""Of these Spark says more, about its own catalogs, below the first line."""
_NOISE: Final = re.compile(r"\.?(?<!\s)\s*+(SQLSTATE: \w++)?\.?\s*+(;\s*+line \d++ pos \d++;?\s*+)?$")


def select(context: Context, statement: s.Select, spark: SparkSession | None) -> Result:
    """A query: a batch DataFrame, or in streaming mode its changes, or the rows that result from them.

    Where there is no session, or rows are wanted anyway, a query that needs none gives its rows; else its
    DataFrame finds them so, in the states that it reads, when they are asked of the result.
    """
    own = jobs.configured(spark, context.options.forwarded())
    if own is None:
        check_tables(context, statement.query)
    if (own is None or context.gives_rows) and (rows := selected(context, own, statement)) is not None:
        return Found("SELECT", rows)
    session = own or needed(spark, "SELECT")
    # before the DataFrame, which goes by the same looks: to make it may take longer than these last
    rows_later = selected_later(context, session, statement)
    df = frame(context, session, statement.query, is_streaming=context.options.is_streaming)
    if not df.isStreaming:
        return Frame("SELECT", df, rows_later)
    changes = context.optimized(df, "SELECT", None)
    if context.options.value(RESULT_MODE) == "changelog":
        return Frame("SELECT", changes)
    check_stable(context, statement.query, (), "SELECT in 'execution.result-mode' = 'table'")
    return Live("SELECT", Materialized(changes, context.options.value(TRIGGER)))


def create_table_as(context: Context, statement: s.CreateTableAs, spark: SparkSession | None) -> Result:
    """``CREATE TABLE … AS SELECT`` (FLIP-218)."""
    what = f"CREATE TABLE {statement.name}"
    if jobs.active(spark) is None:
        check_tables(context, statement.query)
    session = needed(spark, what, context.options.forwarded())
    df = frame(context, session, statement.query, is_streaming=context.options.is_streaming)
    own = statement.options
    options = dict(own) if "connector" in own else context.options.with_defaults(own)
    connector = own.get("connector", UPSERT).lower()
    keeps_rows_by_key = CONNECTOR_ALIASES.get(connector, connector) == UPSERT
    if df.isStreaming and statement.primary_key and keeps_rows_by_key:
        options = context.options.with_materialize(options, {})
    table_ref = context.new(statement.name)
    table = TableFromQuery(
        table_ref.name,
        statement.primary_key,
        statement.partitioned_by,
        tuple(map(Index.over, statement.indexes)),
        options,
        statement.comment,
        statement.if_not_exists,
        statement.or_replace,
    )
    if not df.isStreaming:
        was_there = statement.if_not_exists and table_ref.exists
        table.execute(table_ref.tables, df, context.optimized, context.in_arrow)
        return Done(what, WAS_THERE if was_there else "created")
    check_stable(context, statement.query, statement.primary_key, what)
    job = jobs.Job.of(context, statement.name, what)
    job.refuse_left_checkpoint(context)
    drop_on_cancel = context.options.value(DROP_ON_CANCEL)
    stream = replace(job.settings(context.options), drop_on_cancel=drop_on_cancel)
    table = replace(table, stream=stream)
    query = table.execute(table_ref.tables, df, context.optimized, context.in_arrow)
    if query is None:
        return Done(what, WAS_THERE)
    return Running(what, query, job.checkpoint)


def check_stable(context: Context, query: QueryText, key: Sequence[str], what: str) -> None:
    """Refuse METADATA columns of changes in a table whose rows are found by all of their values."""
    if not key and (column := unstable_column(context, query)) is not None:
        raise SchemaError(
            f"{what}: column {column!r} holds metadata of a change, which for the deletion of a row has "
            "another value, so a PRIMARY KEY must find the row; leave the column out, or declare a key for "
            "the table that is written"
        )


def frame(
    context: Context,
    spark: SparkSession,
    query: QueryText,
    *,
    is_streaming: bool,
    pinned: Mapping[str, int] = {},
    columns: Mapping[str, Sequence[str]] = {},
    views: Mapping[str, ViewText] | None = None,
    inside: tuple[str, ...] = (),
    given: Mapping[int, DataFrame] = {},
) -> DataFrame:
    """The DataFrame of a query over tables and views of the catalog, and those that Spark knows.

    ``pinned`` has for names of managed tables the snapshot to read where the query names no state itself,
    also where views read them; ``columns`` has the only ones of a table that the query may see, in their
    order. ``views`` has the plain views by catalog, database and name; None: those that there are. ``inside``
    has the views that the query is that of. ``given`` has the rows of some of its tables, by their places
    among its references.
    """
    at = {name: context.databases.resolve(name).path for name in {*pinned, *columns}}
    folders = {at[name]: snapshot for name, snapshot in pinned.items()}
    seen = {at[name]: tuple(names) for name, names in columns.items()}
    reading = _Reading(context, spark, is_streaming, folders, seen, views)
    return reading.rows(query, query.references, inside, given)


class _View(NamedTuple):
    """A plain view by its full name, and the catalog of the names in its query."""

    name: str
    text: ViewText
    catalog: str


@dataclass(frozen=True)
class _Reading:
    """How a query reads, and the views in it.

    ``pinned`` has snapshots, and ``columns`` those that are seen, by the folder of the table.
    """

    context: Context
    spark: SparkSession
    is_streaming: bool
    pinned: Mapping[str, int]
    columns: Mapping[str, tuple[str, ...]]
    views: Mapping[str, ViewText] | None

    def rows(
        self,
        query: QueryText,
        references: Sequence[Reference],
        inside: tuple[str, ...],
        given: Mapping[int, DataFrame] = {},
    ) -> DataFrame:
        """The DataFrame of a query, whose names of tables are those of the references."""
        context, spark = self.context, self.spark
        references = _with_times_of_rows(context, query, as_read_by(spark, query, references))
        if self.is_streaming:
            query.check_can_stream()
        names: list[str | None] = []
        tables: dict[str, Callable[[], DataFrame]] = {}
        for place, reference in enumerate(references):
            name = temporary_name()
            if place in given:
                tables[name] = partial(given.__getitem__, place)
            elif (view := self._view(reference)) is not None:
                tables[name] = partial(self._of_view, reference, view, query.subject, inside)
            elif _is_in_catalog(context, spark, reference, query.subject):
                seen = self._seen(reference)
                scan = Scan(self._pinned(reference), self.is_streaming, query.subject, seen)
                tables[name] = partial(self._rows_of, scan)
            names.append(name if name in tables else None)
        frames = {name: scan() for name, scan in tables.items()}
        full = [*map(self._full_name, references)]
        text = query.over(names, full, lambda name: frames[name].columns)
        by_text = bool(frames) and (self.is_streaming or any(map(self._looks_up, references)))
        if by_text and is_connect(spark) and context.takes_requests:
            streams = [None if name is None else frames[name] for name in names]
            return self._asked(next(filter(None, streams)), OfText(query, references, streams, context.told))
        args = _literals(query, spark)
        try:
            df = _over(spark, text, frames, args)
            return df if self.is_streaming else self._with_lookups(df, references)
        except (AnalysisException, ParseException) as cause:
            is_subquery = cause.getCondition() == _STREAM_IN_SUBQUERY
            if not is_subquery or not context.takes_requests:
                told = _described(cause, text, query, [*self._columns(references)])
                raise SchemaError(f"{query.subject}: {told}") from cause
        stand_ins = {name: spark.createDataFrame([], df.schema) for name, df in frames.items()}
        return self._asked(_over(spark, text, stand_ins, args), Unnested(tables))

    def _asked(self, df: DataFrame, request: OfText | Unnested) -> DataFrame:
        planned: DataFrame = self.context.asked(df, request)
        return planned

    def _full_name(self, reference: Reference) -> str:
        """The name with its database and catalog, which may all stand before a column; Spark's as written."""
        try:
            name, system = split(reference.name)
            found = self.context.databases.resolve(name).qualified
        except (UpsertError, ValueError):
            return reference.name
        return found if system is None else f"{found}${system}"

    def _columns(self, references: Sequence[Reference]) -> Iterator[Sequence[str]]:
        """All columns of each table of the catalog: the query's own view of it has those that it names."""
        for reference in references:
            with suppress(UpsertError, ValueError):  # a view, or a table of Spark's
                schema = self.context.schema(reference.name)
                yield *schema.names, *(computed.name for computed in schema.computed)

    def _with_lookups(self, df: DataFrame, references: Sequence[Reference]) -> DataFrame:
        """A batch, in which tables that are only looked up are joined by lookups."""
        times = (reference.as_of for reference in references)
        if any(time is not None and time.kind is AsOfKind.PROCESSING for time in times):
            return self.context.with_lookups(df)
        return df

    def _looks_up(self, reference: Reference) -> bool:
        """Whether a table of the query has no rows but those of keys."""
        if reference.as_of is None or reference.as_of.kind is not AsOfKind.PROCESSING:
            return False
        connected = self.context.connected(reference.name, reference.options)
        return connected is not None and connected.is_looked_up

    def _pinned(self, reference: Reference) -> Reference:
        names_state = reference.as_of is not None or not STATES.isdisjoint(reference.options)
        if not self.pinned or reference.changes is not None or names_state:
            return reference
        own, system = split(reference.name)
        snapshot = self.pinned.get(self.context.databases.resolve(own).path)
        if system is not None or snapshot is None:
            return reference
        state = {"scan.mode": "from-snapshot", "scan.snapshot-id": str(snapshot)}
        return replace(reference, options={**reference.options, **state})

    def _seen(self, reference: Reference) -> tuple[str, ...] | None:
        """The columns of a table that the query may see: those that came later are left out; None: all."""
        if not self.columns or split(reference.name)[1] is not None:
            return None
        if reference.as_of is not None and reference.as_of.kind in (AsOfKind.ROW, AsOfKind.PROCESSING):
            return None  # a join that looks rows up must find the table as such
        return self.columns.get(self.context.databases.resolve(reference.name).path)

    def _rows_of(self, scan: Scan) -> DataFrame:
        """A table's rows with the columns that the query may see, in their order of then."""
        df = scan.rows(self.context, self.spark)
        there = set(df.columns)
        found = [column for column in scan.only or () if column in there]
        wanted = [*found, ROW_KIND_COLUMN] if ROW_KIND_COLUMN in there else found
        return df if not found or wanted == df.columns else df.select(*map(quoted, wanted))

    def _seeing(self, view: ViewText, query: QueryText, references: Sequence[Reference]) -> Self:
        """The reading of a plain view: of the tables that its query names it sees the columns of then."""
        names = {one.name: full.name for one, full in zip(query.references, references, strict=True)}
        at = self.context.databases.resolve
        seen = {at(names[table.name]).path: table.columns for table in view.tables if table.name in names}
        return replace(self, columns={**self.columns, **seen})

    def _view(self, reference: Reference) -> _View | None:
        """The plain view that a table of a query is; None for any other."""
        try:
            table_ref = self.context.databases.resolve(reference.name)
            table_ref.path  # noqa: B018 - refuses what no table can be called
        except (UpsertError, ValueError):
            return None  # a table of Spark's, or what is refused as a table
        name = table_ref.qualified
        if self.views is not None:
            text = self.views.get(name)
            return None if text is None else _View(name, text, name.partition(".")[0])
        view = self.context.plain_view(reference.name)
        return None if view is None else _View(name, view.text, view.catalog)

    def _of_view(self, reference: Reference, view: _View, subject: str, inside: tuple[str, ...]) -> DataFrame:
        """A view as a query reads it: the columns that it was created with."""
        of = f"{subject}: view {reference.name!r} at {reference.position}"
        if reference.as_of is not None or reference.options or reference.changes is not None:
            raise SchemaError(
                f"{of} is read as its query says; leave out FOR SYSTEM_…, OPTIONS and table_changes, or "
                "write them in the view"
            )
        name, text, catalog = view
        if name in inside:
            way = " → ".join((*inside[inside.index(name) :], name))
            raise SchemaError(f"{of} reads itself, {way}; let it read a table instead")
        # a view of an earlier release has Spark's variables in its text, which Spark exchanges
        query = QueryText.of(with_variables(text.query, self.spark), subject=of)
        references = within(text, catalog, query)
        df = self._seeing(text, query, references).rows(query, references, (*inside, name))
        # only a view of table_changes has the kinds as a column, under another name
        has_kinds = ROW_KIND_COLUMN in df.columns and ROW_KIND_COLUMN not in text.given
        kinds = [ROW_KIND_COLUMN] if has_kinds else []
        found = [column for column in df.columns if column not in kinds]
        if found == [*text.columns]:
            return df
        if found == [*text.given]:
            return df.toDF(*text.columns, *kinds)
        if missing := [column for column in text.given if found.count(column) != 1]:
            raise SchemaError(
                f"{of} needs the column {missing[0]!r} of its query, which gives {', '.join(found)}: a table "
                "that it reads has been altered; CREATE OR REPLACE it"
            )
        named = zip(text.given, text.columns, strict=True)
        return df.select(*(F.col(quoted(given)).alias(column) for given, column in named), *kinds)


def query_position(query: QueryText, offset: int) -> str:
    """Line and column, in the statement of a query over tables of the catalog alone, of what Spark has read.

    Args:
        query: as the statement has it.
        offset: in the text that Spark has parsed for the query itself.
    """
    alone = QueryText.of(query.text)
    parsed = alone.over([temporary_name() for _ in alone.references])
    start = query.statement.index(query.text, query.start)
    return position(query.statement, start + parsed.original(offset))


def temporary_name() -> str:
    """A name for a table while Spark reads a query; all are of one length."""
    return f"{_VIEW}{uuid.uuid4().hex}"


def _literals(query: QueryText, spark: SparkSession) -> dict[str, Column]:
    """The values for a query's parameters as Spark's literals."""
    found = {}
    for name, value in query.args.items():
        try:
            found[name] = F.lit(value)
            with not_logged():
                spark.sql("SELECT :value", args={"value": found[name]})  # finds out only now for some values
        except Exception as cause:  # Spark and py4j have an error for each kind of value that is none
            mark = "?" if query.is_numbered else f":{name}"
            raise ConfigurationError(
                f"{query.subject}: parameter {mark} must be a literal of Spark SQL, got "
                f"{type(value).__name__}; give a number, a text, a time or a list of such values"
            ) from cause
    return found


def _over(
    spark: SparkSession, text: Revision, tables: Mapping[str, DataFrame], args: dict[str, Column]
) -> DataFrame:
    """A query over temporary views, which are there while Spark reads its text."""
    if is_connect(spark):
        # its server reads the text again whenever the DataFrame is used, so the tables go with it
        marked = text.text.replace("{", "{{").replace("}", "}}")
        for name in tables:
            marked = marked.replace(name, f"{{{name}}}")
        return spark.sql(marked if tables else text.text, args=args or None, **tables)
    try:
        for name, df in tables.items():
            df.createOrReplaceTempView(name)
        with not_logged():
            return spark.sql(text.text, args=args or None)
    finally:
        for name in tables:
            spark.catalog.dropTempView(name)


@contextmanager
def not_logged() -> Iterator[None]:
    """PySpark logs none of its errors, each with a page of stack: they are told in our words, or mended."""
    for name in _SPARKS_LOGS:
        PySparkLogger.getLogger(name).addFilter(_is_logged)
    token = _IS_LOGGED.set(False)
    try:
        yield
    finally:
        _IS_LOGGED.reset(token)


def _is_logged(_: logging.LogRecord) -> bool:
    return _IS_LOGGED.get()


def check_tables(context: Context, query: QueryText) -> None:
    """Refuse a table that is not in the catalog, before Spark is started: a new session has no others."""
    if Settings.to_come(context) is not None:
        for reference in query.references:
            _is_in_catalog(context, None, reference, query.subject)


def _is_in_catalog(context: Context, spark: SparkSession | None, reference: Reference, subject: str) -> bool:
    """Whether a table is the catalog's; else it must be one that Spark knows."""
    try:
        table_ref = context.databases.resolve(split(reference.name)[0])
        if table_ref.exists:
            return True
        error: UpsertError = table_ref.tables.not_found(table_ref.name)
    except StorageError:
        raise  # it is not known whether the table exists
    except (UpsertError, ValueError) as cause:
        error = cause if isinstance(cause, DatabaseNotFoundError) else TableNotFoundError(str(cause))
    # a name with a slash is one of Spark's for files: parquet.`/data/orders`
    qualified = ".".join(map(quoted, reference.name.split(".")))
    if "/" in reference.name or (spark is not None and _spark_has(spark, qualified)):
        if reference.options or reference.as_of is not None or reference.changes is not None:
            raise SchemaError(
                f"{subject}: table {reference.name!r} at {reference.position} is a table of Spark, which "
                "takes no OPTIONS, no FOR SYSTEM_… and no table_changes; leave them out"
            )
        return False
    raise type(error)(placed(f"{subject}: {error}", reference.position))


def _spark_has(spark: SparkSession, name: str) -> bool:
    try:
        return bool(spark.catalog.tableExists(name))
    except AnalysisException:
        return False  # it has no such catalog


def _with_times_of_rows(
    context: Context, query: QueryText, references: Sequence[Reference]
) -> Sequence[Reference]:
    """The references; ``FOR SYSTEM_TIME AS OF`` a column that is no processing time asks for versions."""
    asked = {
        reference.as_of.value.lower()
        for reference in references
        if reference.as_of is not None and reference.as_of.kind is AsOfKind.PROCESSING
    }
    if not any(asked):
        return references
    known = {"", *query.processing_times}
    for reference in references:
        try:
            schema = context.schema(reference.name)
        except UpsertError:
            continue  # a table of Spark's, which checks its name itself
        known |= {c.name.lower() for c in schema.computed if is_processing_time(c.expression)}
    return [
        replace(one, as_of=replace(one.as_of, kind=AsOfKind.ROW))
        if one.as_of is not None
        and one.as_of.kind is AsOfKind.PROCESSING
        and one.as_of.value.lower() not in known
        else one
        for one in references
    ]


def _described(
    error: AnalysisException | ParseException,
    text: Revision,
    query: QueryText,
    columns: Sequence[Sequence[str]],
) -> str:
    """What Spark says of a query, with the position in the statement that the user wrote.

    Spark counts columns, and lines if these have any, with the values of parameters in place of their marks.
    """
    args = query.args
    message = str(error.getMessage() or error).strip()
    condition = error.getCondition()
    said, ends, _ = message.partition(" SQLSTATE:")
    parameters = error.getMessageParameters() or {}
    is_short = not ends or (condition or "").endswith(_NAMES) or "treeNode" in parameters  # a plan follows
    first = _NOISE.sub("", message.splitlines()[0] if is_short else " ".join(said.splitlines())).rstrip(":")
    first = re.sub(rf"`{_VIEW}[0-9a-f]{{32}}`\.?", "", first)
    if condition == "UNRESOLVED_COLUMN.WITH_SUGGESTION" and (wanted := parameters.get("objectName")):
        first = unknown_column(wanted.replace("`", ""), parameters.get("proposal", ""), columns, query)
    elif condition == _STREAM_IN_SUBQUERY:
        first = (
            "a subquery would have to read a stream, which Spark cannot; make the catalog as "
            "Catalog(warehouse, optimize=planner.optimize), which makes a join of it, or write LEFT SEMI "
            "JOIN for EXISTS and IN, LEFT ANTI JOIN for NOT EXISTS"
        )
    where = _POSITION.search(f"{message} {error}")
    if where is None or any("\n" in str(value) for value in args.values()):
        return first
    lines = text.text.split("\n")
    offset = sum(len(line) + 1 for line in lines[: int(where[1]) - 1]) + int(where[2])
    first = _POSITION.sub("", first).strip()
    if condition == _NO_FIELD:
        path = taken_for_a_field(text, offset, query, parameters.get("base", ""))
        first = first if path is None else unknown_column(path, "", columns, query)
    place = position(text.first, text.original(offset))
    return f"{first} at {place.partition(',')[0] if args else place}"
