"""``CREATE VIEW`` and what belongs to it: names for queries, kept in the catalog or in the session.

A kept view lies where a table of its name would, as one file, so a name is that of one thing, and a view
appears, changes and disappears at one moment. It stores no rows: its query is read where a query reads it.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from upsert.catalog.connectors.definition import PlainView, define, definition_in, redefine
from upsert.catalog.create_as.create_as import derived_schema, stages_of
from upsert.catalog.results import Done, Rows
from upsert.catalog.run.definitions import is_materialized_view
from upsert.catalog.run.jobs import missing_in_catalog, needed
from upsert.catalog.run.queries import frame
from upsert.catalog.run.scans import StreamNeededError
from upsert.catalog.run.shows import matching, temporary_views
from upsert.catalog.system_tables import split
from upsert.errors import (
    ConfigurationError,
    CorruptTableError,
    SchemaError,
    TableExistsError,
    TableNotFoundError,
)
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import Column, TableSchema
from upsert.sql import statements as s
from upsert.sql.show_create import declared_names, view_was_there
from upsert.types import first_repeated
from upsert.views.view import SeenTable, ViewText

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from upsert.catalog.context import Context
    from upsert.catalog.namespace import TableRef
    from upsert.sql.query import QueryText


def create_plain_view(context: Context, statement: s.CreatePlainView, spark: SparkSession | None) -> Done:
    """``CREATE [OR REPLACE] [TEMPORARY] VIEW``; its query is read, so that what is wrong is told now."""
    word = "TEMPORARY VIEW" if statement.is_temporary else "VIEW"
    table_ref = context.databases.resolve(statement.name)
    what = f"CREATE {word} {table_ref.shown}"
    before = _existing(context, table_ref, statement, what)
    if before is not None and statement.if_not_exists:
        return Done(what, view_was_there(word, statement.query.text, before.text.query))
    _check_tables(context, table_ref, statement, spark)
    view = _planned(context, table_ref, statement, spark)
    if statement.is_temporary:
        context.temporary_views[table_ref.qualified] = view
    else:
        _keep(table_ref, view, replaces=before is not None)
    return Done(what, "created" if before is None else "replaced")


def _existing(
    context: Context, table_ref: TableRef, statement: s.CreatePlainView, what: str
) -> PlainView | None:
    """The view that the statement replaces or leaves as it is; refuses a name that something else has."""
    before = context.plain_view(statement.name)
    is_same = before is not None and before.is_temporary == statement.is_temporary
    if before is None and not table_ref.exists:
        return None
    if is_same and (statement.or_replace or statement.if_not_exists):
        return before
    found = "table" if before is None else "temporary view" if before.is_temporary else "view"
    remedy = ", OR REPLACE or IF NOT EXISTS" if is_same else ""
    raise TableExistsError(f"{what}: there is a {found} of this name; choose another name{remedy}")


def _check_tables(
    context: Context, table_ref: TableRef, statement: s.CreatePlainView, spark: SparkSession | None
) -> None:
    """Refuse a query over what is not in the catalog, and a kept one over what other processes lack."""
    for reference in statement.query.references:
        of = f"view {table_ref.shown!r}: table {reference.name!r} at {reference.position}"
        read = context.databases.resolve(reference.name.partition("$")[0])
        is_temporary = read.qualified in context.temporary_views
        if not is_temporary and not read.exists:
            missing = missing_in_catalog(spark, reference.name, str(read.tables.not_found(read.name)))
            raise SchemaError(f"{of} must be one of the catalog: {missing}")
        if statement.is_temporary:
            continue
        remedy = "or CREATE TEMPORARY VIEW"
        if is_temporary or read.is_temporary:
            raise SchemaError(f"{of} is temporary, and only this session has it; keep it, {remedy}")
        if read.warehouse != table_ref.warehouse:
            raise SchemaError(f"{of} must lie in the catalog of the view; create the view there, {remedy}")


def _planned(
    context: Context, table_ref: TableRef, statement: s.CreatePlainView, spark: SparkSession | None
) -> PlainView:
    subject = f"view {table_ref.shown!r}"
    session = needed(spark, subject, context.options.forwarded())
    rows = _rows(context, session, statement.query, table_ref)
    given = tuple(rows.columns)
    columns = statement.columns or given
    if len(columns) != len(given):
        raise SchemaError(
            f"{subject}: its query must give {len(columns)} columns ({', '.join(columns)}), got {len(given)} "
            f"({', '.join(given)}); name as many, or select others"
        )
    if ROW_KIND_COLUMN in columns:
        raise SchemaError(
            f"{subject}: column name {ROW_KIND_COLUMN!r} is reserved for the kind of a change; name the "
            "columns after the view"
        )
    if repeated := first_repeated(columns):
        raise SchemaError(
            f"{subject}: its query gives two columns {repeated!r}; name the columns after the view"
        )
    schema = derived_schema(table_ref.name, rows.toDF(*columns).schema, comment=statement.comment)
    # a view has no key: nothing is written into it, and Spark finds out by itself what tells its rows apart
    own = tuple(Column(one.name, one.type, one.nullable, one.comment) for one in schema.columns)
    here, name = context.databases, table_ref.qualified.split(".", 1)[1]
    tables = _seen(context, statement.query)
    text = ViewText(name, statement.query.text, here.current, given, columns, tables)
    return PlainView(text, here.catalog, TableSchema(own, comment=statement.comment), statement.is_temporary)


def _seen(context: Context, query: QueryText) -> tuple[SeenTable, ...]:
    """The columns of the managed tables that a query reads, which ``*`` and the places in a UNION mean."""
    return tuple(
        SeenTable(name, tuple(declared_names(context.schema(name))))
        for name in dict.fromkeys(reference.name for reference in query.references)
        if split(name)[1] is None and context.plain_view(name) is None and context.connected(name) is None
    )


def _rows(context: Context, session: SparkSession, query: QueryText, table_ref: TableRef) -> DataFrame:
    """The rows of the query; in streaming mode also of one over topics of changes, which no batch reads."""
    read = partial(frame, context, session, query, inside=(table_ref.qualified,))
    try:
        return read(is_streaming=False)
    except StreamNeededError:
        if not context.options.is_streaming:
            raise
        return read(is_streaming=True).drop(ROW_KIND_COLUMN)


def _keep(table_ref: TableRef, view: PlainView, *, replaces: bool) -> None:
    with table_ref.tables.alone():
        if replaces:
            if definition_in(table_ref.existing()) is None:
                raise TableExistsError(f"view {table_ref.shown!r}: there is a table of this name now")
            redefine(table_ref.path, view.definition)
            return
        if os.path.isfile(table_ref.path):
            raise TableExistsError(
                f"view {table_ref.shown!r}: {table_ref.path!r} is a file; choose another name"
            )
        stages_of(table_ref.tables).sweep(table_ref.name)
        define(table_ref.path, view.definition)


def drop_plain_view(context: Context, statement: s.DropPlainView) -> Done:
    """``DROP [TEMPORARY] VIEW [IF EXISTS]``."""
    table_ref = context.databases.resolve(statement.name)
    what = f"DROP VIEW {table_ref.shown}"
    if context.temporary_views.pop(table_ref.qualified, None) is not None:
        return Done(what, "dropped")
    kept = context.plain_view(statement.name)
    if kept is not None and not statement.must_be_temporary:
        table_ref.tables.drop(table_ref.name)
        return Done(what, "dropped")
    if table_ref.exists:
        found, word = "a view of the catalog", "VIEW"
        if kept is None:
            is_view = is_materialized_view(table_ref)
            found, word = ("a materialized view", "MATERIALIZED VIEW") if is_view else ("a table", "TABLE")
        raise ConfigurationError(f"{what}: {table_ref.shown!r} is {found}; write DROP {word}")
    if statement.if_exists:
        return Done(what, "was not there")
    word = "temporary view" if statement.must_be_temporary else "view"
    raise TableNotFoundError(f"{what}: there is no {word} of this name; see SHOW VIEWS")


def show_plain_views(context: Context, statement: s.ShowPlainViews) -> Rows:
    """``SHOW VIEWS``: name, whether it is one of the session, and query of each."""
    databases, own = context.catalogs.database(statement.database)
    temporary = temporary_views(context, databases, own)
    found: list[dict[str, Any]] = []
    for name in matching(sorted({*databases.tables(own).names(), *temporary}), statement.like):
        try:
            view = context.plain_view(f"{databases.catalog}.{own}.{name}")
        # it may be one, and the others are to be seen
        except (CorruptTableError, ConfigurationError) as damage:
            found.append({"view": name, "temporary": name in temporary, "query": f"damaged: {damage}"})
            continue
        if view is not None:
            found.append({"view": name, "temporary": view.is_temporary, "query": view.text.query})
    columns = {"view": pa.string(), "temporary": pa.bool_(), "query": pa.string()}
    return Rows.listed("SHOW VIEWS", columns, found)
