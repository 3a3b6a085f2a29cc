"""Statements that make, change and drop tables, databases and catalogs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, assert_never

from upsert import types
from upsert.catalog.connectors.definition import (
    VIEW,
    Definition,
    columns_of,
    connect,
    define,
    definition_in,
    no_table,
)
from upsert.catalog.create_as.create_as import stages_of
from upsert.catalog.namespace import TableRef
from upsert.catalog.results import Done, Result
from upsert.catalog.run.assignments import default_of
from upsert.catalog.run.jobs import active, needed
from upsert.catalog.run.scans import check_read_alike
from upsert.errors import (
    ConfigurationError,
    CorruptTableError,
    TableExistsError,
    TableNotFoundError,
    UpsertError,
)
from upsert.schema import Column, ComputedColumn
from upsert.spark.batches import arrow_of, collected
from upsert.sql import statements as s
from upsert.sql.checks import check_default, check_of, with_checks
from upsert.sql.columns import of_connector
from upsert.sql.show_create import WAS_THERE, create_text, declared_names, was_there
from upsert.store import Table
from upsert.store.alterations import (
    AddCheck,
    AddColumn,
    AddComputed,
    Alteration,
    SetDefault,
    TrackPartition,
)
from upsert.store.log_options import TOPIC
from upsert.store.read.row_metadata import with_metadata_aside
from upsert.store.rows.partitions import is_within, specified
from upsert.store.table_options import MATERIALIZED_VIEW, VIEW_REFRESH, with_own_columns
from upsert.types import any_case
from upsert.views.view import definition_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from upsert.catalog.context import Context
    from upsert.store.read.statistics import PartitionInfo

_OWN: Final = (TOPIC, MATERIALIZED_VIEW.key, VIEW_REFRESH.key)
"""Options that CREATE TABLE … LIKE does not take over."""


def check_kept(statement: s.Statement, spark: SparkSession | None) -> None:
    """Refuse a text that a statement has its table keep, if the session reads it otherwise than others do."""
    texts = [*_kept(statement)]
    session = active(spark) if texts else None
    for what, text in texts:
        check_read_alike(session, text, what)


def _kept(statement: s.Statement) -> Iterator[tuple[str, str]]:
    """The statement, and each text that its table keeps: DEFAULT, CHECK, what a column is computed from."""
    columns: list[Column | ComputedColumn] = []
    texts: list[str | None] = []
    match statement:
        case s.CreateTable(name=name, schema=declared) | s.CreateTableLike(name=name, declared=declared):
            what = f"CREATE TABLE {name}"
            columns = [*declared.columns, *declared.computed]
            texts = [one.text for one in declared.checks]
        case s.AlterTable(name=name, changes=changes):
            what = f"ALTER TABLE {name}"
            columns = [one.column for one in changes if isinstance(one, AddColumn | AddComputed)]
            texts = [one.default for one in changes if isinstance(one, SetDefault)]
        case s.AddConstraint(name=name, check=check):
            what, texts = f"ALTER TABLE {name}", [check.text]
        case _:
            return
    texts += [one.default if isinstance(one, Column) else one.expression for one in columns]
    yield from ((what, text) for text in texts if text)


def create_table(context: Context, statement: s.CreateTable, spark: SparkSession | None) -> Result:
    """``CREATE TABLE``: a managed table gets the options ``table-storage.…`` that it does not give itself."""
    table_ref = context.new(statement.name)
    what = f"CREATE TABLE {table_ref.shown}"
    if statement.options.get("connector", "").lower() == VIEW:
        raise ConfigurationError(f"{what}: a view is no connector; write CREATE VIEW … AS query")
    for option in (MATERIALIZED_VIEW.key, VIEW_REFRESH.key):
        if option in map(str.lower, statement.options):
            raise ConfigurationError(
                f"{what}: option {option!r} is that of a view; write CREATE MATERIALIZED VIEW"
            )
    own = any_case(declared_names(statement.schema))
    path, options = table_ref.path, with_own_columns(statement.options, own)
    if os.path.isfile(path):
        raise TableExistsError(f"table {table_ref.shown!r}: {path!r} is a file; choose another name")
    make: Callable[[], object]
    if (connector := options.pop("connector", None)) is not None:
        definition = Definition(connector, of_connector(statement.schema, (), what), options)
        connect(table_ref.shown, definition, path).check_target(lambda: needed(spark, what))
        make = partial(define, path, definition)
    else:
        options = context.options.with_defaults(options)
        make = partial(Table.create, path, statement.schema, options)
    with table_ref.tables.alone():
        try:
            _sweep(table_ref)
            make()
        except TableExistsError as cause:
            if not table_ref.exists:
                raise  # one that is being created does not exist yet
            if not statement.if_not_exists:
                raise TableExistsError(
                    f"table {table_ref.shown!r} exists already; choose another name, or CREATE TABLE IF NOT "
                    "EXISTS"
                ) from cause
        else:
            return Done(what, "created")
    return Done(what, _as_it_was(context, table_ref, statement, options))


def _as_it_was(
    context: Context, table_ref: TableRef, statement: s.CreateTable, options: Mapping[str, str]
) -> str:
    """What is said of a table that stays; who deploys a changed statement would take it for changed."""
    try:
        given, schema = given_options(table_ref.path), context.schema(statement.name)
    except UpsertError:  # its readers are told why it cannot be read
        return WAS_THERE
    if MATERIALIZED_VIEW.key in given:
        return f"{WAS_THERE}, as a view"
    asked, connector = statement.schema, statement.options.get("connector")
    if connector is not None:
        asked, options = of_connector(asked, (), statement.name), {"connector": connector, **options}
    else:
        asked = with_metadata_aside(asked, statement.name)
        if TOPIC not in options:
            given.pop(TOPIC, None)  # it was found when the table was created
    name = table_ref.shown
    return was_there(create_text(name, asked, options), create_text(name, schema, given))


@contextmanager
def temporary(context: Context, name: str) -> Iterator[None]:
    """``CREATE TEMPORARY TABLE``: from now on the name is that of a temporary table, if one is created."""
    table_ref = context.new(name)
    if table_ref.is_temporary:
        yield  # it is there, which is told as of any other table
        return
    if table_ref.tables.is_taken(table_ref.name):
        raise TableExistsError(
            f"temporary table {table_ref.shown!r}: the catalog has a table of this name, which it would "
            "hide; choose another name"
        )
    catalog, database, own = table_ref.qualified.split(".")
    tables = context.catalogs.database(f"{catalog}.{database}")[0].temporary
    tables.add(database, own)
    try:
        yield
    finally:
        if not tables.tables(database).is_taken(own):
            tables.drop(database, own)


def _drop_temporary(context: Context, statement: s.DropTable) -> Result:
    """``DROP TEMPORARY TABLE``, also where the catalog has a table of the name now."""
    *before, own = statement.name.split(".")
    databases, database = context.catalogs.database(".".join(before) or None)
    dropped = databases.temporary.drop(database, own)
    if not dropped and not statement.if_exists:
        raise TableNotFoundError(
            f"there is no temporary table {statement.name!r}; write DROP TABLE for another one"
        )
    return Done(f"DROP TEMPORARY TABLE {statement.name}", "dropped" if dropped else "was not there")


def create_table_over(context: Context, statement: s.CreateTableOver, spark: SparkSession | None) -> Result:
    """``CREATE TABLE`` without columns, of a connector that tells them."""
    of = f"table {statement.name!r}"
    options = dict(statement.declared.options)
    columns = columns_of(of, options.pop("connector"), options, lambda: needed(spark, of))
    schema = replace(statement.declared, columns=columns).schema(of)
    created = s.CreateTable(statement.name, schema, statement.declared.options, statement.if_not_exists)
    return create_table(context, created, spark)


def create_table_like(context: Context, statement: s.CreateTableLike, spark: SparkSession | None) -> Result:
    """``CREATE TABLE … LIKE``: options that the source has are this table's, before those of the session."""
    source = context.databases.resolve(statement.like.source)
    if context.plain_view(statement.like.source) is not None:
        raise no_table(source.shown)
    of = f"table {statement.name!r}"
    schema, options = statement.like.merged(
        statement.declared,
        context.schema(statement.like.source),
        # a log belongs to one table, a query to one view
        {key: text for key, text in given_options(source.existing()).items() if key.lower() not in _OWN},
        of,
    )
    schema = with_checks(schema, statement.declared.checks, of)
    created = s.CreateTable(statement.name, schema, options, statement.if_not_exists)
    return create_table(context, created, spark)


def given_options(path: str) -> dict[str, str]:
    """The options of a table as they were written, ``connector`` among them."""
    definition = definition_in(path)
    if definition is not None:
        return {"connector": definition.connector, **definition.options}
    return dict(Table.open(path).definition.given)


def rename_table(context: Context, statement: s.RenameTable) -> Result:
    """``ALTER TABLE t RENAME TO u``; queries over ``t`` stop, and continue under the new name."""
    table_ref = context.databases.resolve(statement.name)
    if context.plain_view(statement.name) is not None:
        raise no_table(table_ref.shown)
    table_ref.existing()
    check_no_mirror_runs(context, table_ref)
    database = table_ref.qualified.rpartition(".")[0]
    new = statement.new if "." in statement.new else f"{database}.{statement.new}"
    target = context.new(new)
    if table_ref.is_temporary or target.is_temporary:
        raise ConfigurationError(
            f"table {table_ref.shown!r}: a temporary table keeps its name, got RENAME TO {new!r}; CREATE "
            "TABLE … AS SELECT"
        )
    if target.warehouse != table_ref.warehouse:
        raise ConfigurationError(
            f"table {table_ref.shown!r}: a new name must lie in the same catalog, got {new!r}; create a "
            "table there, and copy the rows"
        )
    table_ref.tables.rename(table_ref.name, target.tables, target.name, lambda: _sweep(target))
    return Done(f"ALTER TABLE {table_ref.shown}", f"renamed to {target.shown}")


def _sweep(table_ref: TableRef) -> None:
    """Delete what a CREATE TABLE AS that died has left under a name."""
    stages_of(table_ref.tables).sweep(table_ref.name)


def drop_table(context: Context, statement: s.DropTable) -> Result:
    """``DROP [TEMPORARY] TABLE``, unless a query of this catalog keeps its mirror."""
    if statement.must_be_temporary:
        return _drop_temporary(context, statement)
    table_ref = context.databases.resolve(statement.name)
    with suppress(CorruptTableError):  # a damaged table can be dropped, whatever it was
        if context.plain_view(statement.name) is not None:
            raise ConfigurationError(f"DROP TABLE: {table_ref.shown!r} is a view; write DROP VIEW")
        if table_ref.exists and is_materialized_view(table_ref):
            raise ConfigurationError(
                f"DROP TABLE: {table_ref.shown!r} is a materialized view; write DROP MATERIALIZED VIEW"
            )
    dropped = drop_existing(context, table_ref)
    if not dropped and not statement.if_exists:
        raise table_ref.tables.not_found(table_ref.name)
    return Done(f"DROP TABLE {table_ref.shown}", "dropped" if dropped else "was not there")


def drop_existing(context: Context, table_ref: TableRef) -> bool:
    """Drop a table or view; False if there is none."""
    check_no_mirror_runs(context, table_ref)
    if not table_ref.is_temporary:
        return table_ref.tables.drop(table_ref.name)
    catalog, database, own = table_ref.qualified.split(".")
    return context.catalogs.database(f"{catalog}.{database}")[0].temporary.drop(database, own)


def check_no_mirror_runs(context: Context, table_ref: TableRef) -> None:
    """Refuse to drop, rename or alter a table while a query of this catalog keeps its mirror."""
    if (query := context.mirrors.get(table_ref.path)) is not None and query.isActive:
        raise ConfigurationError(
            f"table {table_ref.shown!r}: its mirror is kept by a query that runs; stop it first, with ALTER "
            f"TABLE {table_ref.shown} STOP MIRROR"
        )


def alter_table(context: Context, statement: s.AlterTable, spark: SparkSession | None) -> Result:
    """``ALTER TABLE`` of columns, options and comments: all of them in one commit."""
    table, what = changeable(context, statement.name, "ALTER TABLE"), f"ALTER TABLE {statement.name}"
    for change in statement.changes:
        if isinstance(change, SetDefault) and change.default is not None:
            table.schema.type_of(change.name, what)
            check_default(replace(table.schema.column(change.name), default=change.default), what)
    changes = [_with_initial(table, change, spark, what) for change in statement.changes]
    table.alter(*changes)
    return Done(what, "altered")


def _with_initial(table: Table, change: Alteration, spark: SparkSession | None, what: str) -> Alteration:
    """A new column with the value that its DEFAULT has now, for the existing rows."""
    if not isinstance(change, AddColumn) or change.column.default is None:
        return change
    if not types.is_scalar(change.column.type) or not table.snapshot().info.files:
        return change
    one_row = needed(spark, what).range(1)
    value = default_of(change.column, what).alias(change.column.name)
    (found,) = collected(arrow_of(one_row.select(value))).column(0)
    return replace(change, initial=found)


def add_constraint(context: Context, statement: s.AddConstraint) -> Result:
    """``ALTER TABLE t ADD CONSTRAINT name CHECK (…)``, which no existing row may break."""
    table, what = changeable(context, statement.name, "ALTER TABLE"), f"ALTER TABLE {statement.name}"
    table.alter(AddCheck(check_of(statement.check, table.schema, what)))
    return Done(what, f"constraint {statement.check.name!r} added")


def track_partition(context: Context, statement: s.TrackPartitions) -> Result:
    """``ALTER TABLE t PARTITION (…) SET ('change-tracking' = …)``."""
    table = changeable(context, statement.name, "ALTER TABLE")
    table.alter(TrackPartition(statement.partition, statement.is_tracked))
    return Done(f"ALTER TABLE {statement.name}", "altered")


def compact_table(context: Context, statement: s.CompactTable) -> Result:
    """``ALTER TABLE t COMPACT [PARTITION (…)]``, which ends when the files are merged."""
    table = managed(context, statement.name, "ALTER TABLE … COMPACT")
    done = table.compact() if statement.partition is None else table.compact(statement.partition)
    note = "there was nothing to merge" if done is None else f"compacted, snapshot {done.id}"
    return Done(f"ALTER TABLE {statement.name} COMPACT", note)


def roll_back(context: Context, statement: s.RollBack) -> Result:
    """``ALTER TABLE t ROLLBACK TO snapshot``."""
    table = changeable(context, statement.name, "ALTER TABLE … ROLLBACK TO")
    before, done = table.snapshot().id, table.rollback_to(statement.snapshot).id
    note = f"rolled back, snapshot {done}" if done > before else "its rows are those of the snapshot"
    return Done(f"ALTER TABLE {statement.name} ROLLBACK TO {statement.snapshot}", note)


def publish_log(context: Context, statement: s.PublishLog) -> Result:
    """``ALTER TABLE t PUBLISH LOG [ACCEPT GAP]``, which ends when the log has every commit."""
    table = managed(context, statement.name, "ALTER TABLE … PUBLISH LOG")
    sent = table.publish_log(accept_gap=statement.accept_gap)
    note = "the log lacked nothing" if sent == 0 else f"published {sent} commit{'s' * (sent > 1)}"
    return Done(f"ALTER TABLE {statement.name} PUBLISH LOG", note)


def managed(context: Context, name: str, what: str) -> Table:
    """The managed table of a statement that needs one; refuses a table with a connector."""
    if context.connected(name) is not None:
        raise ConfigurationError(
            f"table {name!r}: {what} needs a managed table, got one with a connector, whose data lie "
            "elsewhere; DROP TABLE and CREATE TABLE change its definition"
        )
    return context.managed(name)


def changeable(context: Context, name: str, what: str) -> Table:
    """The managed table of a statement that changes its rows or columns; refuses a view too."""
    table = managed(context, name, what)
    refuse_view(table, what)
    return table


def is_materialized_view(table_ref: TableRef) -> bool:
    """Whether what has this name is a materialized view, by one look: others may drop or replace it."""
    try:
        return definition_of(Table.open(table_ref.path)) is not None
    except (ConfigurationError, TableNotFoundError):  # it has a connector, or is gone
        return False


def refuse_view(table: Table, what: str) -> None:
    """Refuse to change a view as if it were a table."""
    if definition_of(table) is not None:
        raise ConfigurationError(
            f"{what}: {table.name!r} is a materialized view, whose rows are those of its query; change the "
            "tables that it reads, or write … MATERIALIZED VIEW"
        )


def fitting_partitions(table: Table, chosen: Mapping[str, Any]) -> list[PartitionInfo]:
    """The partitions of a table that have some values."""
    wanted = specified(table.schema, chosen, f"table {table.name!r}")
    return [info for info in table.partitions() if is_within(info.partition, wanted)]


def database(context: Context, statement: s.CreateDatabase | s.DropDatabase | s.UseDatabase) -> Result:
    """``CREATE DATABASE``, ``DROP DATABASE`` and ``USE``."""
    databases, name = context.catalogs.database(statement.name)
    match statement:
        case s.CreateDatabase():
            is_new = databases.create(name, if_not_exists=statement.if_not_exists)
            return Done(f"CREATE DATABASE {statement.name}", "created" if is_new else WAS_THERE)
        case s.DropDatabase():
            dropped = databases.drop(name, if_exists=statement.if_exists, cascade=statement.cascade)
            return Done(f"DROP DATABASE {statement.name}", "dropped" if dropped else "was not there")
        case s.UseDatabase():
            databases.use(name)
            context.catalogs.use(databases.catalog)
            return Done(f"USE {statement.name}", "in use")
    assert_never(statement)


def catalog(context: Context, statement: s.CreateCatalog | s.DropCatalog | s.UseCatalog) -> Result:
    """``CREATE CATALOG``, which names a warehouse in this session, ``DROP CATALOG`` and ``USE CATALOG``."""
    match statement:
        case s.CreateCatalog(name=name):
            is_new = context.catalogs.create(name, statement.options, if_not_exists=statement.if_not_exists)
            return Done(f"CREATE CATALOG {name}", "created" if is_new else WAS_THERE)
        case s.DropCatalog(name=name):
            dropped = context.catalogs.drop(name, if_exists=statement.if_exists)
            return Done(f"DROP CATALOG {name}", "dropped" if dropped else "was not there")
        case s.UseCatalog(name=name):
            context.catalogs.use(name)
            return Done(f"USE CATALOG {name}", "in use")
    assert_never(statement)
