"""Statements that change existing rows: ``DELETE``, ``UPDATE``, ``TRUNCATE`` and ``DROP PARTITION``.

Rows that Spark finds are read at one snapshot, and committed if no other writer has changed them meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException

from upsert.catalog.results import Done, Result, done_in_snapshot
from upsert.catalog.run.assignments import assigned, default_of, own_names
from upsert.catalog.run.definitions import changeable, fitting_partitions
from upsert.catalog.run.jobs import SparkNeededError, configured, needed
from upsert.catalog.run.rows_found import FoundRows, rows_found
from upsert.catalog.run.scans import is_read_otherwise, zone
from upsert.catalog.run.without_spark.statements import deleted, updated
from upsert.errors import (
    CommitConflictError,
    ConfigurationError,
    SchemaError,
    SnapshotExpiredError,
    StaleWriterError,
    UpsertError,
    own_error,
)
from upsert.managed import frames
from upsert.options import boolean
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.schema import TableSchema
from upsert.sql import statements as s
from upsert.sql.forms import has_plain_where
from upsert.sql.predicates import alternatives
from upsert.store import Table
from upsert.store.commit.committer import TURN_AFTER
from upsert.store.commit.turn import Turn
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.predicate import Where
from upsert.store.read.snapshot import Snapshot
from upsert.store.rows.partitions import partition_name, specified
from upsert.types import first_repeated, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession
    from sqlglot import exp

    from upsert.catalog.context import Context
    from upsert.sql.query import QueryText


ATTEMPTS: Final = 10
"""How often a statement is tried when other writers have changed its rows meanwhile."""
_TRACKING: Final = "change-tracking"


_Changing = TypeVar("_Changing", s.Delete, s.Update, s.Merge, s.Insert)
_Executes = Callable[["Context", _Changing, "SparkSession | None"], Result]


def begins_again(execute: _Executes[_Changing]) -> _Executes[_Changing]:
    """A statement whose rows no longer fit its table, altered meanwhile, is executed from its beginning.

    Nothing of it is committed then: rows are fitted to a table before they are.
    """

    @wraps(execute)
    def executed(context: Context, statement: _Changing, spark: SparkSession | None) -> Result:
        for _ in range(1, ATTEMPTS):
            seen = _state(context, statement.name)
            try:
                return execute(context, statement, spark)
            except (SchemaError, PySparkException) as cause:
                if not isinstance(cause, AnalysisException) and not isinstance(own_error(cause), SchemaError):
                    raise
                now = _state(context, statement.name)
                if now is None or seen is None or now.definition == seen.definition:
                    raise
        return execute(context, statement, spark)

    return executed


def _state(context: Context, name: str) -> SnapshotInfo | None:
    """The newest snapshot of a managed table; None of what is none, which the statement says itself."""
    try:
        return context.managed(name).snapshot().info
    except UpsertError:
        return None


@begins_again
def delete(context: Context, statement: s.Delete, spark: SparkSession | None) -> Result:
    """``DELETE FROM t WHERE …``: in one commit, which change streams show unless tracking is off.

    Comparisons of columns with literals are looked up in the files; Spark evaluates any other condition, and
    says what a time without a zone means.
    """
    subject = f"DELETE FROM {statement.name}"
    table = changeable(context, statement.name, "DELETE")
    is_tracked = tracked(statement.options, subject)
    where: Where = []
    if statement.condition is not None:
        session = configured(spark, context.options.forwarded())
        try:
            name = statement.alias or context.databases.resolve(statement.name).qualified
            where = _comparisons(statement, statement.condition, table.schema, session, name)
        except SchemaError as cause:
            if statement.rows is None:
                raise
            check_engine(table, subject)
            found = partial(_found, context, session, statement, statement.rows, table, cause)
            return done_in_snapshot(
                subject, "deleted", *committed(context, statement.name, found, is_tracked)
            )
    done = table.delete(where, tracked=is_tracked)
    return done_in_snapshot(subject, "deleted", f"snapshot {done.id}", done.committed_rows)


def _found(
    context: Context,
    session: SparkSession | None,
    statement: s.Delete,
    query: QueryText,
    table: Table,
    why: SchemaError,
    base: int,
) -> FoundRows | pa.Table:
    """The deletions of the rows of a snapshot that a condition is true of; ``why`` it is not looked up."""
    if (found := deleted(context, session, query, base)) is not None:
        return found
    if session is None:
        raise SparkNeededError(f"{why}; or give a Spark session, for any condition") from why
    return rows_found(context, session, statement.name, query, table, base).made(deletions(table))


def _comparisons(
    statement: s.Delete, condition: exp.Expr, schema: TableSchema, session: SparkSession | None, name: str
) -> Where:
    """The condition of a deletion as comparisons of columns with literals; ``name`` is the table's, in full.

    Raises:
        SchemaError: it is another condition, or one of which only Spark knows how the session reads it.
    """
    subject = f"DELETE FROM {statement.name}"
    query = statement.rows
    if session is not None and query is not None and is_read_otherwise(session, query.text):
        raise SchemaError(f"{subject}: the condition is read as the session's settings say")
    if query is not None and not has_plain_where(query):
        raise SchemaError(f"{subject}: the condition must be an expression as Spark writes it")
    return alternatives(condition, schema, None if session is None else zone(session), subject, name)


@begins_again
def update(context: Context, statement: s.Update, spark: SparkSession | None) -> Result:
    """``UPDATE t SET … WHERE …``: in one commit, which change streams show unless tracking is off."""
    subject = f"UPDATE {statement.name}"
    is_tracked = tracked(statement.options, subject)
    table = changeable(context, statement.name, "UPDATE")
    session = configured(spark, context.options.forwarded())
    check_engine(table, subject)
    schema = table.schema
    columns = own_names(statement.columns, schema, session)
    check_once(columns, subject)
    statement = replace(
        statement, columns=columns, defaults=frozenset(own_names(statement.defaults, schema, session))
    )
    for name in columns:
        if name in schema.primary_key:
            raise SchemaError(
                f"{subject}: column {name!r} is one of the PRIMARY KEY, by which the row is found; delete "
                "the row, and insert another one"
            )
        check_stored(schema, name, subject)

    def changed(rows: DataFrame) -> DataFrame:
        new = rows.select(*_new_values(table, rows, statement, subject))
        if schema.primary_key:
            return new
        return deletions(table)(rows).unionByName(_of_kind(new, RowKind.INSERT))

    def found(base: int) -> FoundRows | pa.Table:
        if (new := updated(context, session, statement, schema, base)) is not None:
            return new
        rows = rows_found(context, needed(session, subject), statement.name, statement.rows, table, base)
        return rows.made(changed)

    snapshot, rows = committed(context, statement.name, found, is_tracked)
    if rows is not None and not schema.primary_key:
        rows //= 2  # each is deleted as it was, and inserted as it is
    return done_in_snapshot(subject, "updated", snapshot, rows)


def check_once(columns: Sequence[str], subject: str) -> None:
    """Refuse a column that gets two values."""
    if repeated := first_repeated(columns):
        raise SchemaError(f"{subject}: column {repeated!r} gets two values; give one")


def check_stored(schema: TableSchema, name: str, subject: str) -> None:
    """Refuse a column that gets a value but is none, or is not stored."""
    if any(column.name == name for column in schema.computed):
        raise SchemaError(
            f"{subject}: column {name!r} is computed when it is read; set what it is computed from"
        )
    schema.type_of(name, subject)


def committed(
    context: Context, name: str, changed: Callable[[int], FoundRows | pa.Table], is_tracked: bool | None
) -> tuple[str, int | None]:
    """Commit the changes that a statement makes of a snapshot's rows, in one snapshot.

    They are a table where no Spark has made them. Tells which snapshot, and how many changes there were; None
    over Spark Connect.
    """
    options = {} if is_tracked is None else {_TRACKING: str(is_tracked).lower()}
    with Turn(context.table(name).root) as turn:
        for attempt in range(1, ATTEMPTS + 1):
            table = context.table(name)
            base = table.snapshot()
            try:
                done = _write(changed(base.id), table, {**options, "unchanged-since": str(base.id)})
                break
            except (*_OVERTAKEN, PySparkException) as cause:
                if not _is_overtaken(cause) or context.table(name).snapshot().id == base.id:
                    raise
                if attempt == ATTEMPTS:
                    if isinstance(cause, SnapshotExpiredError):
                        raise  # it may be one that the statement names
                    raise CommitConflictError(
                        f"table {name!r}: rows must not change while the statement runs, but other writers "
                        f"changed them {ATTEMPTS} times; stop those, or change fewer rows at a time"
                    ) from cause
                if attempt >= TURN_AFTER and not isinstance(cause, PySparkException):
                    turn.take()  # else a process of Spark's may commit, which would wait for this one
    if done is not None:
        return f"snapshot {done.id}", done.committed_rows
    return _committed_as(base.info, context.table(name).snapshot().info), None


_OVERTAKEN: Final = (CommitConflictError, SnapshotExpiredError, StaleWriterError)
"""What ends a statement whose rows other writers have changed, or whose snapshot or files are gone since."""


def _is_overtaken(cause: Exception) -> bool:
    """Whether a statement has to begin again; of what Spark's processes have raised only the text is left.

    What was raised last counts: where a log did not take what is committed, an expired snapshot may be why.
    """
    return isinstance(own_error(cause), _OVERTAKEN)


def _write(found: FoundRows | pa.Table, table: Table, options: Mapping[str, str]) -> Snapshot | None:
    """Commit the changes that were found."""
    if isinstance(found, pa.Table):
        return frames.write_rows(found, table.path, options)
    write = frames.write_few if found.are_few else frames.write
    return write(found.rows, table.path, options)


def _committed_as(base: SnapshotInfo, newest: SnapshotInfo) -> str:
    """The snapshot after ``base`` with a statement's changes, which a process of Spark's has committed.

    If others have changed rows meanwhile it is not known which one it is.
    """
    last = max(base.id, newest.data_version)  # it is the base if there was nothing to change
    if newest.states > base.states + 1:
        return f"one of snapshots {base.id + 1} to {last}"
    return f"snapshot {last}"


def check_engine(table: Table, subject: str) -> None:
    """Refuse a table in which a row does not replace the earlier one of its key."""
    if table.options.merge.needs_present_rows:
        raise ConfigurationError(
            f"{subject}: the table must be one in which the last row of a key replaces the others, got one "
            "with 'merge-engine' or 'sequence.field'; compare columns with literals, or insert rows"
        )


def _new_values(table: Table, rows: DataFrame, statement: s.Update, subject: str) -> list[SparkColumn]:
    """Each of the table's columns."""
    from pyspark.sql import functions as F

    found = []
    for column in table.schema.columns:
        if column.name not in statement.columns:
            found.append(F.col(quoted(column.name)))
            continue
        if column.name in statement.defaults:
            new = default_of(column, subject)
        else:
            name = s.NEW_VALUE.format(statement.columns.index(column.name))
            new = assigned(F.col(name), rows.schema[name].dataType, column, subject)
        found.append(new.alias(column.name))
    return found


def deletions(table: Table) -> Callable[[DataFrame], DataFrame]:
    """What makes of rows that are found the changes that take them away."""
    return lambda rows: _of_kind(rows.select(*map(quoted, table.schema.names)), RowKind.DELETE)


def _of_kind(rows: DataFrame, kind: RowKind) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.withColumn(ROW_KIND_COLUMN, F.lit(kind.value))


def tracked(given: Mapping[str, str], subject: str) -> bool | None:
    """What a statement's options say of change tracking; None for nothing."""
    options = dict(given)
    text = options.pop(_TRACKING, None)
    if options:
        raise ConfigurationError(f"{subject}: the one option is {_TRACKING!r}, got {', '.join(options)}")
    try:
        return None if text is None else boolean(text)
    except ValueError as cause:
        raise ConfigurationError(f"{subject}: option {_TRACKING!r} must be {cause}, got {text!r}") from None


def truncate(context: Context, statement: s.TruncateTable) -> Result:
    """``TRUNCATE TABLE t [PARTITION (…)]``: all rows, or those of partitions, are deleted."""
    table, what = changeable(context, statement.name, "TRUNCATE TABLE"), f"TRUNCATE TABLE {statement.name}"
    is_tracked = tracked(statement.options, what)
    if statement.partition is None:
        done = table.delete([], tracked=is_tracked)
        return done_in_snapshot(what, "truncated", f"snapshot {done.id}", done.committed_rows)
    _existing(table, statement.partition, what, f"see SHOW PARTITIONS {statement.name}")
    done = table.drop_partition(statement.partition, tracked=is_tracked)
    return Done(what, f"truncated, snapshot {done.id}")


def drop_partition(context: Context, statement: s.DropPartition) -> Result:
    """``ALTER TABLE t DROP [IF EXISTS] PARTITION (…)``: its rows are deleted."""
    table = changeable(context, statement.name, "DROP PARTITION")
    what = f"ALTER TABLE {statement.name} DROP PARTITION"
    if statement.if_exists and statement.partition and not fitting_partitions(table, statement.partition):
        return Done(what, "there was no such partition")
    remedy = f"see SHOW PARTITIONS {statement.name}, or write DROP IF EXISTS PARTITION"
    _existing(table, statement.partition, what, remedy)
    done = table.drop_partition(statement.partition)
    return Done(what, f"dropped, snapshot {done.id}")


def _existing(table: Table, partition: Mapping[str, Any], what: str, remedy: str) -> None:
    """Refuse values that no partition has."""
    if not fitting_partitions(table, partition):
        name = partition_name(specified(table.schema, partition, f"table {table.name!r}"))
        raise ConfigurationError(f"{what}: there must be a partition {name}, there is none; {remedy}")
