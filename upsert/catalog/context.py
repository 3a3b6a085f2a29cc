"""What a statement needs of its catalog: names and the tables that they mean, options, the planner."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from upsert.catalog.connectors.base import Connector
from upsert.catalog.connectors.definition import Definition, PlainView, connect, definition_in, no_table
from upsert.catalog.namespace import Catalogs, Databases, TableRef
from upsert.catalog.session import SessionOptions
from upsert.catalog.system_tables import split
from upsert.errors import ConfigurationError, CorruptTableError, TableExistsError, TableNotFoundError
from upsert.materializer.choice import Changes, Sink, UnprovenKeyWarning, choose
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import TableSchema
from upsert.spark.connect import is_connect
from upsert.store import Table
from upsert.store.paths import table_folder
from upsert.views.refresh import PreparedViews

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from upsert.catalog.query_recorder import QueryRecorder
    from upsert.spark.planned_batch import ReadForArrow
    from upsert.sql.query import QueryText, Reference
    from upsert.views.refresh import Plan, ViewShape


@dataclass(frozen=True)
class Refreshed:
    """Asks ``optimize`` how a refresh computes the rows of a view by what has changed; of a batch query."""

    view: ViewShape


@dataclass(frozen=True)
class Unnested:
    """Asks ``optimize`` for a query over streams with its subqueries as joins.

    Spark refuses subqueries over streams before there is a plan: so the DataFrame is a batch over temporary
    views in place of the streams. What is made of it is to be optimized in its turn.

    Attributes:
        streams: what makes the stream of each view.
    """

    streams: Mapping[str, Callable[[], DataFrame]]


@dataclass(frozen=True)
class OfText:
    """Asks ``optimize`` for a query by its text, which is its plan over Spark Connect.

    Attributes:
        query: the text.
        references: the tables that it names, in its order, each with the state that is asked for.
        tables: the stream of each; None for one of Spark's.
        told: gets the explanation, also of a query that is refused; None: it is not asked for.
    """

    query: QueryText
    references: Sequence[Reference]
    tables: Sequence[DataFrame | None]
    told: list[Any] | None = None


@dataclass(frozen=True)
class Explained:
    """Asks ``optimize`` what it does, for EXPLAIN.

    Attributes:
        sink_materialize: the sink's option.
        told: what was decided of the texts of the query, over Spark Connect.
    """

    sink_materialize: str
    told: Sequence[Any] = ()


@dataclass(frozen=True)
class RowsInArrow:
    """Asks ``optimize`` what Arrow computes for a plan over one leaf; of the stream whose micro-batch it is.

    Attributes:
        plan: as Spark has optimized it.
        source: the columns of its leaf.
    """

    plan: Any
    source: StructType


Request = Refreshed | Unnested | OfText | Explained | RowsInArrow
"""What a catalog asks of ``optimize``, by its argument ``request``, beside a stream that can be written."""


class Context:
    """The names of a session and the tables that they mean, its options, and what plans its streams.

    Args:
        warehouse: the folder of the first catalog.
        optimize: ``planner.optimize``, or a function like it; see ``Catalog``.
        name: of the first catalog.

    Attributes:
        catalogs: the warehouses that names can begin with, and the current one.
        options: what ``SET`` sets, see ``upsert.catalog.session``.
        mirrors: the queries of this session that keep mirrors of topics, by the folder of the table.
        views: the queries of this session that keep materialized views, by the folder of the view.
        prepared_views: how this session refreshes materialized views.
        temporary_views: the plain views of this session, by catalog, database and name.
        exposed_to: the sessions whose own SQL has the tables.
        recorders: what records the queries of a session in a warehouse, by the session and that folder.
        told: gets what is decided of queries that are planned by their text; None: it is not asked for.
        gives_rows: whether a SELECT that needs no Spark gives rows, no DataFrame, also where a session is.
        settings: of the Spark session that statements will get, as far as they are known before there is one.
    """

    def __init__(
        self, warehouse: str | os.PathLike[str], optimize: Callable[..., DataFrame] | None, name: str
    ) -> None:
        if optimize is not None and not callable(optimize):
            raise ConfigurationError(
                f"catalog: optimize must be a function, got {type(optimize).__name__}; give planner.optimize"
            )
        self.catalogs = Catalogs(Databases(table_folder(warehouse), name))
        self.options = SessionOptions()
        self.mirrors: dict[str, StreamingQuery] = {}
        self.views: dict[str, StreamingQuery] = {}
        self.prepared_views = PreparedViews()
        self.temporary_views: dict[str, PlainView] = {}
        self.exposed_to: WeakSet[SparkSession] = WeakSet()
        self.recorders: dict[tuple[SparkSession, str], QueryRecorder] = {}
        self._optimize = optimize
        self.told: list[Any] | None = None
        self.gives_rows = False
        self.settings: Mapping[str, str] = {}

    @property
    def databases(self) -> Databases:
        """The databases of the current catalog; names of tables are looked up in the current one of these."""
        return self.catalogs.current

    @property
    def warehouse(self) -> str:
        """The absolute path of the current catalog's folder."""
        return self.databases.folder

    def tables(self, database: str | None = None) -> tuple[str, ...]:
        """As ``Catalog.tables``."""
        if database is None:
            return self.databases.tables().names()
        databases, own = self.catalogs.database(database)
        return databases.tables(own).names()

    def table(self, name: str) -> Table:
        """As ``Catalog.table``."""
        own, system = split(name)
        if system is not None:
            raise ConfigurationError(
                f"table {name!r}: must be a managed table, got a system table of {own!r}; read it with "
                f"SELECT * FROM {name}, or with catalog.read"
            )
        connected = self.connected(name)
        return self.managed(name) if connected is None else connected.mirror_table()

    def plain_view(self, name: str) -> PlainView | None:
        """The plain view of this name; None for a table, or if there is nothing.

        Raises:
            ConfigurationError: it is one of the session and also a table, which another process has made.
        """
        table_ref = self.databases.resolve(name)
        definition, is_defined = None, True
        try:
            definition = definition_in(table_ref.path)
        except TableNotFoundError:
            is_defined = False
        if (temporary := self.temporary_views.get(table_ref.qualified)) is not None:
            if is_defined:
                raise ConfigurationError(
                    f"{table_ref.shown!r} is a temporary view of this session, and also in the catalog; DROP "
                    "TEMPORARY VIEW, and create it under another name"
                )
            return temporary
        catalog = table_ref.qualified.partition(".")[0]
        return None if definition is None else PlainView.of(definition, catalog, table_ref.path)

    def new(self, name: str) -> TableRef:
        """The name of a table that is to be created, or is there; refuses that of a plain view."""
        table_ref = self.databases.resolve(name)
        view: PlainView | None = self.temporary_views.get(table_ref.qualified)
        with suppress(CorruptTableError):  # what it is is found out by what creates the table
            view = view or self.plain_view(name)
        if view is not None:
            word = "TEMPORARY VIEW" if view.is_temporary else "VIEW"
            raise TableExistsError(
                f"{table_ref.shown!r} is a view; choose another name, or write DROP {word} first"
            )
        return table_ref

    def schema(self, name: str) -> TableSchema:
        """As ``Catalog.schema``."""
        if (temporary := self.temporary_views.get(self.databases.resolve(name).qualified)) is not None:
            return temporary.schema
        definition = self.databases.resolve(name).found(definition_in)
        return self.managed(name).schema if definition is None else definition.schema

    def connected(self, name: str, options: Mapping[str, str] = {}) -> Connector | None:
        """As ``Catalog.connected``."""
        definition, table_ref = self.definition(name), self.databases.resolve(name)
        return None if definition is None else connect(table_ref.shown, definition, table_ref.path, options)

    def definition(self, name: str) -> Definition | None:
        """How the table of this name with a connector is defined; None for a managed table."""
        table_ref = self.databases.resolve(name)
        if table_ref.qualified in self.temporary_views:
            raise no_table(table_ref.shown)
        return table_ref.found(definition_in)

    def managed(self, name: str) -> Table:
        """The table in the folder of this name, which must be a managed one."""
        return self.databases.resolve(name).found(Table.open)

    def optimized(
        self, df: DataFrame, name: str, sink: Sink | None, start_from: str | os.PathLike[str] | None = None
    ) -> DataFrame:
        """A DataFrame as it may be written: what ``optimize`` made of it, or changes with their kinds.

        A batch comes back as it is. The sink is None if it is not known; ``start_from`` is the checkpoint of
        the query that a stream continues. Warns where it is not known whether the key tells the rows apart.
        """
        changes = self._carried(
            df, name, None if sink is None else sink.key, start_from, rule=None if sink is None else sink.rule
        )
        if not changes.isStreaming or sink is None:
            return changes
        choice = choose(sink, Changes.of_schema(changes.schema.jsonValue()))
        if choice.is_materialized and start_from is not None:
            raise ConfigurationError(
                f"{sink.name}: {choice.reason}, and the hidden table with the rows of its keys belongs to "
                "the query of the other checkpoint; leave start_from out"
            )
        if sink.mode == "force":
            # a sink that keeps its rows needs every kind of change, as one without a key does
            return self._carried(df, name, (), start_from)
        if choice.is_unproven:
            finds_out = (
                "over Spark Connect only an INSERT INTO of catalog.sql finds out"
                if is_connect(df)
                else "make the catalog as Catalog(warehouse, optimize=planner.optimize), which finds out"
            )
            warnings.warn(
                f"{sink.name}: {choice.reason} of this stream; {finds_out}, or say 'sink.materialize' = "
                "'none' if it does, 'force' if it does not",
                UnprovenKeyWarning,
                stacklevel=3,
            )
        return changes

    def with_lookups(self, df: DataFrame) -> DataFrame:
        """A batch DataFrame whose joins with tables that are only looked up are lookups."""
        return df if self._optimize is None or is_connect(df) else self._optimize(df)

    @property
    def takes_requests(self) -> bool:
        """Whether ``optimize`` answers a `Request`."""
        return self._optimize_with("request") is not None

    def asked(self, df: DataFrame, request: Request, **more: Any) -> Any:
        """What ``optimize``, which takes requests, makes of a DataFrame for one."""
        assert self._optimize is not None
        return self._optimize(df, request=request, **more)

    @property
    def view_plan(self) -> Plan | None:
        """How views are refreshed: by what has changed, where ``optimize`` takes requests."""
        return (lambda df, shape: self.asked(df, Refreshed(shape))) if self.takes_requests else None

    def telling(self, told: list[Any]) -> Context:
        """The same, whose queries that are planned by their text say there what is decided."""
        found = copy(self)
        found.told = told
        return found

    @property
    def in_arrow(self) -> ReadForArrow | None:
        """What finds out which expressions of a stream Arrow computes, where ``optimize`` takes requests."""
        if not self.takes_requests:
            return None
        return lambda df, plan, source: self.asked(df, RowsInArrow(plan, source))

    def explained(self, df: DataFrame, sink: Sink | None, told: Sequence[Any] = ()) -> Any:
        """How a streaming query is executed: its ``str`` is for people, ``to_json()`` the same as values.

        ``told`` is what was decided of its texts, over Spark Connect, where they are its plan.
        """
        if not self.takes_requests:
            raise ConfigurationError(
                "EXPLAIN: a streaming query needs a catalog that plans delta joins; make it as "
                "Catalog(warehouse, optimize=planner.optimize)"
            )
        if sink is None:
            return self.asked(df, Explained("auto", told))
        return self.asked(df, Explained(sink.mode, told), sink_key=sink.key, sink_rule=sink.rule)

    def _optimize_with(self, parameter: str) -> Callable[..., Any] | None:
        """``optimize``, if it has such a parameter, or takes any."""
        if (optimize := self._optimize) is None:
            return None
        parameters = inspect.signature(optimize).parameters
        takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        return optimize if takes_any or parameter in parameters else None

    def _carried(
        self,
        df: DataFrame,
        name: str,
        sink_key: Sequence[str] | None,
        start_from: str | os.PathLike[str] | None,
        *,
        rule: str | None = None,
    ) -> DataFrame:
        if start_from is not None and self._optimize_with("start_from") is None:
            raise ConfigurationError(
                f"table {name!r}: start_from needs a catalog that plans delta joins; make it as "
                "Catalog(warehouse, optimize=planner.optimize)"
            )
        if self._optimize is not None and df.isStreaming:
            of_sink = {"sink_key": sink_key, "sink_rule": rule}
            given = {name: value for name, value in of_sink.items() if self._optimize_with(name) is not None}
            before = {} if start_from is None else {"start_from": os.fspath(start_from)}
            return self._optimize(df, **given, **before)
        if df.isStreaming and ROW_KIND_COLUMN not in df.columns:
            raise ConfigurationError(
                f"table {name!r}: a stream must have the column {ROW_KIND_COLUMN!r}, or changes that have "
                "lost their kind would look like upserts; make the catalog as "
                "Catalog(warehouse, optimize=planner.optimize), which can tell them apart"
            )
        return df
