"""The columns of the one table of a query, as names in its text mean them (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from upsert.catalog.run.unknown_columns import unknown_column
from upsert.catalog.run.without_spark.words import NotPlainError
from upsert.errors import SchemaError
from upsert.sql.dialect import START, position
from upsert.sql.query import QueryText


class UnknownColumnError(SchemaError):
    """A query names a column that its table does not have."""


_MAY_BE_FUNCTIONS: Final = re.compile(
    "current_.*|localtime.*|user|session_user|system_user|now|grouping__id", re.I
)
"""Names without brackets that Spark takes for functions, where no column is called so."""


@dataclass(frozen=True)
class Columns:
    """Those of a table that is ``called`` so in a query, with ``names``.

    ``aliases`` are names that the list of the query gives, in lower case: another name may be one of them.
    """

    query: QueryText
    called: str
    names: Sequence[str]
    aliases: frozenset[str] = frozenset()

    def column(self, node: exp.Expr) -> str:
        """The table's column that a part of the query is.

        Raises:
            NotPlainError: it is something else, as far as is known here.
            UnknownColumnError: it can only be a column, and there is none.
        """
        if not isinstance(node, exp.Column) or not isinstance(node.this, exp.Identifier):
            raise NotPlainError
        alike = self.alike(node)
        is_other = node.name.lower() in self.aliases or _MAY_BE_FUNCTIONS.fullmatch(node.name)
        if not alike and len(node.parts) == 1 and not is_other:
            raise self._unknown(node)
        if len(alike) != 1 or not self.is_before(node):
            raise NotPlainError
        return alike[0]

    def alike(self, node: exp.Expr) -> list[str]:
        """The columns that are called as a part of the query is, whatever stands before it there."""
        return [name for name in self.names if name.lower() == node.name.lower()]

    def is_before(self, node: exp.Column) -> bool:
        """Whether nothing stands before a column, or the table."""
        return [part.name.lower() for part in node.parts[:-1]] in ([], [self.called])

    def _unknown(self, node: exp.Column) -> UnknownColumnError:
        query = self.query
        where = position(query.statement, query.worded.original(node.this.meta[START]))
        found = unknown_column(node.name, "", [self.names], query)
        return UnknownColumnError(f"{query.subject}: {found} at {where}")
