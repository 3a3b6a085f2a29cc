"""Statements that need no Spark: a SELECT of columns of one table, a list of rows, many an UPDATE and DELETE.

A SELECT is one where there is no session, or rows are wanted, for else its result is a DataFrame; the others
always.

They have the results that Spark gives in a session with its own settings. Whatever may have others there, or
would take long in one process, is left to Spark. See docs/decisions/0121.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
from sqlglot import exp

from upsert import types
from upsert.catalog.run.assignments import default_text, has_ansi_casts
from upsert.catalog.run.plain_select import (
    Columns,
    NotPlainError,
    PlainSelect,
    UnknownColumnError,
    listed_rows,
    literals,
    plain_select,
    plain_update,
)
from upsert.catalog.run.scans import is_read_otherwise, zone
from upsert.catalog.system_tables import read as system_rows
from upsert.catalog.system_tables import split
from upsert.conditions.evaluate import type_of
from upsert.conditions.expressions import Condition, Const, Field, Ref, walk
from upsert.errors import ConfigurationError, SchemaError, StorageError, TableNotFoundError, UpsertError
from upsert.managed.reader import size_of
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.schema import Column, TableSchema
from upsert.spark.connect import is_connect
from upsert.sql.checks import condition_of
from upsert.sql.dialect import expression_tree, placed
from upsert.sql.predicates import alternatives, instant, pushed
from upsert.sql.query import AsOf, AsOfKind, Reference
from upsert.store import Table
from upsert.store.predicate import Where, parse_where
from upsert.store.rows.computed import Filtered, First, InArrow, Input, NotInArrowError, Projected, Step

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from upsert.catalog.context import Context
    from upsert.sql import statements as s
    from upsert.sql.query import QueryText

_MOST_BYTES: Final = 64 << 20
"""Of rows that are found, and of files where there is a session; Spark gives more of them to its tasks."""

_MOST_READ: Final = 512 << 20
"""Of files where there is none, and neither a key nor a LIMIT says that few rows are read."""


def selected(context: Context, spark: SparkSession | None, statement: s.Select) -> pa.Table | None:
    """The rows of a query, as ``DataFrame.toArrow`` would give them; None where Spark is needed."""
    query = statement.query
    if context.options.is_streaming or (given := _Given.of(context, spark, query)) is None:
        return None

    def found() -> pa.Table | None:
        if (plain := plain_select(query, given.source.names)) is None:
            return None
        are_ordered = all(types.is_scalar(given.source.types[column]) for column, _ in plain.orders)
        return given.rows(query, plain) if are_ordered else None

    rows = _unless_variable(spark, found)
    return None if rows is None else _as_spark(rows)


def listed(
    context: Context,
    spark: SparkSession | None,
    query: QueryText,
    columns: Sequence[Column],
    schema: TableSchema,
) -> pa.Table | None:
    """The rows of a list, with all columns that a table has; None where Spark is needed.

    ``columns`` are those that the list gives, in its order. A session may be there, which counts then.
    """
    settings = _Settings.of(context) if spark is None else _Settings.of_session(spark, query.text)
    if settings is None or (values := listed_rows(query, columns, settings.zone)) is None:
        return None
    count = len(query.tree.expressions)
    given = dict(zip((column.name for column in columns), values, strict=True))
    for column in schema.columns:
        if column.name not in given:
            default = _default(column, query.subject)
            found = None if default is None else literals([default], column, settings.zone)
            if found is None:
                return None
            given[column.name] = found * count
    return pa.table({column.name: pa.array(given[column.name], column.type) for column in schema.columns})


def updated(
    context: Context, spark: SparkSession | None, statement: s.Update, schema: TableSchema, snapshot: int
) -> pa.Table | None:
    """What an UPDATE makes of the rows of a snapshot that it finds; None where Spark is needed.

    In a table without a key the rows of before are among them, as deletions.
    """
    given = _Given.of(context, spark, statement.rows, snapshot)
    if given is None:
        return None
    return _unless_variable(spark, lambda: _updated(given, statement, schema))


def deleted(context: Context, spark: SparkSession | None, query: QueryText, snapshot: int) -> pa.Table | None:
    """The rows of a snapshot that a DELETE finds, as deletions; None where Spark is needed."""
    given = _Given.of(context, spark, query, snapshot)
    if given is None:
        return None

    def found() -> pa.Table | None:
        plain = plain_select(query, given.source.names)
        return None if plain is None else given.rows(query, plain)

    rows = _unless_variable(spark, found)
    return None if rows is None else _with_kinds({RowKind.DELETE: rows})


def _unless_variable(spark: SparkSession | None, found: Callable[[], pa.Table | None]) -> pa.Table | None:
    """What is found; None where a name is no column, and a session may have a variable that is called so."""
    try:
        return found()
    except UnknownColumnError:
        if spark is None:
            raise
        return None


def _updated(given: _Given, statement: s.Update, schema: TableSchema) -> pa.Table | None:
    query = statement.rows
    if (read := plain_update(query, given.source.names)) is None:
        return None
    plain, nodes = read
    values = dict[str, Condition]()
    for name, node in zip(statement.columns, nodes, strict=True):
        own = None if name in statement.defaults else node
        if (value := _value(query, plain, given, schema.column(name), own)) is None:
            return None
        values[name] = value
    found = given.rows(query, plain)
    return None if found is None else _with_values(found, given.source, values, schema)


def _with_values(
    rows: pa.Table, source: _Source, values: Mapping[str, Condition], schema: TableSchema
) -> pa.Table | None:
    """Rows with the values that some columns get; None where Spark says what overflows."""
    names = rows.column_names
    outputs = tuple((name, values.get(name, Field(Ref(0, name)))) for name in names)
    try:
        new = InArrow(Projected(source.filtered(None), outputs), (*names,), rows.schema).rows([rows])
    except NotInArrowError:
        return None
    return new if schema.primary_key else _with_kinds({RowKind.DELETE: rows, RowKind.INSERT: new})


def _value(
    query: QueryText, plain: PlainSelect, given: _Given, column: Column, node: exp.Expr | None
) -> Condition | None:
    """What a column gets of each row, its DEFAULT for None; None where Spark would convert it."""
    if node is None and (node := _default(column, query.subject)) is None:
        return None
    if (values := literals([node.unnest()], column, given.settings.zone)) is not None:
        return Const(values[0], column.type)
    return given.condition(query, plain, node, column.type)


def _default(column: Column, subject: str) -> exp.Expr | None:
    """The DEFAULT of a column, NULL for none; None where two readers may differ in what its text escapes."""
    text = default_text(column)
    return None if "\\" in text else expression_tree(text, subject).unnest()


def _with_kinds(rows: Mapping[RowKind, pa.Table]) -> pa.Table:
    kinds = pa.chunked_array([pa.repeat(kind.value, one.num_rows) for kind, one in rows.items()], pa.string())
    return pa.concat_tables(rows.values()).append_column(ROW_KIND_COLUMN, kinds)


@dataclass(frozen=True)
class _Settings:
    """How a session reads SQL: as Spark does by default, in a time zone; None: an unknown one.

    ``most_read`` is how many bytes of files this process reads sooner than Spark. Without ``is_ansi`` values
    of two types may meet in another one: an INT and a FLOAT in a FLOAT.
    """

    zone: str | None
    most_read: int
    is_ansi: bool = True

    @classmethod
    def of(cls, context: Context) -> _Settings | None:
        """Those of a session that is still to come; None if it may read a text otherwise."""
        given = {**context.settings, **context.options.forwarded()}
        of_sql = {key: value for key, value in given.items() if key.startswith("spark.sql.")}
        own = of_sql.pop(_ZONE, None)
        if of_sql or _are_said_elsewhere(os.environ):
            return None
        if own is None:
            return cls(_zone_of_machine(os.environ), _MOST_READ)
        return cls(own, _MOST_READ) if _is_zone(own) else None

    @classmethod
    def of_session(cls, spark: SparkSession, text: str) -> _Settings | None:
        """Those of a session; None if it may read a text otherwise, or is one whose files are elsewhere."""
        if is_connect(spark) or is_read_otherwise(spark, text):
            return None
        own = zone(spark)
        return cls(own if _is_zone(own) else None, _MOST_BYTES, has_ansi_casts(spark))


def is_read_by_default(context: Context) -> bool:
    """Whether a session that is still to come has Spark's default settings of SQL, as far as is known."""
    return _Settings.of(context) is not None


_ZONE: Final = "spark.sql.session.timeZone"
_OF_SUBMIT: Final = (
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_SUBMIT_OPTS",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "_JAVA_OPTIONS",
)
_MODES: Final = ("SPARK_ANSI_SQL_MODE", "SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE")
"""Variables by which all sessions of an environment have other settings."""


def _are_said_elsewhere(environ: Mapping[str, str]) -> bool:
    """Whether Spark's configuration may say how SQL is read."""
    if any(environ.get(name) for name in _MODES):
        return True
    if any(
        "spark.sql" in environ.get(name, "") or "spark.remote" in environ.get(name, "") for name in _OF_SUBMIT
    ):
        return True
    home = environ.get("SPARK_HOME") or _home_of_pyspark()
    folder = environ.get("SPARK_CONF_DIR") or os.path.join(home, "conf")
    try:
        text = Path(folder, "spark-defaults.conf").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    except (OSError, UnicodeDecodeError):
        return True  # Spark says what is wrong with it
    return "spark.sql" in text or "spark.remote" in text


def _home_of_pyspark() -> str:
    import pyspark

    return os.path.dirname(os.path.abspath(pyspark.__file__))


def _zone_of_machine(environ: Mapping[str, str]) -> str | None:
    """The zone that Java takes for this machine's; None where it is not sure."""
    if any("user.timezone" in environ.get(name, "") for name in _OF_SUBMIT):
        return None
    if (name := environ.get("TZ")) is not None:
        return name if _is_zone(name) else None
    name = os.path.realpath("/etc/localtime").partition("/zoneinfo/")[2]
    try:
        told = Path("/etc/timezone").read_text(encoding="utf-8").strip()
    except OSError:
        told = name
    return name if name == told and _is_zone(name) else None


def _is_zone(name: str) -> bool:
    """Whether Java, Python and Arrow know a zone by the name."""
    try:
        return bool(ZoneInfo(name).key) and not name.startswith(("posix", "right"))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False


@dataclass(frozen=True)
class _Source:
    """A table as a query reads it.

    Attributes:
        types: of its columns, in their order.
        read: gives some columns of the rows of which a condition is true, a piece at a time; None where these
            may be too many. Its last argument says that it is read no further than to some first rows.
        schema: None for a system table, which takes no condition.
    """

    types: Mapping[str, pa.DataType]
    read: Callable[[Sequence[str], Where, bool], Iterator[pa.Table] | None]
    schema: TableSchema | None = None

    @property
    def names(self) -> list[str]:
        """Its columns."""
        return [*self.types]

    @property
    def arrow(self) -> pa.Schema:
        """The columns in Arrow."""
        return pa.schema(list(self.types.items()))

    def of(self, names: Iterable[str]) -> _Source:
        """The same with some of its columns."""
        return replace(self, types={name: self.types[name] for name in names})

    def filtered(self, condition: Condition | None) -> Step:
        """Its rows, those of which a condition is true."""
        rows = Input(0, tuple((name, name, type_) for name, type_ in self.types.items()))
        return rows if condition is None else Filtered(rows, condition, (*self.types,))


def _source(context: Context, reference: Reference, settings: _Settings, subject: str) -> _Source | None:
    """The table of a query; None for what is read by Spark, or of which Spark says what is wrong."""
    if reference.options or reference.changes is not None:
        return None
    name, system = split(reference.name)
    try:
        table_ref = context.databases.resolve(name)
        if (
            not table_ref.exists
            or context.plain_view(name) is not None
            or context.definition(name) is not None
        ):
            return None
        table = context.managed(name)
    except StorageError:
        raise
    except (UpsertError, ValueError):
        return None  # it may be a file, which Spark reads
    if system is not None:
        return _of_system(table, system, reference, subject)
    if table.schema.computed:
        return None
    state, schema = None, table.schema
    if reference.as_of is not None and (state := _state(table, reference.as_of, settings)) is None:
        return None
    snapshot = table.snapshot(state)

    def read(columns: Sequence[str], where: Where, ends_soon: bool) -> Iterator[pa.Table] | None:
        asked = parse_where(where, schema)
        is_large = size_of(snapshot, asked).bytes > settings.most_read and not (ends_soon and not where)
        return None if is_large and snapshot.named_keys(asked) is None else snapshot.pieces(columns, where)

    return _Source({name: schema.type_of(name) for name in schema.names}, read, schema)


def _state(table: Table, as_of: AsOf, settings: _Settings) -> int | str | None:
    """The snapshot or the tag that a query names; None where Spark is needed to read it."""
    if as_of.kind is AsOfKind.VERSION:
        return int(as_of.value) if as_of.is_number else as_of.value
    if as_of.kind is not AsOfKind.TIMESTAMP:
        return None
    try:
        time = instant(as_of.value, settings.zone)
    except ValueError:
        return None
    return table.published.at_time(int(time.timestamp() * 1000)).id


def _of_system(table: Table, system: str, reference: Reference, subject: str) -> _Source | None:
    if reference.as_of is not None:
        return None
    try:
        rows = system_rows(table, system)
    except TableNotFoundError as cause:
        raise TableNotFoundError(placed(f"{subject}: {cause}", reference.position)) from None

    def read(columns: Sequence[str], where: Where, ends_soon: bool) -> Iterator[pa.Table]:  # noqa: ARG001
        return iter([rows.select(columns)])

    return _Source({field.name: field.type for field in rows.schema}, read)


@dataclass(frozen=True)
class _Asked:
    """The condition of a query: comparisons of the store's, and what is left to ask of the rows."""

    where: Where
    rest: Condition | None = None

    @property
    def columns(self) -> list[str]:
        """Those that ``rest`` is about."""
        parts = [] if self.rest is None else walk(self.rest)
        return [part.ref.column for part in parts if isinstance(part, Field)]


@dataclass(frozen=True)
class _Given:
    """The one table that a query reads, and how the session reads the text."""

    settings: _Settings
    source: _Source

    @classmethod
    def of(
        cls, context: Context, spark: SparkSession | None, query: QueryText, snapshot: int | None = None
    ) -> _Given | None:
        """That of a query, of a snapshot where one is given; None where Spark is needed."""
        settings = _Settings.of(context) if spark is None else _Settings.of_session(spark, query.text)
        if settings is None or len(query.references) != 1:
            return None
        (reference,) = query.references
        if snapshot is not None:
            reference = replace(reference, as_of=AsOf(AsOfKind.VERSION, str(snapshot), is_number=True))
        source = _source(context, reference, settings, query.subject)
        return None if source is None else cls(settings, source)

    def type_of(self, ref: Ref) -> pa.DataType:
        """The type of a column."""
        return self.source.types[ref.column]

    def condition(
        self, query: QueryText, plain: PlainSelect, tree: exp.Expr, wanted: pa.DataType
    ) -> Condition | None:
        """What an expression of the query is; None for one of another type, or that is Spark's.

        Raises:
            UnknownColumnError: it names a column that the table does not have.
        """
        columns = Columns(query, plain.called, self.source.names)
        if not self.settings.is_ansi:
            return None
        if any(math.isinf(float(one.name)) for one in tree.find_all(exp.Literal) if not one.is_string):
            return None  # Spark has no literal for it
        try:
            found = condition_of(
                tree, lambda node: Ref(0, columns.column(node)), self.type_of, query.subject, "found"
            )
            return found if type_of(found, self.type_of) == wanted else None
        except UnknownColumnError:
            raise
        except (SchemaError, ConfigurationError, NotPlainError):
            return None

    def rows(self, query: QueryText, plain: PlainSelect) -> pa.Table | None:
        """The rows of the query; None where Spark is needed."""
        if (asked := self._asked(query, plain)) is None:
            return None
        try:
            return _found(plain, self.source, asked)
        except NotInArrowError:
            return None  # an overflow, of which Spark says where it is

    def _asked(self, query: QueryText, plain: PlainSelect) -> _Asked | None:
        """The condition; None for one that Spark may judge otherwise."""
        if plain.where is None:
            return _Asked([])
        schema, own = self.source.schema, self.settings.zone
        if schema is not None:
            with suppress(SchemaError):  # it may be more than comparisons with literals
                return _Asked(alternatives(plain.where, schema, own, query.subject, plain.called))
        rest = self.condition(query, plain, plain.where, pa.bool_())
        if rest is None:
            return None
        (reference,) = query.references
        return _Asked([] if schema is None else pushed(reference.where, schema, own), rest)


def _found(plain: PlainSelect, source: _Source, asked: _Asked) -> pa.Table | None:
    """The rows; None where they are too many for one process.

    Raises:
        NotInArrowError: Spark has to find them.
    """
    by = [column for column, _ in plain.orders]
    wanted = [*(column for _, column in plain.outputs), *by, *asked.columns] or source.names[:1]
    needed = source.of(dict.fromkeys(wanted))
    most = None if plain.limit is None else plain.limit + plain.offset
    ends = sys.maxsize if most is None or plain.orders else most
    pieces = source.read(needed.names, asked.where, ends < sys.maxsize)
    passing = InArrow(needed.filtered(asked.rest), (*needed.names,), needed.arrow)
    parts, count = [needed.arrow.empty_table()], 0
    for piece in () if pieces is None else pieces:
        rows = passing.rows([piece]).slice(0, ends - count)
        count += rows.num_rows
        parts += [rows] if plain.count is None else []
        if count >= ends or sum(part.nbytes for part in parts) > _MOST_BYTES:
            break
    if pieces is None or sum(part.nbytes for part in parts) > _MOST_BYTES:
        return None
    if plain.count is not None:
        return pa.table({plain.count: pa.array([count], pa.int64())})
    orders = tuple((Field(Ref(0, column)), *how) for column, how in plain.orders)
    first = First(needed.filtered(None), orders, most, (*needed.names,))
    schema = pa.schema([(name, source.types[column]) for name, column in plain.outputs])
    columns = tuple(column for _, column in plain.outputs)
    return InArrow(first, columns, schema).rows([pa.concat_tables(parts)]).slice(plain.offset)


def _as_spark(rows: pa.Table) -> pa.Table:
    """Rows in the types of ``DataFrame.toArrow``."""

    def in_spark(type_: pa.DataType) -> pa.DataType:
        if pa.types.is_timestamp(type_):
            return types.TIMESTAMP_NTZ if type_.tz is None else types.TIMESTAMP
        return types.in_spark(type_) if types.is_scalar(type_) else types.with_inner(type_, in_spark)

    wanted = [in_spark(type_) for type_ in rows.schema.types]
    columns = [
        column if column.type == type_ else column.cast(type_)
        for column, type_ in zip(rows.columns, wanted, strict=True)
    ]
    return pa.table(columns, names=rows.column_names)
