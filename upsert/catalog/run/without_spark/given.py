"""The tables that a query reads, the condition of the query, and what comes out of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Final, NoReturn

import pyarrow as pa
from sqlglot import exp

from upsert import types
from upsert.catalog.run.without_spark.columns import UnknownColumnError
from upsert.catalog.run.without_spark.groups import Groups
from upsert.catalog.run.without_spark.joined import Joined
from upsert.catalog.run.without_spark.relations import column_of
from upsert.catalog.run.without_spark.rows import Computed, Kept, Rows, Stored
from upsert.catalog.run.without_spark.select import PlainSelect
from upsert.catalog.run.without_spark.settings import MOST_BYTES, Settings
from upsert.catalog.run.without_spark.shown import shown_groups, shown_rows
from upsert.catalog.run.without_spark.source import Source, source_of
from upsert.catalog.run.without_spark.words import NotPlainError
from upsert.conditions.evaluate import Types, type_of, value
from upsert.conditions.expressions import Call, Cast, Condition, Ref, conjunction, refs_of, walk
from upsert.errors import ConfigurationError, SchemaError
from upsert.sql.checks import condition_of
from upsert.sql.predicates import alternatives, compared, conjuncts, pushed
from upsert.sql.query import AsOf, AsOfKind
from upsert.store.rows.computed import Filtered, Input, NotInArrowError, computing
from upsert.store.rows.grouped import RunningGroups

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from upsert.catalog.context import Context
    from upsert.sql.query import QueryText


_Types = Mapping[str, pa.DataType]
_Name = Callable[[exp.Column], str]

_KNOWN_TYPES: Final = (pa.bool_(), pa.float32(), pa.float64(), pa.string(), pa.date32())
"""With those of whole numbers the types of expressions which are the same here as to Spark."""

_BYTES_OF_KEY: Final = 4
_BYTES_OF_RESULT: Final = 8
"""What a group takes at least, as far as few types of keys are smaller."""


@dataclass(frozen=True)
class Given:
    """The tables that a query reads, in the order of its text, and how the session reads the text."""

    settings: Settings
    sources: tuple[Source, ...]

    @classmethod
    def of(
        cls, context: Context, spark: SparkSession | None, query: QueryText, snapshot: int | None = None
    ) -> Given | None:
        """Those of a query, its one table of a snapshot where one is given; None where Spark is needed."""
        settings = Settings.of(context, spark, query.text)
        return None if settings is None else cls.read_by(context, settings, query, snapshot)

    @classmethod
    def read_by(
        cls, context: Context, settings: Settings, query: QueryText, snapshot: int | None = None
    ) -> Given | None:
        """As `of`, where it is known how the session reads the text."""
        references = query.references
        if not references or (snapshot is not None and len(references) > 1):
            return None
        if any(one.options or one.changes is not None for one in references):
            return None
        if snapshot is not None:
            as_of = AsOf(AsOfKind.VERSION, str(snapshot), is_number=True)
            references = (replace(references[0], as_of=as_of),)
        found = dict[object, Source | None]()
        for one in references:  # a table that is read twice is read in one state
            if (one.name, one.as_of) not in found:
                found[one.name, one.as_of] = source_of(context, one, settings, query.subject)
        sources = tuple(found[one.name, one.as_of] for one in references)
        return None if None in sources else cls(settings, tuple(filter(None, sources)))

    @property
    def names(self) -> list[list[str]]:
        """The columns of each table."""
        return [source.names for source in self.sources]

    def _stored(self, table: int) -> Stored:
        """All rows of a table."""
        source, count = self.sources[table], len(self.sources)
        return Stored(source, {column_of(table, name, count): name for name in source.names}, [])

    def types(self, plain: PlainSelect) -> Mapping[str, pa.DataType]:
        """Of the columns of all tables, and of those that USING makes, by their names among the rows."""
        found = dict[str, pa.DataType]()
        for table in range(len(self.sources)):
            found |= self._stored(table).types
        for join in plain.relation.joins:
            found |= {name: found[left] for name, (left, _) in join.made.items()}
        return found

    def value(self, plain: PlainSelect, tree: exp.Expr, wanted: pa.DataType) -> Condition | None:
        """What an expression of the query is; None for one of another type, or that is Spark's.

        Raises:
            UnknownColumnError: it names a column that no table has.
        """
        try:
            found, type_ = self._value(plain, tree, self.types(plain))
        except NotPlainError:
            return None
        return found if type_ == wanted else None

    def _value(
        self, plain: PlainSelect, tree: exp.Expr, given: _Types, name: _Name | None = None
    ) -> tuple[Condition, pa.DataType]:
        """An expression over columns of these types, and its own type; NotPlainError where it is Spark's."""
        columns = plain.relation.columns
        name = name or columns.column
        if not self.settings.is_ansi:
            raise NotPlainError
        return computed(
            tree, lambda node: Ref(0, name(node)), lambda ref: given[ref.column], columns.query.subject
        )

    def _condition(
        self, plain: PlainSelect, tree: exp.Expr, given: _Types, name: _Name | None = None
    ) -> Condition:
        found, type_ = self._value(plain, tree, given, name)
        if type_ != pa.bool_():
            raise NotPlainError
        return found

    def rows(self, plain: PlainSelect, most_bytes: int) -> pa.Table | None:
        """What the query gives; None where Spark is needed, or it is more than so many bytes of rows."""
        try:
            rows = self._read(plain)
            if plain.groups is None:
                return shown_rows(plain, self._computed(plain, rows) if plain.computed else rows, most_bytes)
            if self._has_many_groups(plain, plain.groups):
                return None
            groups, kept = RunningGroups(plain.groups.keys, plain.groups.functions, rows.types), None
            if plain.groups.having is not None:
                given = {field.name: field.type for field in groups.schema}
                kept = self._condition(plain, plain.groups.having, given, lambda node: node.name)
            return shown_groups(plain, rows, groups, kept)
        except (NotInArrowError, NotPlainError):
            return None  # of an overflow Spark says where it is

    def _has_many_groups(self, plain: PlainSelect, groups: Groups) -> bool:
        """Whether each row of one table is a group, and they are too many, before any is read."""
        schema, *others = (source.schema for source in self.sources)
        if others or plain.where is not None or schema is None or not schema.primary_key:
            return False
        size = _BYTES_OF_KEY * len(groups.keys) + _BYTES_OF_RESULT * len(groups.functions)
        return set(schema.primary_key) <= set(groups.keys) and self.sources[0].count() * size > MOST_BYTES

    def _computed(self, plain: PlainSelect, rows: Rows) -> Rows:
        """The rows with the columns that a query computes of each.

        Only where Spark's type of an expression is known: types of decimals depend on how they are made, and
        NULL has one of its own.
        """
        found = []
        for name, tree in plain.computed:
            value, type_ = self._value(plain, tree, rows.types)
            is_known = type_ in _KNOWN_TYPES or pa.types.is_integer(type_)
            if not is_known or tree.find(exp.Null) is not None:
                raise NotPlainError
            found.append((name, value, type_))
        return Computed(rows, tuple(found))

    def _read(self, plain: PlainSelect) -> Rows:
        """The rows of which the condition of the query is true.

        Of a join each table is asked for rows of which those parts of the condition are true that are about
        it alone. Where a row may have NULLs in their place, only such parts that these do not meet.
        """
        relation, given = plain.relation, self.types(plain)
        if not relation.joins:
            return self._table(plain, 0, plain.where)
        of_table, rest = dict[int, list[exp.Expr]](), list[Condition]()
        for part in () if plain.where is None else conjuncts(plain.where):
            table = relation.columns.table(part)
            if table is None or relation.may_be_padded(table):
                rest.append(self._condition(plain, part, given))
                if table is None or _is_met_by_null(rest[-1], given):
                    continue
            of_table.setdefault(table, []).append(part)
        rows, *others = (
            self._table(plain, table, exp.and_(*of_table[table]) if table in of_table else None)
            for table in range(len(self.sources))
        )
        for join, other in zip(relation.joins, others, strict=True):
            if any(
                given[left] != given[right] or not types.is_scalar(given[left]) for left, right in join.equal
            ):
                raise NotPlainError
            rows = Joined(rows, other, join, self.settings.most_read)
        return rows if (kept := conjunction(*rest)) is None else Kept(rows, kept)

    def _table(self, plain: PlainSelect, table: int, where: exp.Expr | None) -> Rows:
        """The rows of a table of which a part of the condition is true."""
        stored, schema, zone = self._stored(table), self.sources[table].schema, self.settings.zone
        if where is None:
            return stored
        columns = plain.relation.columns
        if schema is not None:
            with suppress(SchemaError):  # it may be more than comparisons with literals
                asked = alternatives(where, schema, zone, columns.query.subject, columns.called[table])
                return replace(stored, where=asked)
        few = [] if schema is None else pushed(compared(where), schema, zone)
        return Kept(replace(stored, where=few), self._condition(plain, where, self.types(plain)))


def _is_met_by_null(condition: Condition, given: Mapping[str, pa.DataType]) -> bool:
    """Whether a condition is true where all of its columns are NULL."""
    names = (*sorted({ref.column for ref in refs_of(condition)}),)
    rows = pa.table({name: pa.nulls(1, given[name]) for name in names})
    step = Filtered(Input(0, tuple((name, name, given[name]) for name in names)), condition, names)
    with computing():
        return step.rows([rows]).count > 0


def computed(
    tree: exp.Expr, column: Callable[[exp.Column], Ref], type_of_column: Types, subject: str
) -> tuple[Condition, pa.DataType]:
    """What an expression over columns is, and its type.

    Raises:
        NotPlainError: it is Spark's.
        UnknownColumnError: ``column`` has raised it.
    """
    if any(map(_is_beyond, tree.find_all(exp.Literal))):
        raise NotPlainError
    if any(map(_has_no_type, (tree, *_asked(tree)))):
        raise NotPlainError  # Spark takes it for no condition
    try:
        found = condition_of(tree, column, type_of_column, subject, "found")
        type_ = type_of(found, type_of_column)
        _check_constants(found)
    except UnknownColumnError:
        raise
    except (SchemaError, ConfigurationError, NotInArrowError) as cause:
        raise NotPlainError from cause
    return found, type_


def _check_constants(condition: Condition) -> None:
    """Refuse a part without columns that is an error: Spark computes it where there is no row, too."""
    for part in walk(condition):
        if isinstance(part, Call | Cast) and not refs_of(part):
            with computing():
                value(part, _no_column, 1, {})


def _no_column(ref: Ref) -> NoReturn:
    raise AssertionError(f"{ref} is in a part without columns")


def _is_beyond(literal: exp.Literal) -> bool:
    """Whether Spark cannot write a number, or compares NULL of a BIGINT with it, as if it were less."""
    if literal.is_string:
        return False
    if "e" in literal.name.lower():
        return math.isinf(float(literal.name))
    return Decimal(literal.name) > (1 << 63) - (not isinstance(literal.parent, exp.Neg))


def _asked(tree: exp.Expr) -> Iterator[exp.Expr]:
    """The conditions of CASE."""
    for case in tree.find_all(exp.Case):
        if case.this is None:
            yield from (branch.this for branch in case.args["ifs"])


def _has_no_type(node: exp.Expr | None) -> bool:
    """Whether an expression is NULL by its form, or not there."""
    match node:
        case exp.Paren(this=inner):
            return _has_no_type(inner)
        case exp.Coalesce():
            return all(map(_has_no_type, (node.this, *node.expressions)))
        case exp.If():
            return _has_no_type(node.args["true"]) and _has_no_type(node.args.get("false"))
        case exp.Case():
            return all(map(_has_no_type, (*node.args["ifs"], node.args.get("default"))))
    return node is None or isinstance(node, exp.Null)
