"""Statements about materialized views, and how a view's query becomes rows at some versions of its tables."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from upsert import types
from upsert.catalog.connectors.definition import PlainView, definition_in
from upsert.catalog.context import Context
from upsert.catalog.create_as.create_as import (
    NewTable,
    derived_schema,
    fill_table,
    replace_table,
    stages_of,
)
from upsert.catalog.job_hooks import JobStatusHook
from upsert.catalog.namespace import TableRef
from upsert.catalog.results import Done, PlanText, Result, Rows, Running
from upsert.catalog.run import jobs
from upsert.catalog.run.definitions import database, drop_existing, is_materialized_view
from upsert.catalog.run.queries import frame, query_position, temporary_name
from upsert.catalog.run.shows import matching
from upsert.catalog.session import CHECKPOINT, TRIGGER
from upsert.catalog.system_tables import split
from upsert.errors import (
    ConfigurationError,
    CorruptTableError,
    DatabaseNotFoundError,
    SchemaError,
    TableExistsError,
    TableNotFoundError,
    UpsertError,
)
from upsert.schema import Index, TableSchema
from upsert.spark.columns import fits, type_name
from upsert.spark.connect import is_connect
from upsert.spark.formats import active
from upsert.spark.functions import functions_of
from upsert.spark.variables import with_variables
from upsert.sql import statements as s
from upsert.sql.query import QueryText, Reference
from upsert.sql.show_create import WAS_THERE, declared_names, view_was_there
from upsert.sql.volatile import functions_in, subquery_in
from upsert.store.alterations import ResetOptions, SetOptions
from upsert.store.storage import storage_of
from upsert.store.table import Table
from upsert.store.table_options import TableOptions, with_own_columns
from upsert.views.hidden_tables import release_all
from upsert.views.progress import Bases, Versions
from upsert.views.refresh import Explained, Plan, Refresher, ViewShape, explained
from upsert.views.session import (
    Dependence,
    Settings,
    own_session,
    settings,
    variable_in,
    what_it_depends_on,
    what_text_depends_on,
)
from upsert.views.view import (
    OPTION,
    REMEDY,
    Base,
    View,
    ViewDefinition,
    ViewText,
    check_can_keep,
    checkpoint_in,
    definition_of,
    fields_of,
    newest_versions,
    origin_of,
    within,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def create_view(context: Context, statement: s.CreateView, spark: SparkSession | None) -> Result:
    """``CREATE MATERIALIZED VIEW``, which in streaming mode also starts to keep the view up to date."""
    if context.options.is_streaming and (given := jobs.active(spark)) is not None:
        check_can_keep(statement.name, given)
    done = create(context, statement, spark)
    if not context.options.is_streaming:
        return done
    session = jobs.needed(spark, done.statement, context.options.forwarded())
    return _started(context, opened(context, statement.name, session), done.statement)


def create(context: Context, statement: s.CreateView, spark: SparkSession | None) -> Done:
    """Create a view: it exists with all rows of its query, or not at all."""
    table_ref = context.new(statement.name)
    what = f"CREATE MATERIALIZED VIEW {table_ref.shown}"
    if statement.or_replace and statement.if_not_exists:
        raise ConfigurationError(f"{what}: either OR REPLACE or IF NOT EXISTS, got both; leave one out")
    before: View | None = None
    if table_ref.exists:
        if statement.if_not_exists:
            return Done(what, _as_it_was(table_ref, statement))
        if not statement.or_replace:
            raise TableExistsError(
                f"view {table_ref.shown!r}: a table or view of this name exists already; choose another "
                "name, OR REPLACE or IF NOT EXISTS"
            )
        before = opened(context, statement.name, spark)  # only a view is replaced
    session = jobs.needed(spark, what, context.options.forwarded())
    target, rows = _planned(context, table_ref, statement, session)
    stages, make = stages_of(table_ref.tables), fill_table if before is None else replace_table
    try:
        make(stages, target, rows, JobStatusHook())
    except BaseException:
        for uuid in target.uuids:
            if not _is_there(table_ref, uuid):
                _release(uuid, target.bases)
        raise
    if before is None:
        return Done(what, "created")
    _forget(before)
    return Done(what, "replaced")


def _is_there(table_ref: TableRef, uuid: str) -> bool:
    """Whether a name is that of the table with this uuid; so it is said where that cannot be told."""
    try:
        return Table.open(table_ref.existing()).uuid == uuid
    except (TableNotFoundError, DatabaseNotFoundError):
        return False
    except (UpsertError, OSError):
        return True


def _as_it_was(table_ref: TableRef, statement: s.CreateView) -> str:
    """What is said of a view that stays; who deploys a changed query would take it for changed."""
    try:
        found = definition_of(Table.open(table_ref.path))
    except UpsertError:  # it is a view of another kind, or its readers are told what is wrong
        return WAS_THERE
    if found is None:
        return f"{WAS_THERE}, as a table"
    return view_was_there("MATERIALIZED VIEW", statement.query.text, found.query)


def refresh_view(context: Context, statement: s.RefreshView, spark: SparkSession | None) -> Result:
    """``REFRESH MATERIALIZED VIEW``: brings it up to date; in streaming mode starts to keep it so."""
    what = f"REFRESH MATERIALIZED VIEW {statement.name}"
    view = opened(context, statement.name, spark)
    view.check_may_run()  # before a session is asked for, which may have to be started
    jobs.needed(spark, what, context.options.forwarded())
    if context.options.is_streaming:
        return _started(context, view, what)
    return Done(what, "refreshed" if view.refresh() else "was up to date")


def explain_view(context: Context, statement: s.ExplainView, spark: SparkSession | None) -> Rows:
    """``EXPLAIN [CREATE] MATERIALIZED VIEW``: how it is refreshed, a line a row; JSON is one row."""
    view = statement.view
    shown = f"MATERIALIZED VIEW {view}" if isinstance(view, str) else f"CREATE MATERIALIZED VIEW {view.name}"
    session = jobs.needed(spark, f"EXPLAIN {shown}", context.options.forwarded())
    if isinstance(view, str):
        found = opened(context, view, session).explained()
    else:
        found = _explained(context, view, session)
    if statement.is_json:
        return PlanText.of(f"EXPLAIN {shown}", [json.dumps(found.to_json())])
    return PlanText.of(f"EXPLAIN {shown}", str(found).splitlines())


def _explained(context: Context, statement: s.CreateView, session: SparkSession) -> Explained:
    """What a refresh of a view that is not there would do."""
    table_ref = context.databases.resolve(statement.name)
    target, rows = _planned(context, table_ref, statement, session)
    mode = TableOptions.parse(target.options, target.schema, f"view {table_ref.shown!r}").refresh
    with nullcontext() if is_connect(rows) else active(rows.sparkSession):
        shape = ViewShape(table_ref.path, "", target.schema.primary_key)
        return explained(target.plan, shape, mode, rows)


def alter_view(context: Context, statement: s.AlterView) -> Done:
    """``ALTER MATERIALIZED VIEW v`` of its options or its comment."""
    what = f"ALTER MATERIALIZED VIEW {statement.name}"
    view = opened(context, statement.name, None)
    change = statement.change
    keys = (*change.options,) if isinstance(change, SetOptions) else ()
    keys = change.keys if isinstance(change, ResetOptions) else keys
    if OPTION in map(str.lower, keys):
        raise ConfigurationError(
            f"{what}: option {OPTION!r} holds the view's definition, which only CREATE OR REPLACE "
            "MATERIALIZED VIEW changes; leave it out"
        )
    view.table.alter(change)
    return Done(what, "altered")


def suspend_view(context: Context, statement: s.SuspendView, spark: SparkSession | None) -> Result:
    """``ALTER MATERIALIZED VIEW v SUSPEND`` and ``RESUME``; the latter starts it again in streaming mode."""
    word = "SUSPEND" if statement.is_suspended else "RESUME"
    what = f"ALTER MATERIALIZED VIEW {statement.name} {word}"
    view = opened(context, statement.name, spark)
    if statement.is_suspended:
        view.suspend()
        return Done(what, "suspended")
    view.resume()
    if not context.options.is_streaming:
        return Done(what, "resumed")
    jobs.needed(spark, what, context.options.forwarded())
    return _started(context, view, what)


def drop_view(context: Context, statement: s.DropView) -> Result:
    """``DROP MATERIALIZED VIEW``: stops the query of this session that keeps it, and drops its table."""
    table_ref = context.databases.resolve(statement.name)
    what = f"DROP MATERIALIZED VIEW {table_ref.shown}"
    if not table_ref.exists and statement.if_exists:
        stages = stages_of(table_ref.tables)
        with suppress(TableExistsError), table_ref.tables.alone():  # a process is creating it
            begun = stages.entry(table_ref.name)
            if begun is not None and begun.mode == "batch":  # a stream goes on with what it has begun
                stages.sweep(table_ref.name)
        return Done(what, "was not there")
    view = opened(context, statement.name, None)
    view.stop()  # before, so that it does not end with an error
    drop_existing(context, table_ref)
    _forget(view)
    return Done(what, "dropped")


def drop_database(context: Context, statement: s.DropDatabase) -> Result:
    """``DROP DATABASE``, with CASCADE also what its views have elsewhere."""
    views = _views_in(context, statement.name) if statement.cascade else []
    done = database(context, statement)
    for view in views:
        _forget(view)
    return done


def _views_in(context: Context, name: str) -> list[View]:
    """The materialized views of a database; without those that are damaged, of which nothing is known."""
    found: list[View] = []
    with suppress(DatabaseNotFoundError):
        for own in context.tables(name):
            full = f"{name}.{own}"
            with suppress(UpsertError):
                if is_materialized_view(context.databases.resolve(full)):
                    found.append(opened(context, full, None))
    return found


def _forget(view: View) -> None:
    """Stop the query of this session that kept a view which is gone, and delete what is left elsewhere."""
    view.stop()
    _release(view.table.uuid, view.bases)
    shutil.rmtree(view.checkpoint, ignore_errors=True)  # there is one if a query has kept the view


def _release(uuid: str, bases: Bases) -> None:
    """Let the base tables expire what a view and its hidden tables have held."""
    release_all(uuid, (path for path, _ in bases.values()))


def show_views(context: Context, statement: s.ShowViews) -> Result:
    """``SHOW MATERIALIZED VIEWS``: name, state and query of each."""
    found: list[dict[str, str | None]] = []
    for name in matching(context.tables(statement.database), statement.like):
        full = name if statement.database is None else f"{statement.database}.{name}"
        try:
            path = context.databases.resolve(full).existing()
            if definition_in(path) is None and definition_of(Table.open(path)) is not None:
                view = opened(context, full, None)
                found.append({"view": name, "state": _state(view), "query": view.definition.query})
        except (TableNotFoundError, DatabaseNotFoundError):
            continue  # it was dropped since
        except CorruptTableError as damage:  # it may be one, and the others are to be seen
            found.append({"view": name, "state": f"damaged: {damage}", "query": None})
    return Rows.listed(
        "SHOW MATERIALIZED VIEWS", dict.fromkeys(("view", "state", "query"), pa.string()), found
    )


def _state(view: View) -> str:
    if view.definition.is_suspended:
        return "suspended"
    try:
        is_current = view.newest_versions() == view.base_versions
    except (TableNotFoundError, SchemaError) as refusal:
        return f"cannot be refreshed: {refusal}"
    return "running" if view.query is not None else "up to date" if is_current else "behind"


def opened(context: Context, name: str, spark: SparkSession | None) -> View:
    """The view of a name; refuses a table that is none."""
    table_ref = context.databases.resolve(name)
    path = table_ref.existing()
    table = None if definition_in(path) is not None else Table.open(path)
    definition = None if table is None else definition_of(table)
    if table is None or definition is None:
        found = "table" if context.plain_view(name) is None else "plain view"
        raise ConfigurationError(
            f"{table_ref.shown!r} is a {found}, and no materialized view; CREATE MATERIALIZED VIEW makes one"
        )
    shown, query = table_ref.shown, _Query(table_ref.shown, table_ref.warehouse, definition)
    location = context.options.value(CHECKPOINT) or table_ref.warehouse
    bases, rows_at = query.bases, partial(query.rows, view=table.schema)
    meant = Settings(definition.zone, definition.is_ansi, definition.settings)
    own = partial(own_session, meant=meant)

    def refresher() -> Refresher:
        of_query = jobs.needed(spark, f"view {shown}"), own, rows_at, bases
        return Refresher(shown, path, table.uuid, *of_query, context.view_plan, context.prepared_views)

    return View(shown, table, bases, checkpoint_in(location, table.uuid), context.views, refresher)


def _started(context: Context, view: View, what: str) -> Result:
    if not storage_of(view.checkpoint).is_local and context.options.value(CHECKPOINT) is None:
        raise jobs.unreachable_checkpoint(what)
    return Running(what, view.start(context.options.value(TRIGGER)), view.checkpoint)


def _bases(
    context: Context, view: TableRef, references: Sequence[Reference]
) -> tuple[dict[str, Base], dict[str, ViewText]]:
    """The tables that a view's query reads, and the plain views, by names; refuses what has no versions."""
    found: dict[str, Base] = {}
    plain: dict[str, ViewText] = {}
    for reference in references:
        what = f"view {view.shown!r}: table {reference.name!r} at {reference.position}"
        table_ref, read = _checked(context, view, reference, what)
        if read is None:
            found[reference.name] = _base(view, table_ref, reference.name, what)
            continue
        plain[read.text.name] = read.text
        # it was checked that no view reads itself when it was created
        below = within(read.text, read.catalog, QueryText.of(read.text.query, subject=what))
        own_bases, own_views = _bases(context, view, below)
        found |= own_bases
        plain |= own_views
    return found, plain


def _checked(
    context: Context, view: TableRef, reference: Reference, what: str
) -> tuple[TableRef, PlainView | None]:
    """What a view reads, which is kept in its catalog and has versions; with it the plain view that it is."""
    if split(reference.name)[1] is not None:
        raise SchemaError(f"{what} is a system table, which has no versions; query it where it is needed")
    table_ref = context.databases.resolve(reference.name)
    read = context.plain_view(reference.name)
    if table_ref.is_temporary or (read is not None and read.is_temporary):
        raise SchemaError(f"{what} is temporary, and only this session has it; create one that stays")
    if not table_ref.exists:
        not_found = str(table_ref.tables.not_found(table_ref.name))
        missing = jobs.missing_in_catalog(None, reference.name, not_found)
        raise SchemaError(f"{what} must be a table of the catalog: {missing}")
    if reference.as_of is not None or reference.options or reference.changes is not None:
        raise SchemaError(
            f"{what} is read as it is at each refresh; leave out FOR SYSTEM_…, OPTIONS and table_changes"
        )
    if table_ref.warehouse != view.warehouse:
        raise SchemaError(f"{what} must lie in the catalog of the view; create the view there")
    return table_ref, read


def _base(view: TableRef, table_ref: TableRef, name: str, what: str) -> Base:
    """A table that a view reads under a name."""
    path = table_ref.existing()
    if definition_in(path) is not None:
        raise SchemaError(
            f"{what} must be a managed table, which has versions; keep one equal to it with INSERT INTO "
            "… SELECT in streaming mode, and read that"
        )
    if path == view.path:
        raise SchemaError(f"{what} is the view itself; give the view another name")
    qualified = table_ref.qualified.partition(".")[2]
    table = Table.open(path)
    columns = tuple(declared_names(table.schema))
    origins = tuple(origin_of(table.schema, column) for column in columns)
    return Base(name, qualified, table.uuid, columns, origins, fields_of(table.schema))


@dataclass(frozen=True)
class _Query:
    """The query of a view."""

    name: str
    warehouse: str
    definition: ViewDefinition

    @property
    def context(self) -> Context:
        """Where its names are looked up: as in the session that created the view."""
        context = Context(self.warehouse, None, self.definition.catalog)
        context.databases.current = self.definition.database  # which may be gone: not each name is of it
        return context

    @property
    def bases(self) -> Bases:
        """The tables that it reads, also those of a database that is gone."""
        databases = self.context.databases
        return {b.table: (databases.path_of(b.table), b.uuid) for b in self.definition.bases}

    def rows(self, session: SparkSession, versions: Versions, view: TableSchema | None = None) -> DataFrame:
        """Its rows at some versions of its tables; refuses those that a ``view`` cannot hold."""
        self._check_functions(session)
        pinned = {base.name: versions[base.table] for base in self.definition.bases}
        # a view of an earlier release has Spark's variables in its text, which Spark exchanges
        text = with_variables(self.definition.query, session)
        query = QueryText.of(text, subject=f"view {self.name!r}")
        context = self.context
        catalog = self.definition.catalog
        columns, is_altered = {}, False
        for base in self.definition.bases:
            schema = Table.open(context.databases.resolve(base.table).path, base.uuid).schema
            is_altered |= bool(base.changed(schema))
            if view is not None:
                self.definition.check(base, schema, self.name, view.names)
            if seen := base.seen(schema):
                columns[base.name] = seen
        views = {f"{catalog}.{text.name}": text for text in self.definition.views}
        try:
            df = frame(
                context, session, query, is_streaming=False, pinned=pinned, columns=columns, views=views
            )
        except SchemaError as cause:
            if is_altered:
                raise SchemaError(f"{cause}; a table that it reads has been altered: {REMEDY}") from cause
            raise
        if view is not None:
            self._check(df, view)
        return df

    def _check_functions(self, session: SparkSession) -> None:
        """Refuse to compute rows by other functions than the earlier ones were computed by."""
        if not (meant := self.definition.functions):
            return
        found = functions_of(session, meant)
        if (name := next((one for one in meant if found.get(one) != meant[one]), None)) is not None:
            present = "another one" if name in found else "none"
            raise SchemaError(
                f"view {self.name!r}: the session must have the function {name!r} with which the view was "
                f"created, got {present}; CREATE that one again, or {REMEDY}"
            )

    def _check(self, df: DataFrame, view: TableSchema) -> None:
        """Refuse rows that the view cannot hold."""
        if tuple(df.columns) != view.names:
            wanted, found = ", ".join(view.names), ", ".join(df.columns)
            raise SchemaError(self._altered(f"its query must give the columns {wanted}, got {found}"))
        for given, column in zip(df.schema, view.columns, strict=True):
            if not fits(given.dataType, column.type):
                wanted, found = types.sql_name(column.type), type_name(given.dataType)
                raise SchemaError(self._altered(f"column {column.name!r} must be {wanted}, got {found}"))

    def _altered(self, what: str) -> str:
        return f"view {self.name!r}: {what}, as a table that it reads has been altered; {REMEDY}"


@dataclass(frozen=True)
class _NewView(NewTable):
    """A view that is being created: a table, and the versions of the tables that its first rows are of.

    ``uuids`` gets the uuid of the table when that is filled, and holds what it reads.
    """

    versions: Versions = field(default_factory=dict)
    bases: Bases = field(default_factory=dict)
    plan: Plan | None = None
    uuids: list[str] = field(default_factory=list)

    def make_outside(self, folder: str) -> tuple[str, ...]:  # noqa: ARG002
        """What it will hold changes of, until the next statement where this process is killed."""
        return tuple(path for path, _ in self.bases.values())

    def fill(self, folder: str, rows: DataFrame) -> None:
        """Refresh the empty view."""

        def rows_at(session: SparkSession, versions: Versions) -> DataFrame:  # noqa: ARG001 - the present ones
            return rows

        of_query = rows.sparkSession, lambda session: session, rows_at, self.bases
        uuid = Table.open(folder).uuid
        self.uuids.append(uuid)
        Refresher(self.name, folder, uuid, *of_query, self.plan).refresh(self.versions)


def _called(query: QueryText, views: Iterable[ViewText]) -> set[str]:
    """The names of functions in a view's query, and in the plain views that it reads."""
    return {name for text in (query.text, *(view.query for view in views)) for name in functions_in(text)}


def _dependence(
    query: QueryText, views: Iterable[ViewText], functions: Mapping[str, str], rows: DataFrame
) -> Dependence | None:
    """What but its tables decides which rows a view's query gives."""
    if not is_connect(rows):
        reading = next((name for name, said in functions.items() if subquery_in(said)), None)
        if reading is not None:
            return Dependence(f"the query within the function {reading!r}", None)
        return what_it_depends_on(rows)
    alone = QueryText.of(query.text)
    texts = [alone.over([temporary_name() for _ in alone.references]).text, *(view.query for view in views)]
    found = (what_text_depends_on(rows.sparkSession, text) for text in texts)
    return next((one for one in found if one is not None), None) or variable_in(rows)


def _planned(
    context: Context, table_ref: TableRef, statement: s.CreateView, spark: SparkSession
) -> tuple[_NewView, DataFrame]:
    """The view of a statement, and its rows at the present versions of its tables."""
    here, meant = context.databases, settings(spark)
    found, plain = _bases(context, table_ref, statement.query.references)
    if not found:
        raise SchemaError(
            f"view {table_ref.shown!r}: its query reads no table; CREATE TABLE … AS SELECT keeps constant "
            "rows"
        )
    definition = ViewDefinition(
        statement.query.text,
        here.catalog,
        here.current,
        meant.zone,
        meant.is_ansi,
        tuple(found.values()),
        views=tuple(plain.values()),
        settings=meant.others,
        functions=functions_of(spark, _called(statement.query, plain.values())) or None,
    )
    query = _Query(table_ref.shown, table_ref.warehouse, definition)
    versions = newest_versions(table_ref.shown, query.bases)
    rows = query.rows(own_session(spark, meant), versions)
    functions = definition.functions or {}
    if (other := _dependence(statement.query, plain.values(), functions, rows)) is not None:
        at = "" if other.offset is None or plain else f" (at {query_position(statement.query, other.offset)})"
        raise SchemaError(
            f"view {table_ref.shown!r}: its query depends on {other.on}{at}, so it may give other rows for "
            "the same tables; write the value into the query, or into a table that it reads"
        )
    schema = derived_schema(
        table_ref.name,
        rows.schema,
        primary_key=statement.primary_key,
        partitioned_by=statement.partitioned_by,
        indexes=map(Index.over, statement.indexes),
        comment=statement.comment,
    )
    if variants := [column.name for column in schema.columns if types.has_variant(column.type)]:
        raise SchemaError(
            f"view {table_ref.shown!r}: column {variants[0]!r} is VARIANT, which Spark does not compare, so "
            "no refresh can tell what has changed; take values out of it with variant_get, or use to_json"
        )
    given = with_own_columns(statement.options, types.any_case(schema.names))
    options = context.options.with_defaults(given) | {OPTION: definition.to_option()}
    own = versions, query.bases, context.view_plan
    return _NewView(table_ref.name, schema, options, None, *own), rows
