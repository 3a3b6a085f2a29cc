"""Which function executes each kind of statement."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final, assert_never

from upsert.catalog.results import Done, Result
from upsert.catalog.run import (
    connector_changes,
    definitions,
    describe,
    explain,
    functions,
    insert,
    jobs,
    merge,
    plain_views,
    procedures,
    queries,
    row_changes,
    shows,
    views,
)
from upsert.catalog.run.stated_names import as_declared
from upsert.sql import statements as s
from upsert.store.metadata.looks import looking_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from upsert.catalog.context import Context


_OF_ROWS: Final = (s.Select, s.Insert, s.Update, s.Delete, s.Merge, s.DescribeTable, s.Explain)
"""Statements that define nothing: each of their steps opens the same tables."""


def execute(context: Context, statement: s.Statement, spark: SparkSession | None) -> Result:
    """Execute a statement; without a session the active one of this thread runs its queries."""
    definitions.check_kept(statement, spark)
    with looking_once() if isinstance(statement, _OF_ROWS) else nullcontext():
        return _executed(context, statement, spark)


def _executed(context: Context, statement: s.Statement, spark: SparkSession | None) -> Result:
    statement = as_declared(context, statement, spark)
    match statement:
        case s.CreateTable():
            return definitions.create_table(context, statement, spark)
        case s.CreateTableOver():
            return definitions.create_table_over(context, statement, spark)
        case s.CreateTableLike():
            return definitions.create_table_like(context, statement, spark)
        case s.CreateTemporaryTable(table=table):
            with definitions.temporary(context, table.name):
                return execute(context, table, spark)
        case s.CreateTableAs():
            return queries.create_table_as(context, statement, spark)
        case s.CreateView():
            return views.create_view(context, statement, spark)
        case s.Explain():
            return explain.explain(context, statement, spark)
        case s.ExplainView():
            return views.explain_view(context, statement, spark)
        case s.RefreshView():
            return views.refresh_view(context, statement, spark)
        case s.AlterView():
            return views.alter_view(context, statement)
        case s.SuspendView():
            return views.suspend_view(context, statement, spark)
        case s.DropView():
            return views.drop_view(context, statement)
        case s.ShowViews():
            return views.show_views(context, statement)
        case s.CreatePlainView():
            return plain_views.create_plain_view(context, statement, spark)
        case s.DropPlainView():
            return plain_views.drop_plain_view(context, statement)
        case s.ShowPlainViews():
            return plain_views.show_plain_views(context, statement)
        case s.DropTable():
            return definitions.drop_table(context, statement)
        case s.AlterTable() if context.definition(statement.name) is not None:  # it may be out of order
            return connector_changes.alter(context, statement)
        case s.KeepMirror():
            return connector_changes.keep_mirror(context, statement, spark)
        case s.AlterTable():
            return definitions.alter_table(context, statement, spark)
        case s.AddConstraint():
            return definitions.add_constraint(context, statement)
        case s.RenameTable():
            return definitions.rename_table(context, statement)
        case s.TrackPartitions():
            return definitions.track_partition(context, statement)
        case s.DropPartition():
            return row_changes.drop_partition(context, statement)
        case s.TruncateTable():
            return row_changes.truncate(context, statement)
        case s.CompactTable():
            return definitions.compact_table(context, statement)
        case s.RollBack():
            return definitions.roll_back(context, statement)
        case s.PublishLog():
            return definitions.publish_log(context, statement)
        case s.CreateCatalog() | s.DropCatalog() | s.UseCatalog():
            return definitions.catalog(context, statement)
        case s.ShowCatalogs():
            return shows.show_catalogs(context, statement)
        case s.DropDatabase():
            return views.drop_database(context, statement)
        case s.CreateDatabase() | s.UseDatabase():
            return definitions.database(context, statement)
        case s.ShowDatabases():
            return shows.show_databases(context, statement)
        case s.ShowTables():
            return shows.show_tables(context, statement)
        case s.ShowCreateTable():
            return shows.show_create_table(context, statement)
        case s.ShowPartitions():
            return shows.show_partitions(context, statement)
        case s.DescribeTable():
            return describe.describe_table(context, statement, spark)
        case s.Call():
            return procedures.call(context, statement, spark)
        case s.ShowProcedures():
            return procedures.show_procedures(statement)
        case s.CreateFunction():
            return functions.create_function(statement, spark)
        case s.DropFunction():
            return functions.drop_function(statement, spark)
        case s.ShowFunctions():
            return functions.show_functions(statement, spark)
        case s.DescribeFunction():
            return functions.describe_function(statement, spark)
        case s.ShowJobs():
            return jobs.show_jobs(context, spark)
        case s.DescribeJob():
            return jobs.describe_job(context, statement, spark)
        case s.StopJob():
            return jobs.stop_job(context, statement, spark)
        case s.SetOption():
            context.options[statement.key] = statement.value
            return Done(f"SET {statement.key}", "set")
        case s.ChangeVariable(what=what, text=text):
            jobs.needed(spark, what).sql(text)
            return Done(what, "done")
        case s.ShowOptions():
            return shows.show_options(context, statement)
        case s.ResetOption():
            return _reset(context, statement, spark)
        case s.Insert():
            return insert.insert_now(context, statement, spark)
        case s.StatementSet():
            return insert.insert_all(context, statement, spark)()
        case s.Delete():
            return row_changes.delete(context, statement, spark)
        case s.Update():
            return row_changes.update(context, statement, spark)
        case s.Merge():
            return merge.merge(context, statement, spark)
        case s.Select():
            return queries.select(context, statement, spark)
    assert_never(statement)


def planned(
    context: Context, statement: s.Statement, spark: SparkSession | None
) -> Callable[[], Result] | Result:
    """What starts the INSERTs of a stream, after all checks; any other statement is executed at once.

    So the queries of a script start when all of them have been checked.
    """
    if context.options.is_streaming:
        match statement:
            case s.Insert():
                return insert.insert(context, statement, spark)
            case s.StatementSet():
                return insert.insert_all(context, statement, spark)
    return execute(context, statement, spark)


def _reset(context: Context, statement: s.ResetOption, spark: SparkSession | None) -> Result:
    options, key = context.options, statement.key
    session = jobs.active(spark)
    for forwarded in options.forwarded():
        if session is not None and key in (None, forwarded):
            session.conf.unset(forwarded)
    if key is None:
        options.clear()
        return Done("RESET", "all options have their defaults")
    options.reset(key)
    return Done(f"RESET {key}", "reset")
