"""A MERGE that needs no Spark: its clauses as values, and the rows of the target that they may take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from upsert.arrays import Mask
from upsert.catalog.run.assignments import own_names
from upsert.catalog.run.without_spark.clauses import SOURCE, TARGET, Clause, Clauses, Merged
from upsert.catalog.run.without_spark.given import computed
from upsert.catalog.run.without_spark.literals import default_tree, literals
from upsert.catalog.run.without_spark.merge_source import source_rows
from upsert.catalog.run.without_spark.rows import Stored, in_memory
from upsert.catalog.run.without_spark.settings import MOST_BYTES, Settings
from upsert.catalog.run.without_spark.source import stored
from upsert.catalog.run.without_spark.words import NotPlainError, is_plain_merge, words_of
from upsert.conditions.expressions import Condition, Const, Field, Ref, conjunction
from upsert.schema import Column, TableSchema
from upsert.sql import statements as s
from upsert.sql.predicates import conjuncts
from upsert.sql.show_create import declared_names
from upsert.store.rows.computed import NotInArrowError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from upsert.catalog.context import Context
    from upsert.store import Table
    from upsert.store.predicate import Where


def merged(
    context: Context, spark: SparkSession | None, statement: s.Merge, table: Table, snapshot: int
) -> Merged | None:
    """What a MERGE makes of the rows of a snapshot; None where Spark is needed.

    Raises:
        BrokenRuleError: several rows of the source change one of the target, or a key would have two rows.
    """
    query = statement.rows
    settings = Settings.of(context, spark, query.text)
    words = words_of(query)
    if settings is None or not settings.is_ansi or words is None or not is_plain_merge(words):
        return None
    try:
        source = source_rows(context, statement, table, snapshot, settings)
        merge = _Reader.of(statement, table.schema, source.schema, settings.zone).merge()
        own = stored(table, snapshot, settings)
        rows = Stored(own, {name: name for name in own.names}, merge.where(source))
        target = in_memory(rows, own.names, MOST_BYTES)
        return merge.clauses.merged(target, source, partial(merge.are_stored, table, snapshot))
    except (NotPlainError, NotInArrowError):
        return None


@dataclass(frozen=True)
class _Merge:
    """The clauses of a MERGE, and which rows of its target it reads.

    Attributes:
        is_by_key: whether ON finds each row of the target that has the key of an inserted one.
    """

    clauses: Clauses
    is_by_key: bool

    def where(self, source: pa.Table) -> Where:
        """What is true of the rows of the target that may be changed."""
        if any(one.rows is s.MergeRows.NOT_MATCHED_BY_SOURCE for one in self.clauses.clauses):
            return []
        named = (_among(column, source.column(other)) for column, other in self.clauses.equal)
        return [one for one in named if one is not None]

    def are_stored(self, table: Table, snapshot: int, keys: pa.Table) -> Mask:
        """Which keys of inserted rows the target has in rows that ON has not found."""
        found = np.zeros(keys.num_rows, np.bool_)
        if not self.is_by_key and keys.num_rows:
            key = table.schema.primary_key
            found[table.snapshot(snapshot).match(key, keys, select=key)[0]] = True
        return found


@dataclass(frozen=True)
class _Reader:
    """Reads the query of a MERGE.

    Attributes:
        names: of each of the two tables, what may stand before its columns, and these.
        types: of the columns that have values here; those that are computed have none.
    """

    statement: s.Merge
    schema: TableSchema
    names: tuple[tuple[str, Sequence[str]], tuple[str, Sequence[str]]]
    types: tuple[dict[str, pa.DataType], dict[str, pa.DataType]]
    zone: str | None
    join: exp.Join

    @classmethod
    def of(cls, statement: s.Merge, schema: TableSchema, source: pa.Schema, zone: str | None) -> _Reader:
        """That of a statement whose source has these columns."""
        tables, join = statement.rows.tree.args["from_"].this, statement.rows.tree.find(exp.Join)
        if join is None or any(schema.column(name).length is not None for name in schema.primary_key):
            raise NotPlainError  # other texts are stored as the same key
        names = (tables.alias, declared_names(schema)), (join.this.alias, source.names)
        own = {name: schema.type_of(name) for name in schema.names}
        return cls(
            statement, schema, names, (own, dict(zip(source.names, source.types, strict=True))), zone, join
        )

    def merge(self) -> _Merge:
        """The statement as values.

        Raises:
            NotPlainError: it is Spark's.
        """
        equal, rest = self._on()
        clauses = [
            self._clause(number, clause, equal) for number, clause in enumerate(self.statement.clauses)
        ]
        given = dict(equal)
        is_by_key = (
            not rest
            and given.keys() <= set(self.schema.primary_key)
            and all(
                clause.values[name] == Field(Ref(SOURCE, other))
                for clause in clauses
                if clause.action is s.MergeAction.INSERT
                for name, other in equal
            )
        )
        return _Merge(Clauses(self.schema, equal, conjunction(*rest), clauses), is_by_key)

    def _on(self) -> tuple[list[tuple[str, str]], list[Condition]]:
        """The columns that ON says are equal, and what else it says."""
        equal, rest = list[tuple[str, str]](), list[Condition]()
        for part in conjuncts(self.join.args["on"]):
            if (pair := self._pair(part)) is not None and pair[0] not in dict(equal):
                equal.append(pair)
            else:
                rest.append(self._condition(part, s.MergeRows.MATCHED))
        if not equal:
            raise NotPlainError
        return equal, rest

    def _pair(self, part: exp.Expr) -> tuple[str, str] | None:
        """A column of the target and one of the source that a part of ON compares as the store does."""
        part = part.unnest()
        if not isinstance(part, exp.EQ | exp.NullSafeEQ):
            return None
        sides = [side.unnest() for side in (part.left, part.right)]
        if not all(isinstance(side, exp.Column) for side in sides):
            return None
        own, other = sorted(self._ref(side, s.MergeRows.MATCHED) for side in sides)
        if (own.table, other.table) != (TARGET, SOURCE):
            return None
        if isinstance(part, exp.NullSafeEQ) and self.schema.column(own.column).nullable:
            return None
        is_alike = _are_alike(self._type_of(own), self._type_of(other))
        return (own.column, other.column) if is_alike else None

    def _clause(self, number: int, clause: s.MergeClause, equal: Sequence[tuple[str, str]]) -> Clause:
        nodes = {one.alias: one.this for one in self.statement.rows.tree.expressions}
        node, condition = nodes[s.CLAUSE.format(number)], None
        if isinstance(node, exp.Case):
            condition = self._condition(_then(node).this, clause.rows)
        if clause.action is s.MergeAction.DELETE:
            return Clause(clause.rows, clause.action, condition, {})
        values = dict[str, Condition]()
        if clause.columns is None:
            values = {name: Field(self._named(name, SOURCE)) for name in self.schema.names}
        else:
            own = own_names(clause.columns, self.schema, None)
            if len(set(own)) < len(own) or not set(own) <= set(self.schema.names):
                raise NotPlainError
            for place, (name, written) in enumerate(zip(own, clause.columns, strict=True)):
                given = None
                if written not in clause.defaults:
                    given = _then(nodes[s.CLAUSE_VALUE.format(number, place)])
                values[name] = self._value(self.schema.column(name), given, clause.rows)
        if clause.action is s.MergeAction.INSERT:
            for column in self.schema.columns:
                if column.name not in values:
                    values[column.name] = self._value(column, None, clause.rows)
        else:
            for name in self.schema.primary_key:
                own_value = Field(Ref(SOURCE, dict(equal)[name])) if name in dict(equal) else None
                if values.pop(name, own_value) != own_value:
                    raise NotPlainError
        return Clause(clause.rows, clause.action, condition, values)

    def _value(self, column: Column, node: exp.Expr | None, rows: s.MergeRows) -> Condition:
        """What a column gets, its DEFAULT for None."""
        if node is None and (node := default_tree(column, self.statement.rows.subject)) is None:
            raise NotPlainError
        node = self._with_nulls(node, rows)
        if (values := literals([node.unnest()], column, self.zone)) is not None:
            return Const(values[0], column.type)
        return self._computed(node, rows)[0]

    def _condition(self, node: exp.Expr, rows: s.MergeRows) -> Condition:
        found, type_ = self._computed(node, rows)
        if type_ != pa.bool_():
            raise NotPlainError
        return found

    def _computed(self, node: exp.Expr, rows: s.MergeRows) -> tuple[Condition, pa.DataType]:
        tree = self._with_nulls(node, rows)
        return computed(tree, lambda one: self._ref(one, rows), self._type_of, self.statement.rows.subject)

    def _with_nulls(self, node: exp.Expr, rows: s.MergeRows) -> exp.Expr:
        """An expression with NULL in place of columns of the source that have no value in any row."""
        if not any(map(pa.types.is_null, self.types[SOURCE].values())):
            return node

        def known(part: exp.Expr) -> exp.Expr:
            is_column = isinstance(part, exp.Column)
            return (
                exp.Null() if is_column and pa.types.is_null(self._type_of(self._ref(part, rows))) else part
            )

        return node.transform(known)

    def _ref(self, node: exp.Expr, rows: s.MergeRows) -> Ref:
        """The column of one of the rows that a clause has."""
        if not isinstance(node, exp.Column) or not isinstance(node.this, exp.Identifier):
            raise NotPlainError
        before = [part.name.lower() for part in node.parts[:-1]]
        tables = {s.MergeRows.NOT_MATCHED: [SOURCE], s.MergeRows.NOT_MATCHED_BY_SOURCE: [TARGET]}
        found = [
            self._named(node.name, table)
            for table in tables.get(rows, [TARGET, SOURCE])
            if before in ([], [self.names[table][0].lower()])
            and node.name.lower() in map(str.lower, self.names[table][1])
        ]
        if len(found) != 1:
            raise NotPlainError
        return found[0]

    def _named(self, name: str, table: int) -> Ref:
        """The column of a table that is called so."""
        found = [one for one in self.names[table][1] if one.lower() == name.lower()]
        if len(found) != 1 or found[0] not in self.types[table]:
            raise NotPlainError
        return Ref(table, found[0])

    def _type_of(self, ref: Ref) -> pa.DataType:
        return self.types[ref.table][ref.column]


def _among(column: str, values: pa.ChunkedArray) -> tuple[str, str, list[Any]] | None:
    """What is true of a column that equals one of some values; None if Python lacks one, as a late day."""
    try:
        return column, "in", pc.unique(values).drop_null().to_pylist()
    except (ValueError, OverflowError):
        return None


def _then(node: exp.Expr) -> exp.Expr:
    """What the one branch of a CASE gives."""
    found: exp.Expr = node.args["ifs"][0].args["true"]
    return found


_COMPARED: Final = (
    *(pa.types.is_boolean, pa.types.is_string, pa.types.is_binary, pa.types.is_decimal, pa.types.is_date),
    pa.types.is_timestamp,
)


def _are_alike(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether values of two types are equal to Spark just where they are to the store."""
    if pa.types.is_integer(one):
        return bool(pa.types.is_integer(other))
    return one == other and any(is_one(one) for is_one in _COMPARED)
