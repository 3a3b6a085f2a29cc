"""The columns of the tables of a query, as names in its text mean them (pure)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from upsert.catalog.run.unknown_columns import unknown_column
from upsert.catalog.run.without_spark.words import NotPlainError
from upsert.errors import SchemaError
from upsert.sql.dialect import START, position
from upsert.sql.query import QueryText


class UnknownColumnError(SchemaError):
    """A query names a column that none of its tables has."""


_MAY_BE_FUNCTIONS: Final = re.compile(
    "current_.*|localtime.*|user|session_user|system_user|now|grouping__id", re.I
)
"""Names without brackets that Spark takes for functions, where no column is called so."""


@dataclass(frozen=True)
class Known:
    """A column that a query may name.

    Attributes:
        name: what it is called.
        column: what it is called here, where no other column has the name.
        table: the number of its table; None for one that USING makes of two.
        is_hidden: whether it is only found with the table's name before it.
    """

    name: str
    column: str
    table: int | None
    is_hidden: bool = False


@dataclass(frozen=True)
class Columns:
    """Those of the tables that are ``called`` so in a query, in lower case.

    ``known`` are in the order of a star, ``tables`` has the names of all columns that the tables have.
    ``aliases`` are names that the list of the query gives, in lower case: another name may be one of them.
    """

    query: QueryText
    called: tuple[str, ...]
    known: tuple[Known, ...]
    tables: tuple[tuple[str, ...], ...]
    aliases: frozenset[str] = frozenset()

    def column(self, node: exp.Expr) -> str:
        """The column that a part of the query is.

        Raises:
            NotPlainError: it is something else, as far as is known here.
            UnknownColumnError: it can only be a column, and there is none.
        """
        return self.found(node).column

    def found(self, node: exp.Expr) -> Known:
        """As `column`, all that is known of it."""
        if not isinstance(node, exp.Column) or not isinstance(node.this, exp.Identifier):
            raise NotPlainError
        before = [part.name.lower() for part in node.parts[:-1]]
        found = [
            one
            for one in self.known
            if one.name.lower() == node.name.lower()
            and (before == [self._called(one)] if before else not one.is_hidden)
        ]
        if not before and not found and self._can_only_be_a_column(node.name.lower()):
            raise self._unknown(node)
        if len(found) != 1:
            raise NotPlainError
        return found[0]

    def table(self, tree: exp.Expr) -> int | None:
        """The table whose columns an expression has alone; None if it has others, or none."""
        tables = {self.found(node).table for node in tree.find_all(exp.Column)}
        return tables.pop() if len(tables) == 1 else None

    def alike(self, node: exp.Expr) -> list[str]:
        """The columns that are called as a part of the query is, whatever stands before it there."""
        return [
            one.column for one in self.known if one.name.lower() == node.name.lower() and not one.is_hidden
        ]

    def star(self, node: exp.Expr) -> list[Known]:
        """What ``*`` or ``t.*`` stands for; NotPlainError where that is Spark's."""
        if not isinstance(node, exp.Column):
            return [one for one in self.known if not one.is_hidden]
        before = [part.name.lower() for part in node.parts[:-1]]
        found = [one for one in self.known if [self._called(one)] == before]
        if not found:
            raise NotPlainError
        return sorted(found, key=lambda one: not one.is_hidden)  # which go first in Spark

    def _called(self, one: Known) -> str | None:
        return None if one.table is None else self.called[one.table]

    def _can_only_be_a_column(self, name: str) -> bool:
        if name in self.aliases or _MAY_BE_FUNCTIONS.fullmatch(name):
            return False
        return all(name != other.lower() for names in self.tables for other in names)

    def _unknown(self, node: exp.Column) -> UnknownColumnError:
        query = self.query
        where = position(query.statement, query.worded.original(node.this.meta[START]))
        found = unknown_column(node.name, "", self.tables, query)
        return UnknownColumnError(f"{query.subject}: {found} at {where}")
