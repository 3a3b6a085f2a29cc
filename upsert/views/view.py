"""A materialized view: its definition, what it stands for, how it is refreshed, the query that keeps it.

Its definition is one option of the view's table, so the view appears, changes and disappears with one commit,
as any table does. The query's text is kept as it was written. Names in it are looked up in the database in
which the view was created, times are read and shown in the time zone of that session, and what else it was
told of the meaning of a text holds for each refresh: otherwise the rows would depend on who refreshes the
view.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, Self

from upsert.codec import MAY_BE_MISSING, Jsonable, written_with
from upsert.errors import (
    ConfigurationError,
    CorruptTableError,
    SchemaError,
    TableNotFoundError,
    UpsertError,
    own_errors_first,
)
from upsert.nested import Form
from upsert.registration import register
from upsert.schema import FieldId, TableSchema
from upsert.show import html
from upsert.spark.connect import needs_classic
from upsert.spark.queries import forget_ended
from upsert.spark.query_writer import QueryWriter, triggered
from upsert.spark.reads import load_stream
from upsert.sql.query import QueryText, Reference
from upsert.sql.reads import Path, Reads
from upsert.store.alterations import SetOptions
from upsert.store.metadata.looks import looking_once
from upsert.store.metadata.stands_for import Refresh
from upsert.store.predicate import Where
from upsert.store.read.snapshot import Snapshot
from upsert.store.read.watch import Shown, watch
from upsert.store.table import Table
from upsert.store.table_options import MATERIALIZED_VIEW
from upsert.views import steps
from upsert.views.progress import Bases, Lag, Versions, known_versions, lag_behind, observed, refreshes_of
from upsert.views.refresh import Explained, Refresher

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

OPTION: Final = MATERIALIZED_VIEW.key
"""The option of the view's table; no statement may set it."""

REMEDY: Final = "CREATE OR REPLACE MATERIALIZED VIEW takes the present ones"
"""What to do where a table has not what it had when the view was created."""


@dataclass(frozen=True)
class Base(Jsonable):
    """A table that the view's query reads.

    Attributes:
        name: as the query writes it.
        table: the table's database and name.
        uuid: the table; one that was dropped and made again is another.
        columns: those that it had when the view was created, computed ones too; the query sees no others.
            () of views that an earlier release has created.
        origins: what tells each of these columns from others that have its name later; see `origin_of`.
        fields: the fields of their structs, with what tells them apart; see `fields_of`.
    """

    name: str
    table: str
    uuid: str
    columns: tuple[str, ...] = field(default=(), metadata=written_with("columns"))
    origins: tuple[str, ...] = field(default=(), metadata=written_with("origins"))
    fields: tuple[FieldId, ...] = field(default=(), metadata=written_with("fields"))

    def changed(self, schema: TableSchema) -> dict[Path, str]:
        """The columns and fields that are gone or are others now, by what is found in their place."""
        present = {*schema.names, *(computed.name for computed in schema.computed)}
        found: dict[Path, str] = {}
        for name, origin in zip_longest(self.columns, self.origins):
            if name not in present:
                found[(name,)] = _GONE
            elif origin is not None and origin_of(schema, name) != origin:
                found[(name,)] = _ANOTHER
        fields = {one.path: one for one in fields_of(schema)} if self.fields else {}
        for one in self.fields:
            if (present_one := fields.get(one.path)) != one and one.path[:1] not in found:
                found[one.path] = _GONE if present_one is None else _ANOTHER
        return found

    def seen(self, schema: TableSchema) -> tuple[str, ...]:
        """The columns that the query sees: those that it saw when the view was created, if they are there."""
        changed = self.changed(schema)
        return tuple(name for name in self.columns if (name,) not in changed)


_GONE: Final = "none"
_ANOTHER: Final = "another one that has its name now"
_INSIDE: Final = ("element", "key", "value")
"""Parts of the path of a field in an array or a map; a text reads such a field by the name before them."""


def origin_of(schema: TableSchema, name: str) -> str:
    """What tells a column of a table from others that had its name, or will have it.

    >>> from upsert.sql.parser import parse
    >>> schema = parse("CREATE TABLE t (a INT, b AS a + 1)").schema
    >>> origin_of(schema, "a"), origin_of(schema, "b")
    ('1', 'a + 1')
    """
    for computed in schema.computed:
        if computed.name == name:
            return computed.expression
    return str(schema.column(name).id)


def fields_of(schema: TableSchema) -> tuple[FieldId, ...]:
    """The fields of the structs of a table, whatever they lie in, with their paths from the table.

    >>> from upsert.sql.parser import parse
    >>> fields_of(parse("CREATE TABLE t (at ARRAY<STRUCT<x: INT>>)").schema)
    (FieldId(path=('at', 'element', 'x'), name='x', number=0),)
    """
    return tuple(
        FieldId((column.name, *part.path), *part.id)
        for column in schema.columns
        for part in _fields_within(column.form)
    )


def _fields_within(form: Form) -> Iterator[Form]:
    for part in form.parts:
        if form.is_struct:
            yield part
        yield from _fields_within(part)


@dataclass(frozen=True)
class SeenTable(Jsonable):
    """The columns of a managed table that a plain view sees: those that it had when the view was created.

    Attributes:
        name: of the table, as the query of the view writes it.
        columns: in their order of then, computed ones too.
    """

    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class ViewText(Jsonable):
    """A plain view: a name for a query, which is evaluated where the view is read.

    Attributes:
        name: database and name of the view.
        query: its text.
        database: in which names without one are looked up.
        given: the names of the query's columns when the view was created.
        columns: the names that they have in the view.
        tables: what it sees of the tables; of a view of an earlier release, which sees all columns, ().
    """

    name: str
    query: str
    database: str
    given: tuple[str, ...]
    columns: tuple[str, ...]
    tables: tuple[SeenTable, ...] = field(default=(), metadata=written_with("tables"))


def within(view: ViewText, catalog: str, query: QueryText) -> list[Reference]:
    """The tables that the query of a view reads, by names with catalog and database."""
    before = {1: f"{catalog}.{view.database}.", 2: f"{catalog}."}
    # the METADATA of changes is checked for the query itself alone
    return [
        replace(one, name=before.get(one.name.count(".") + 1, "") + one.name, is_alone=False)
        for one in query.references
    ]


@dataclass(frozen=True)
class ViewDefinition(Jsonable):
    """What CREATE MATERIALIZED VIEW says, beside what any table has.

    Attributes:
        query: its text.
        catalog: what the session called the catalog, for names of three parts.
        database: in which names without one are looked up.
        zone: the session's time zone.
        is_ansi: whether the session's arithmetic raises errors, as ANSI SQL wants it.
        bases: the tables that the query reads, each name once.
        is_suspended: whether nothing refreshes it until RESUME.
        views: the plain views that the query reads, as they were when it was created.
        settings: others of the session that decide what the query means, as far as it was given them. None
            of views that an earlier release has created, for which those of who refreshes them hold.
        functions: those of the session that the query calls, with what Spark says that they compute.

    >>> view = ViewDefinition("SELECT 1 AS one", "main", "default", "UTC", True, ())
    >>> ViewDefinition.from_option(view.to_option()) == view
    True
    """

    query: str
    catalog: str
    database: str
    zone: str
    is_ansi: bool
    bases: tuple[Base, ...]
    is_suspended: bool = False
    views: tuple[ViewText, ...] = field(default=(), metadata=MAY_BE_MISSING)
    settings: Mapping[str, str] | None = field(default=None, metadata=written_with("settings"))
    functions: Mapping[str, str] | None = field(default=None, metadata=written_with("functions"))

    @property
    def tables(self) -> Mapping[str, str]:
        """Uuid of each table that the query reads, by the table's database and name."""
        return {base.table: base.uuid for base in self.bases}

    def check(self, base: Base, schema: TableSchema, view: str, shown: Sequence[str]) -> None:
        """Check that a table still has what the query reads of it; ``shown`` are the view's columns.

        Raises:
            SchemaError: a column or field that it may read is gone, or another one has its name.
        """
        changed = base.changed(schema)
        reads = self._reads(base.name) if changed else []
        for path, found in changed.items():
            inside = [number for number, part in enumerate(path) if number and part in _INSIDE]
            if inside and found == _GONE:
                continue  # no text tells which fields of elements it reads; Spark's analysis does
            named = path[: min(inside, default=len(path))]
            if any(one is None or one.may_have(named, shown) for one in reads):
                what = f"{'column' if len(path) == 1 else 'field'} {'.'.join(path)!r} of table {base.name!r}"
                raise SchemaError(
                    f"view {view!r}: {what} must be the one that the view was created with, got {found}; "
                    f"{REMEDY}"
                )

    def _reads(self, name: str) -> list[Reads | None]:
        """What the query, and those of plain views, may read of a table, wherever they name it; None: all."""
        query = QueryText.of(self.query)
        found = [one for at, one in zip(query.references, query.reads, strict=True) if at.name == name]
        for view in self.views:
            query = QueryText.of(view.query)
            references = within(view, self.catalog, query)
            own = (one for at, one in zip(references, query.reads, strict=True) if at.name == name)
            found += (None if one is None or one.has_star else one for one in own)
        return found

    def to_option(self) -> str:
        """The value of the table's option."""
        return json.dumps(self.to_json())

    @classmethod
    def from_option(cls, value: str) -> Self:
        """What the table's option says.

        Raises:
            CorruptTableError: it says no view.
        """
        try:
            return cls.from_json(json.loads(value))
        except (ValueError, KeyError, TypeError, RecursionError) as cause:
            raise CorruptTableError(
                f"option {OPTION!r} must hold the definition of a view, got {cause!r}; create the view again"
            ) from cause


CHECKPOINTS: Final = ".views"
"""Folder in the warehouse for the checkpoints of views; no table can have such a name."""


def definition_of(table: Table) -> ViewDefinition | None:
    """The view that a table is; None for any other table."""
    value = table.definition.given.get(OPTION)
    return None if value is None else ViewDefinition.from_option(value)


@dataclass(frozen=True)
class View:
    """A materialized view; ``Catalog.view`` opens one.

    Attributes:
        name: as messages show it.
        table: its rows.
        bases: folder and uuid of each table that the query reads, by the table's database and name.
        checkpoint: folder of the checkpoint of the query that keeps it.
        running: the queries of this session that keep views, by the folder of the view's table.
        refresher: what refreshes it; refused without a Spark session.
    """

    name: str
    table: Table
    bases: Bases
    checkpoint: str
    running: dict[str, StreamingQuery]
    refresher: Callable[[], Refresher]

    def __repr__(self) -> str:
        return f"View({self.name!r})"

    def _repr_html_(self) -> str:
        """For notebooks: its query, what it stands for, how it was last refreshed, and its table."""
        try:
            definition = self.definition
            facts = self._facts()
            facts |= {f"refreshed {name}": refresh.reason for name, refresh in self.refreshes.items()}
        except UpsertError as error:  # what is shown is no place to fail
            return html.page(repr(self), html.block(str(error)))
        return html.page(
            repr(self), html.block(definition.query), html.facts(facts), self.table._repr_html_()
        )

    def _facts(self) -> dict[str, str]:
        """Its state, and what it stands for."""
        is_suspended = self.definition.is_suspended
        state = "suspended" if is_suspended else "up to date" if self.is_current else "behind"
        facts = {"state": f"{state}, running" if self.query else state}
        return facts | {f"snapshot of {name}": str(id) for name, id in self.base_versions.items()}

    def watch(
        self,
        *,
        rows: int = html.MAX_ROWS,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        seconds: float | None = None,
        every: float = 1.0,
    ) -> None:
        """Show the first rows as they are, whether they are behind, and again after each refresh.

        It refreshes nothing: ``start`` does, or another process. For the arguments see ``Table.watch``.

        >>> view.watch(seconds=60)  # doctest: +SKIP
        """

        def look() -> tuple[Snapshot, dict[str, str]]:
            newest = self.table.snapshot()
            try:
                return newest, self._facts()
            except TableNotFoundError as gone:  # of a table that it reads; its own says so in the next look
                return newest, {"state": str(gone)}

        watch(repr(self), look, Shown(rows, columns, where, seconds, every))

    @property
    def definition(self) -> ViewDefinition:
        """Its query, the tables that this reads, and whether it is suspended, as its table says now."""
        self.table.published.latest()
        found = definition_of(self.table)
        assert found is not None  # a table stays a view for its whole life
        return found

    @property
    def base_versions(self) -> Versions:
        """The snapshot of each base table from which the view was computed, by the table's database and name.

        A table that was replaced by an older copy is left out, until the next refresh.
        """
        return dict(known_versions(self.table.snapshot().info, self.bases))

    @property
    def refreshes(self) -> dict[str, Refresh]:
        """How the present rows were computed: the view's by its name, its hidden tables' by theirs.

        Of views that an older release has refreshed last, nothing is known.
        """
        return refreshes_of(self.name, self.table, {base: uuid for base, (_, uuid) in self.bases.items()})

    @property
    def lag(self) -> dict[str, Lag]:
        """How far the view is behind each table that its query reads, by the table's database and name.

        Raises:
            TableNotFoundError: a base table was dropped, or made again.
        """
        with looking_once():
            newest_versions(self.name, self.bases)  # which refuses with the remedy
            known = self.base_versions
            return {base: lag_behind(Table.open(*at), known.get(base, 0)) for base, at in self.bases.items()}

    @property
    def is_current(self) -> bool:
        """Whether no base table has changed since, in its rows or in what the names of its columns mean."""
        with looking_once():
            try:
                return self.newest_versions() == self.base_versions
            except SchemaError:
                return False

    def newest_versions(self) -> Versions:
        """The newest snapshot of each base table, by its database and name, which a refresh brings it to.

        Raises:
            SchemaError: a column or field that the query reads is gone, or another one has its name.
            TableNotFoundError: a base table was dropped, or made again.
        """
        found = newest_versions(self.name, self.bases)
        definition, shown = self.definition, self.table.schema.names
        for base in definition.bases:
            definition.check(base, Table.open(*self.bases[base.table]).schema, self.name, shown)
        return found

    @property
    def query(self) -> StreamingQuery | None:
        """The query of this session that keeps the view up to date; None if none runs."""
        found = self.running.get(self.table.path)
        return found if found is not None and found.isActive else None

    def refresh(self) -> bool:
        """Bring the view to the newest versions of its tables, and wait; False if it was up to date.

        Raises:
            ConfigurationError: the view is suspended, or a session is missing.
            TableNotFoundError: a base table was dropped, or made again.
            SchemaError: the query no longer has the columns and fields that it was created with.
            ChangelogError: the query gives two rows of one key.
            CommitConflictError: another process has refreshed the view meanwhile.
        """
        self.check_may_run()
        with own_errors_first(), looking_once():
            return self.refresher().refresh(self.newest_versions())

    def explain(self) -> str:
        """What a refresh reads and computes, line by line; nothing is computed.

        Raises:
            ConfigurationError: a session is missing.
            TableNotFoundError: a base table was dropped, or made again.
        """
        return str(self.explained())

    def explained(self) -> Explained:
        """As ``explain``, of which it is the ``str``; ``to_json()`` has the same as values.

        Raises:
            ConfigurationError: a session is missing.
            TableNotFoundError: a base table was dropped, or made again.
        """
        with own_errors_first():
            return self.refresher().explain(newest_versions(self.name, self.bases))

    def start(self, trigger: Mapping[str, Any] | None = None) -> StreamingQuery:
        """Keep the view up to date until the query is stopped; called again it returns the running one.

        In the query's progress, ``observedMetrics["view"]`` has the ``lag`` and the ``refreshes`` of the view
        at the end of a micro-batch.

        Args:
            trigger: of the query, as ``DataStreamWriter.trigger`` takes it: ``{"processingTime": "1 hour"}``.

        Raises:
            ConfigurationError: the view is suspended, or a session is missing.
            TableNotFoundError: a base table was dropped, or made again.
        """
        self.check_may_run()
        if (known := self.query) is not None:
            return known
        refresher = self.refresher()
        check_can_keep(self.name, refresher.spark)
        register(refresher.spark)
        versions = self.base_versions
        begin = {path: versions.get(base, 0) for base, (path, _) in self.bases.items()}
        options = {"tables": json.dumps(dict(self.bases.values())), "begin": json.dumps(begin)}
        names = {path: base for base, (path, _) in self.bases.items()}
        options |= {"names": json.dumps(names), "view": self.table.path, "name": self.name}
        df = observed(load_stream(refresher.spark, steps.TableStepsSource, options, reader_lasts=True))
        writer = QueryWriter(df).queryName(f"view {self.name}").option("checkpointLocation", self.checkpoint)

        def keep(told: DataFrame, batch: int) -> None:  # noqa: ARG001 - the view itself knows what is done
            with looking_once():
                self.check_may_run()
                refresher.refresh(self.newest_versions())
            told.collect()  # for Spark's progress, once what it tells of has been done

        query = triggered(writer.foreachBatch(keep), trigger).start()
        forget_ended(self.running)
        self.running[self.table.path] = query
        return query

    def stop(self) -> None:
        """Stop the query of this session that keeps the view up to date, if one runs."""
        if (query := self.query) is not None:
            query.stop()

    def suspend(self) -> None:
        """Refuse refreshes of the view until ``resume``, in any process; stops this session's query."""
        self.stop()
        self._set_suspended(True)

    def resume(self) -> None:
        """Let the view be refreshed again."""
        self._set_suspended(False)

    def _set_suspended(self, is_suspended: bool) -> None:
        definition = self.definition
        if definition.is_suspended != is_suspended:
            changed = replace(definition, is_suspended=is_suspended)
            self.table.alter(SetOptions({OPTION: changed.to_option()}))

    def check_may_run(self) -> None:
        """Refuse what a suspended view does not do.

        Raises:
            ConfigurationError: the view is suspended.
        """
        if self.definition.is_suspended:
            raise ConfigurationError(
                f"view {self.name!r} is suspended; ALTER MATERIALIZED VIEW {self.name} RESUME lets it be "
                "refreshed again"
            )


def check_can_keep(view: str, spark: SparkSession) -> None:
    """Refuse a query that keeps a view where a micro-batch cannot refresh it: that is done in this process.

    Raises:
        ConfigurationError: the session is one of Spark Connect.
    """
    needs_classic(
        spark, f"view {view!r}: a query that keeps it up to date", "REFRESH it in batch mode when it is due"
    )


def newest_versions(view: str, bases: Bases) -> dict[str, int]:
    """The newest snapshot of each base table; refuses a table that was dropped, or made again."""
    found = {}
    for name, (path, uuid) in bases.items():
        try:
            table = Table.open(path, uuid)
        except TableNotFoundError as cause:
            raise TableNotFoundError(
                f"view {view!r}: its query reads table {name!r}, which was dropped or made again; "
                "CREATE OR REPLACE MATERIALIZED VIEW takes the present one"
            ) from cause
        found[name] = table.published.seen.data_version  # which was looked at when it was opened
    return found


def checkpoint_in(folder: str, uuid: str) -> str:
    """Folder of the checkpoint of a view, in that of its warehouse or of ``checkpoint.location``."""
    return os.path.join(folder, CHECKPOINTS, uuid)
