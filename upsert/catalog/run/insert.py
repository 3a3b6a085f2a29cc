"""``INSERT`` and ``EXECUTE STATEMENT SET``: a query's columns, by their places, into those of a table.

A `Target` is the table with the columns that get values. A batch is written at once; a stream is a query that
goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from sqlglot import exp

from upsert.catalog.connectors.definition import definition_in
from upsert.catalog.results import Done, Result, Rows, Running, RunningSet, done_in_snapshot
from upsert.catalog.run import jobs
from upsert.catalog.run.assignments import (
    assigned,
    default_of,
    default_text,
    has_ansi_casts,
    no_value,
    own_names,
    spark_type,
)
from upsert.catalog.run.definitions import changeable, refuse_view
from upsert.catalog.run.jobs import active, configured, needed
from upsert.catalog.run.queries import check_stable, check_tables, frame
from upsert.catalog.run.row_changes import begins_again, check_engine, committed, deletions, tracked
from upsert.catalog.run.rows_found import FoundRows, rows_found
from upsert.catalog.run.scans import check_read_alike
from upsert.catalog.run.without_spark.statements import copied, listed
from upsert.catalog.session import TRIGGER
from upsert.catalog.system_tables import split
from upsert.errors import (
    CheckViolatedError,
    ConfigurationError,
    PartlyExecutedError,
    SchemaError,
    own_errors_first,
)
from upsert.managed import frames
from upsert.managed.options import MERGE_SCHEMA
from upsert.managed.writer import sink_of
from upsert.materializer.choice import Sink, mode_of
from upsert.options import parse
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.schema import Column, TableSchema
from upsert.spark.columns import merge_schema, stored_text
from upsert.spark.connect import is_connect
from upsert.spark.queries import end_together
from upsert.sql import statements as s
from upsert.store import Table
from upsert.store.read.snapshot import Snapshot
from upsert.store.rows.conform import cut
from upsert.store.rows.merge_rules import DEDUPLICATE
from upsert.store.rows.partitions import specified
from upsert.stream_keys import KEYS_MARK, UPSERTS_MARK, UniqueKeys, UpsertKey
from upsert.types import first_repeated, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from upsert.catalog.connectors.base import Connector
    from upsert.catalog.context import Context
    from upsert.sql.query import QueryText


_MOST_SHOWN: Final = 400
"""Characters of a row in a message."""

START_FROM: Final = "start-from"
"""Option of a streaming statement: checkpoint of a stopped query from which its delta joins continue."""


@begins_again
def insert_now(context: Context, statement: s.Insert, spark: SparkSession | None) -> Result:
    """``INSERT``: checked, and run at once."""
    return insert(context, statement, spark)()


def insert(context: Context, statement: s.Insert, spark: SparkSession | None) -> Callable[[], Result]:
    """What runs an ``INSERT``, after all checks that are possible before it runs."""
    is_streaming = context.options.is_streaming
    start_from = statement.options.get(START_FROM)
    what = _what(statement)
    check_read_alike(active(spark), statement.query.statement[: statement.query.start], what)
    if start_from is not None and not is_streaming:
        raise ConfigurationError(
            f"{what}: option {START_FROM!r} must go with a stream, got {start_from!r} for a batch; leave it "
            "out, or SET 'execution.runtime-mode' = 'streaming'"
        )
    if statement.by_name:
        statement = by_position(context, statement, needed(spark, what, context.options.forwarded()))
    statement = with_own_names(context, statement, active(spark))
    if not is_streaming and statement.replaced is None and _merges_schema(statement):
        statement = _with_new_columns(context, statement, spark)
    target = Target.of(context, statement)
    if is_streaming and (statement.overwrite or statement.replaced):
        raise ConfigurationError(
            f"{what}: a stream cannot overwrite, because it never has all rows; use INSERT INTO, or "
            "SET 'execution.runtime-mode' = 'batch'"
        )
    query, options = target.query(statement), context.options.forwarded()
    if statement.replaced is not None:
        return partial(_replace_rows, context, statement, needed(spark, what, options), target, query)
    session = configured(spark, options)
    if not is_streaming and (write := _write_here(context, session, statement, target, query)) is not None:
        return write
    if session is None:
        check_tables(context, query)
    session = needed(spark, what, options)
    found = frame(context, session, query, is_streaming=is_streaming)
    rows = target.fitted(found, keeps_kinds=is_planned_by_text(context, session, found))
    if rows.isStreaming:
        check_stable(context, statement.query, target.key, what)
        return target.planned(context, rows, start_from, replaces=_replaces_rows(context, statement))

    def write_frame() -> Result:
        done = target.write(rows, overwrite=statement.overwrite, is_list=statement.query.is_list)
        return _done(what, "overwritten" if statement.overwrite else "written", done)

    return write_frame


def _replace_rows(
    context: Context, statement: s.Insert, session: SparkSession, target: Target, query: QueryText
) -> Result:
    """``REPLACE WHERE``: one commit takes away what the condition is true of, and adds the query's rows.

    Both are of one snapshot. Of a row that stays as it is nothing is written.
    """
    from pyspark.sql import functions as F

    replaced, table, what = statement.replaced, target.table, target.what
    assert replaced is not None
    assert isinstance(table, Table)
    check_engine(table, what)
    _check_condition(replaced, target)
    is_tracked = tracked(target.options, what)
    refusal = f"{what}: REPLACE WHERE: the condition must be true of each row of the query, got "

    def changed(base: int) -> FoundRows:
        pinned = {statement.name: base}
        # first of all the condition must be one of the table's rows
        gone = rows_found(context, session, statement.name, replaced.rows, table, base)
        rows = target.fitted(frame(context, session, query, is_streaming=False, pinned=pinned))
        rows = target.last_of_each_key(rows) if statement.query.is_list else rows
        # the condition is that of the rows as they are stored
        stored = (F.expr(stored_text(quoted(c.name), c)).alias(c.name) for c in target.schema.columns)
        tested = frame(context, session, replaced.tested, is_streaming=False, given={0: rows.select(*stored)})
        names = [quoted(name) for name in rows.columns]
        odd = F.raise_error(F.concat(F.lit(refusal), F.to_json(F.struct(*names)))).cast("string")
        kind = F.when(F.col(quoted(s.FITS)), RowKind.INSERT.value).otherwise(odd)
        new = tested.select(*names, kind.alias(ROW_KIND_COLUMN))
        return FoundRows(deletions(table)(gone.rows).unionByName(new), are_few=False)

    try:
        snapshot, _ = committed(context, statement.name, changed, is_tracked)
    except PySparkException as cause:
        # a task has raised it, so it is known by its text alone; plans have that without a row
        if not (told := str(cause).partition(refusal)[2]).startswith("{"):
            raise
        row = told[: json.JSONDecoder().raw_decode(told)[1]]
        raise CheckViolatedError(
            f"{refusal}{cut(row, _MOST_SHOWN)}; correct the rows or the condition, nothing was committed"
        ) from cause
    return done_in_snapshot(what, "replaced", snapshot, None)


def _check_condition(replaced: s.Replaced, target: Target) -> None:
    """Refuse a condition of computed columns, which the query's rows do not have."""
    computed = {column.name.lower() for column in target.schema.computed}
    for column in replaced.rows.tree.args["where"].find_all(exp.Column):
        if column.name.lower() in computed:
            raise SchemaError(
                f"{target.what}: REPLACE WHERE must be of stored columns, got {column.name!r}, which is "
                "computed when it is read; write what it is computed from"
            )


def _write_here(
    context: Context, session: SparkSession | None, statement: s.Insert, target: Target, query: QueryText
) -> Callable[[], Result] | None:
    """What writes a list of rows, or those of a SELECT, without Spark; None where that is needed."""
    table, says_more = target.table, target.partition or target.dynamic or target.options
    if not isinstance(table, Table) or says_more or statement.overwrite:
        return None
    found = listed if statement.query.is_list else copied
    rows = found(context, session, query, target.columns, target.schema)
    if rows is None:
        return None

    def write() -> Result:
        is_list = statement.query.is_list  # of a key the last one counts; a query has no order
        done = table.write(rows) if is_list else frames.write_rows(rows, table.path)
        return _done(target.what, "written", done)

    return write


def _done(what: str, done: str, snapshot: Snapshot | None) -> Done:
    """What is said of a write; the snapshot is None where another process, or no table, has the rows."""
    if snapshot is None:
        return Done(what, done)
    return done_in_snapshot(what, done, f"snapshot {snapshot.id}", snapshot.committed_rows)


def is_planned_by_text(context: Context, session: SparkSession, rows: DataFrame) -> bool:
    """Whether rows are planned changes: over Connect, at once, and nothing finds their kinds again."""
    is_by_text = is_connect(session) and context.takes_requests
    return is_by_text and rows.isStreaming and ROW_KIND_COLUMN in rows.columns


def by_position(context: Context, statement: s.Insert, session: SparkSession) -> s.Insert:
    """The statement, with the columns that an ``INSERT … BY NAME`` leaves to the names in its query."""
    if not statement.by_name:
        return statement
    df = frame(context, session, statement.query, is_streaming=context.options.is_streaming)
    given = [name for name in df.columns if not (df.isStreaming and name == ROW_KIND_COLUMN)]
    return replace(statement, columns=tuple(given), by_name=False)


def with_own_names(context: Context, statement: s.Insert, session: SparkSession | None) -> s.Insert:
    """The statement, with the names of columns as the table has them."""
    given = (tuple(statement.partition), statement.dynamic, statement.columns or ())
    if not any(given):
        return statement
    schema = context.schema(statement.name)
    fixed, dynamic, columns = (own_names(names, schema, session) for names in given)
    if repeated := first_repeated((*fixed, *dynamic)):
        raise SchemaError(f"{_what(statement)}: PARTITION names column {repeated!r} twice")
    if repeated := first_repeated(columns):
        raise SchemaError(f"{_what(statement)}: column {repeated!r} is named twice")
    values = dict(zip(fixed, statement.partition.values(), strict=True))
    return replace(statement, columns=columns or None, partition=values, dynamic=dynamic)


def _merges_schema(statement: s.Insert) -> bool:
    names = (MERGE_SCHEMA.key, *MERGE_SCHEMA.aliases)
    given = {key: text for key, text in statement.options.items() if key.lower() in names}
    return bool(parse(_what(statement), [MERGE_SCHEMA], given)[MERGE_SCHEMA.key])


def _with_new_columns(context: Context, statement: s.Insert, spark: SparkSession | None) -> s.Insert:
    """The statement, whose table has got what it lacks of the query's columns, by their names.

    Where the statement names no columns, the query's last ones are new, if it gives more than the table has.
    """
    what = _what(statement)
    table = changeable(context, statement.name, what)
    session = needed(spark, what, context.options.forwarded())
    names = statement.columns
    if names is None:
        names = tuple(name for name in table.schema.names if name not in statement.partition)
    rows = frame(context, session, statement.query.with_defaults(["NULL"] * len(names)), is_streaming=False)
    if statement.columns is None:
        names += tuple(rows.columns[len(names) :])
    if len(names) == len(rows.columns):  # else the refusal is that of any INSERT
        merge_schema(table, rows.toDF(*names).schema, table.schema.names)
    return replace(statement, columns=names)


def insert_all(
    context: Context, statement: s.StatementSet, spark: SparkSession | None
) -> Callable[[], Result]:
    """What runs the INSERTs of a statement set, after all checks of all of them.

    Streams run until one fails. In a batch each reads its tables as they were before the first one writes.
    """
    what = "EXECUTE STATEMENT SET"
    if one := next((one for one in statement.inserts if one.replaced), None):
        raise ConfigurationError(
            f"{what}: {_what(one)}: REPLACE reads tables as they are when it is its turn, and others of a "
            "statement set before the first one writes; execute it alone"
        )
    if not context.options.is_streaming:
        whats = [_what(one) for one in statement.inserts]
        writes = [insert(context, one, spark) for one in statement.inserts]
        return lambda: _written(what, whats, writes)
    sinks = [context.databases.resolve(one.name).qualified for one in statement.inserts]
    if twice := first_repeated(sinks):
        raise ConfigurationError(
            f"{what}: each table must get one stream, got several for {twice!r}, which would share a "
            "checkpoint; write one INSERT with UNION ALL"
        )
    starts = [insert(context, one, spark) for one in statement.inserts]
    ends_by_itself = "availableNow" in context.options.value(TRIGGER)
    return lambda: _started(what, starts, ends_by_itself=ends_by_itself)


def _written(what: str, whats: Sequence[str], writes: Sequence[Callable[[], Result]]) -> Rows:
    """Run the INSERTs of a batch, one after the other."""
    done: list[Result] = []
    for number, write in enumerate(writes):
        try:
            with own_errors_first():
                done.append(write())
        except Exception as cause:  # whatever it is: what is committed already must be said
            if number == 0:
                raise
            reason = str(cause).strip().partition("\n")[0]
            raise PartlyExecutedError(
                f"{what}: {whats[number]} has failed after {', '.join(whats[:number])}, which are committed "
                f"and stay: {reason}; correct the cause, and execute only the rest"
            ) from cause
    return _executed(what, done)


def _executed(what: str, done: Sequence[Result]) -> Rows:
    columns = dict.fromkeys(("statement", "result"), pa.string())
    rows = ({"statement": one.statement, "result": one.note} for one in done if isinstance(one, Done))
    return Rows.listed(what, columns, rows)


def _started(what: str, starts: Sequence[Callable[[], Result]], *, ends_by_itself: bool) -> Result:
    """Start the INSERTs of a stream; one that reads no stream is a batch, and written at its place."""
    done: list[Result] = []
    try:
        for start in starts:
            done += [start()]
    except BaseException:
        for run in _runs(done):
            run.query.stop()
        raise
    if not (runs := _runs(done)):
        return _executed(what, done)
    end_together([run.query for run in runs], end_by_themselves=ends_by_itself)
    return RunningSet(what, runs)


def _runs(done: Iterable[Result]) -> tuple[Running, ...]:
    return tuple(one for one in done if isinstance(one, Running))


def _what(statement: s.Insert) -> str:
    return f"INSERT {'OVERWRITE' if statement.overwrite else 'INTO'} {statement.name}"


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
    table: Table | Connector
    columns: tuple[Column, ...]
    partition: Mapping[str, Any]
    dynamic: tuple[str, ...]
    options: Mapping[str, str]

    @classmethod
    def of(cls, context: Context, statement: s.Insert) -> Target:
        """The target of a statement, which may name columns that the table has and that can be written."""
        what, schema = _what(statement), context.schema(statement.name)
        options = {key: value for key, value in statement.options.items() if key != START_FROM}
        if context.options.is_streaming:
            options = _with_materialize(context, statement.name, options)
        connected = context.connected(statement.name, options)
        if connected is not None and (
            statement.overwrite or statement.partition or statement.dynamic or statement.replaced
        ):
            clause = "OVERWRITE" if statement.overwrite else "REPLACE" if statement.replaced else "PARTITION"
            raise ConfigurationError(
                f"{what}: {clause} needs a managed table, got one with a connector; leave it out"
            )
        writable = {c.name: c for c in schema.columns if c.metadata is None or not c.virtual}
        _check_partition(statement, schema, what)
        chosen = statement.columns
        if chosen is None:
            chosen = tuple(name for name in writable if name not in statement.partition)
        _check_writable(chosen, writable, schema, what)
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
        partition = statement.partition, statement.dynamic
        return cls(what, statement.name, schema, table, columns, *partition, options)

    def query(self, statement: s.Insert) -> QueryText:
        """The query of the rows, with the values that DEFAULT stands for in a list."""
        return statement.query.with_defaults([default_text(column) for column in self.columns])

    def fitted(self, df: DataFrame, *, keeps_kinds: bool = False) -> DataFrame:
        """The query's columns under the names of the table's, of its types, with all that the table has.

        With ``keeps_kinds`` the kinds of changes, which are the last column, stay.
        """
        from pyspark.sql import functions as F

        rows = df.drop(ROW_KIND_COLUMN) if df.isStreaming else df
        if len(rows.columns) != len(self.columns):
            raise SchemaError(
                f"{self.what}: the query must give {len(self.columns)} columns "
                f"({', '.join(column.name for column in self.columns)}), got {len(rows.columns)} "
                f"({', '.join(rows.columns)}); name the columns after the table's name, or select others"
            )
        names = [column.name for column in self.columns]
        named = df.toDF(*names, ROW_KIND_COLUMN) if keeps_kinds else rows.toDF(*names)
        given = {}
        by_cast = df.isStreaming and has_ansi_casts(df.sparkSession)  # the planner knows casts
        for column, field in zip(self.columns, named.schema.fields[: len(self.columns)], strict=True):
            own = F.col(quoted(column.name))
            value = assigned(own, field.dataType, column, self.what, by_cast=by_cast)
            given[column.name] = own if value is own else value.alias(column.name)
        for column in self.schema.columns:
            if column.name in given or (column.metadata is not None and column.virtual):
                continue
            if column.name not in self.partition:
                new = default_of(column, self.what)
            elif (value := self.partition[column.name]) is not None or column.nullable:
                new = F.lit(value).cast(spark_type(column))
            else:
                raise no_value(column, self.what)
            given[column.name] = new.alias(column.name)
        chosen = (given[column.name] for column in self.schema.columns if column.name in given)
        if not keeps_kinds:
            return named.select(*chosen)
        marks = _marks_of_keys(df.schema.jsonValue(), dict(zip(rows.columns, names, strict=True)))
        return named.select(*chosen, F.col(ROW_KIND_COLUMN).alias(ROW_KIND_COLUMN, metadata=marks))

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
        values = (stored_text(quoted(name), self.schema.column(name)) for name in key)
        of_key = Window.partitionBy(*map(F.expr, values)).orderBy(F.desc(number))
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

    def write(self, rows: DataFrame, *, overwrite: bool, is_list: bool) -> Snapshot | None:
        """Write the rows of a batch; those of a list in their order.

        It gives the snapshot with the rows, where this process has committed it.
        """
        if not isinstance(self.table, Table):
            self.table.write(self.last_of_each_key(rows) if is_list else rows)
            return None
        options = dict(self.options)
        if overwrite and self.dynamic:
            given = {key.lower(): text for key, text in options.items()}
            options = {"partition-overwrite-mode": "dynamic", **given}
        if overwrite and self.partition:
            options["partition"] = json.dumps(dict(self.partition), default=str)
        if is_list and not is_connect(rows):
            return frames.write_list(rows, self.table.path, options, overwrite=overwrite)
        rows = self.last_of_each_key(rows) if is_list else rows
        return frames.write(rows, self.table.path, options, overwrite=overwrite)

    def planned(
        self, context: Context, rows: DataFrame, start_from: str | None, *, replaces: bool
    ) -> Callable[[], Result]:
        """What starts the query of a stream, an aggregate without a watermark if ``replaces``.

        Without a micro-batch of its own it continues from the checkpoint ``start_from``, if that is not None.
        """
        table = self.table
        table_ref = context.databases.resolve(self.name)
        # a temporary one stands in each session for what is there after it, under another uuid
        elsewhere = None if table_ref.is_temporary else definition_in(table_ref.existing())
        uuid = table.uuid if isinstance(table, Table) else elsewhere.uuid if elsewhere is not None else ""
        job = jobs.Job.of(context, self.name, self.what, uuid, had_no_uuid=elsewhere is not None)
        start_from = None if job.has_begun else start_from
        changes = context.optimized(rows, self.name, self.sink, start_from)
        if isinstance(table, Table):
            writer = frames.write_changes(changes, table.path, self.options, context.in_arrow)
        elif replaces and table.sink_key and ROW_KIND_COLUMN not in changes.columns:
            writer = table.write_upsert(changes).outputMode("update")
        else:
            writer = table.write_changes(changes)
        settings = job.settings(context.options)
        return lambda: Running(self.what, job.started(rows.sparkSession, writer, settings), job.checkpoint)


def _check_partition(statement: s.Insert, schema: TableSchema, what: str) -> None:
    """Refuse a PARTITION of other columns, or with values that these cannot have."""
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


def _check_writable(
    chosen: Sequence[str], writable: Mapping[str, Column], schema: TableSchema, what: str
) -> None:
    """Refuse columns that the table has not, or that cannot be written."""
    for name in chosen:
        if name in writable:
            continue
        if computed := next((column for column in schema.computed if column.name == name), None):
            why = "computed from others" if computed.metadata is None else "METADATA, which is only read"
        elif name in schema.names:
            why = "VIRTUAL metadata, which is only read"
        else:
            raise SchemaError(f"{what}: unknown column {name!r}; columns are {', '.join(writable)}")
        raise SchemaError(f"{what}: column {name!r} is {why}; leave it out")


def _marks_of_keys(schema: dict[str, Any], new_names: Mapping[str, str]) -> dict[str, str]:
    """What a stream's schema, as Spark has it in JSON, says about its keys, under new names of columns."""
    marks = {}
    if (keys := UniqueKeys.of_schema(schema)) is not None:
        marks[KEYS_MARK] = keys.renamed(new_names).to_text()
    if (key := UpsertKey.of_schema(schema)) is not None:
        parts = UniqueKeys((key.keys,)).renamed(new_names).keys[0]
        constants = tuple(new_names[name] for name in key.constants)
        marks[UPSERTS_MARK] = replace(key, keys=parts, constants=constants).to_text()
    return marks


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
    names = (split(reference.name) for reference in statement.query.references)
    refs = (context.databases.resolve(name) for name, system in names if system is None)
    return not any(ref.exists and context.schema(ref.qualified).watermark for ref in refs)


def _free_name(name: str, taken: Sequence[str]) -> str:
    while name in taken:
        name += "_"
    return name
