"""The one table that a query reads, the condition of the query, and the rows of which it is true."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import exp

from upsert import types
from upsert.catalog.run.without_spark.columns import Columns, UnknownColumnError
from upsert.catalog.run.without_spark.select import PlainSelect
from upsert.catalog.run.without_spark.settings import MOST_BYTES, Settings
from upsert.catalog.run.without_spark.words import NotPlainError
from upsert.catalog.system_tables import read as system_rows
from upsert.catalog.system_tables import split
from upsert.conditions.evaluate import Types, type_of
from upsert.conditions.expressions import Condition, Field, Ref, walk
from upsert.errors import ConfigurationError, SchemaError, StorageError, TableNotFoundError, UpsertError
from upsert.managed.reader import size_of
from upsert.schema import TableSchema
from upsert.sql.checks import condition_of
from upsert.sql.dialect import placed
from upsert.sql.predicates import alternatives, instant, pushed
from upsert.sql.query import AsOf, AsOfKind, Reference
from upsert.store import Table
from upsert.store.predicate import Where, parse_where
from upsert.store.rows.computed import Filtered, First, InArrow, Input, NotInArrowError, Step
from upsert.store.rows.grouped import RunningGroups

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from upsert.catalog.context import Context
    from upsert.sql.query import QueryText


@dataclass(frozen=True)
class Source:
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

    def of(self, names: Iterable[str]) -> Source:
        """The same with some of its columns."""
        return replace(self, types={name: self.types[name] for name in names})

    def filtered(self, condition: Condition | None) -> Step:
        """Its rows, those of which a condition is true."""
        rows = Input(0, tuple((name, name, type_) for name, type_ in self.types.items()))
        return rows if condition is None else Filtered(rows, condition, (*self.types,))


def _source(context: Context, reference: Reference, settings: Settings, subject: str) -> Source | None:
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
    state = None
    if reference.as_of is not None and (state := _state(table, reference.as_of, settings)) is None:
        return None
    return stored(table, state, settings)


def stored(table: Table, state: int | str | None, settings: Settings) -> Source:
    """The columns of a table that are stored, as of a snapshot or a tag; None: the newest snapshot."""
    snapshot, schema = table.snapshot(state), table.schema

    def read(columns: Sequence[str], where: Where, ends_soon: bool) -> Iterator[pa.Table] | None:
        asked = parse_where(where, schema)
        is_large = size_of(snapshot, asked).bytes > settings.most_read and not (ends_soon and not where)
        return None if is_large and snapshot.named_keys(asked) is None else snapshot.pieces(columns, where)

    return Source({name: schema.type_of(name) for name in schema.names}, read, schema)


def _state(table: Table, as_of: AsOf, settings: Settings) -> int | str | None:
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


def _of_system(table: Table, system: str, reference: Reference, subject: str) -> Source | None:
    if reference.as_of is not None:
        return None
    try:
        rows = system_rows(table, system)
    except TableNotFoundError as cause:
        raise TableNotFoundError(placed(f"{subject}: {cause}", reference.position)) from None

    def read(columns: Sequence[str], where: Where, ends_soon: bool) -> Iterator[pa.Table]:  # noqa: ARG001
        return iter([rows.select(columns)])

    return Source({field.name: field.type for field in rows.schema}, read)


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
class Given:
    """The one table that a query reads, and how the session reads the text."""

    settings: Settings
    source: Source

    @classmethod
    def of(
        cls, context: Context, spark: SparkSession | None, query: QueryText, snapshot: int | None = None
    ) -> Given | None:
        """That of a query, of a snapshot where one is given; None where Spark is needed."""
        settings = Settings.of(context) if spark is None else Settings.of_session(spark, query.text)
        return None if settings is None else cls.read_by(context, settings, query, snapshot)

    @classmethod
    def read_by(
        cls, context: Context, settings: Settings, query: QueryText, snapshot: int | None = None
    ) -> Given | None:
        """As `of`, where it is known how the session reads the text."""
        if len(query.references) != 1:
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
        return self._condition(query, tree, columns.column, self.source.types, wanted)

    def _condition(
        self,
        query: QueryText,
        tree: exp.Expr,
        column: Callable[[exp.Column], str],
        given: Mapping[str, pa.DataType],
        wanted: pa.DataType,
    ) -> Condition | None:
        if not self.settings.is_ansi:
            return None

        def type_of_column(ref: Ref) -> pa.DataType:
            return given[ref.column]

        found = computed(tree, lambda node: Ref(0, column(node)), type_of_column, query.subject)
        return None if found is None or type_of(found, type_of_column) != wanted else found

    def rows(self, query: QueryText, plain: PlainSelect) -> pa.Table | None:
        """The rows of the query; None where Spark is needed."""
        if (asked := self._asked(query, plain)) is None:
            return None
        try:
            if plain.groups is None:
                return _found(plain, self.source, asked)
            groups = RunningGroups(plain.groups.keys, plain.groups.functions, self.source.types)
            kept = None
            if plain.groups.having is not None:
                given = {field.name: field.type for field in groups.schema}
                kept = self._condition(query, plain.groups.having, lambda node: node.name, given, pa.bool_())
                if kept is None:
                    return None
            return _found_groups(plain, self.source, asked, groups, kept)
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


def computed(
    tree: exp.Expr, column: Callable[[exp.Column], Ref], type_of_column: Types, subject: str
) -> Condition | None:
    """What an expression over columns is; None for one that is Spark's.

    Raises:
        UnknownColumnError: ``column`` has raised it.
    """
    if any(math.isinf(float(one.name)) for one in tree.find_all(exp.Literal) if not one.is_string):
        return None  # Spark has no literal for it
    try:
        found = condition_of(tree, column, type_of_column, subject, "found")
        type_of(found, type_of_column)
    except UnknownColumnError:
        raise
    except (SchemaError, ConfigurationError, NotPlainError):
        return None
    return found


def _passing(
    source: Source, names: Sequence[str], asked: _Asked, *, ends_soon: bool
) -> Iterator[pa.Table] | None:
    """Some columns of the rows of a query; None where they are too many for one process to read."""
    needed = source.of(dict.fromkeys([*names, *asked.columns] or source.names[:1]))
    if (pieces := source.read(needed.names, asked.where, ends_soon)) is None:
        return None
    passing = InArrow(needed.filtered(asked.rest), (*needed.names,), needed.arrow)
    return (passing.rows([piece]) for piece in pieces)


def _found(plain: PlainSelect, source: Source, asked: _Asked) -> pa.Table | None:
    """The rows; None where they are too many for one process.

    Raises:
        NotInArrowError: Spark has to find them.
    """
    by = [column for column, _ in plain.orders]
    if not all(types.is_scalar(source.types[column]) for column in by):
        return None
    names = [*(column for _, column in plain.outputs), *by]
    ends = sys.maxsize if plain.limit is None or plain.orders else plain.limit + plain.offset
    pieces = _passing(source, names, asked, ends_soon=ends < sys.maxsize)
    parts, count = [source.of(dict.fromkeys(names)).arrow.empty_table()], 0
    for piece in () if pieces is None else pieces:
        rows = piece.select(parts[0].column_names).slice(0, ends - count)
        count += rows.num_rows
        parts.append(rows)
        if count >= ends or sum(part.nbytes for part in parts) > MOST_BYTES:
            break
    if pieces is None or sum(part.nbytes for part in parts) > MOST_BYTES:
        return None
    return _shown(plain, pa.concat_tables(parts), None)


def _found_groups(
    plain: PlainSelect, source: Source, asked: _Asked, groups: RunningGroups, kept: Condition | None
) -> pa.Table | None:
    """The groups for which a condition is true; None where rows or groups are too many for one process.

    Raises:
        NotInArrowError: Spark has to find them.
    """
    names = [] if plain.groups is None else plain.groups.columns
    if (pieces := _passing(source, names, asked, ends_soon=False)) is None:
        return None
    for piece in pieces:
        groups.add(piece)
        if groups.nbytes > MOST_BYTES:
            return None
    rows = groups.rows()
    return None if groups.nbytes > MOST_BYTES else _shown(plain, rows, kept)


def _shown(plain: PlainSelect, rows: pa.Table, kept: Condition | None) -> pa.Table:
    """What comes out of rows: those for which a condition is true, in their order, under their names."""
    names = (*rows.column_names,)
    given: Step = Input(0, tuple((field.name, field.name, field.type) for field in rows.schema))
    given = given if kept is None else Filtered(given, kept, names)
    orders = tuple((Field(Ref(0, column)), *how) for column, how in plain.orders)
    most = None if plain.limit is None else plain.limit + plain.offset
    schema = pa.schema([(name, rows.schema.field(column).type) for name, column in plain.outputs])
    columns = tuple(column for _, column in plain.outputs)
    return InArrow(First(given, orders, most, names), columns, schema).rows([rows]).slice(plain.offset)


def all_rows(source: Source, where: Where) -> pa.Table | None:
    """All columns of the rows of which a condition of the store's is true; None where they are too many."""
    outputs = tuple((name, name) for name in source.names)
    return _found(PlainSelect("", outputs, None, None, (), None, 0), source, _Asked(where))
