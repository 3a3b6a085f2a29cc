"""A SELECT of columns of one table as values (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from upsert.catalog.run.unknown_columns import unknown_column
from upsert.catalog.run.without_spark.words import NotPlainError, is_plain_select, words_of
from upsert.errors import SchemaError
from upsert.sql.dialect import START, position, visible_name
from upsert.sql.query import QueryText

_PARTS: Final = frozenset({"expressions", "from_", "where", "order", "limit", "offset"})
_MOST_ROWS: Final = (1 << 31) - 1
"""The largest number that Spark takes for a LIMIT."""


@dataclass(frozen=True)
class PlainSelect:
    """What a SELECT asks of one table.

    Attributes:
        called: what may stand before a column, in lower case.
        outputs: the names of the columns that come out, and of those of the table that they are.
        count: the name under which the number of rows comes out, in place of columns; None for columns.
        where: the condition, about which nothing is known here.
        orders: by which columns of the table, and for each whether ascending, and whether NULLs come first.
    """

    called: str
    outputs: tuple[tuple[str, str], ...]
    count: str | None
    where: exp.Expr | None
    orders: tuple[tuple[str, tuple[bool, bool]], ...]
    limit: int | None
    offset: int


def plain_select(query: QueryText, names: Sequence[str]) -> PlainSelect | None:
    """A query of one table with these columns; None for one that only Spark answers.

    Raises:
        UnknownColumnError: it names a column that the table does not have.

    >>> query = QueryText.of("SELECT ID, o.name AS n FROM orders o WHERE id > 3 ORDER BY n DESC LIMIT 5")
    >>> found = plain_select(query, ["id", "name"])
    >>> found.outputs, found.orders, found.limit
    ((('ID', 'id'), ('n', 'name')), (('name', (False, False)),), 5)
    >>> plain_select(QueryText.of("SELECT id + 1 FROM orders"), ["id", "name"])
    """
    return _plain(query, query.tree, names, is_computed=False)


def plain_update(query: QueryText, names: Sequence[str]) -> tuple[PlainSelect, list[exp.Expr]] | None:
    """The rows of an UPDATE, all of their columns, and the values that it sets; None where Spark is needed.

    ``query`` gives both, the values last.

    >>> query = QueryText.of("SELECT *, 7 AS n FROM orders WHERE id > 3")
    >>> found, values = plain_update(query, ["id", "name"])
    >>> found.outputs, found.where.sql(), values[0].sql()
    ((('id', 'id'), ('name', 'name')), 'id > 3', '7')
    """
    tree = query.tree.copy()
    if not isinstance(tree, exp.Select):
        return None
    values = [one.unalias() for one in tree.expressions[1:]]
    tree.set("expressions", tree.expressions[:1])
    found = _plain(query, tree, names, is_computed=True)
    return None if found is None else (found, values)


def _plain(
    query: QueryText, tree: exp.Expr, names: Sequence[str], *, is_computed: bool
) -> PlainSelect | None:
    if not isinstance(tree, exp.Select) or not {part for part, given in tree.args.items() if given} <= _PARTS:
        return None
    words = None if query.is_piped else words_of(query)
    if words is None or not is_plain_select(words, is_computed=is_computed):
        return None
    table = tree.args["from_"].this
    if not _is_alone(table):
        return None
    reader = Columns(query, visible_name(table).lower(), names)
    try:
        return reader.select(tree)
    except NotPlainError:
        return None


def _is_alone(table: exp.Expr) -> bool:
    """Whether a source is a table, maybe one with an alias or as of a version, and nothing else."""
    if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
        return False
    alias = table.args.get("alias")
    known = {"this", "db", "catalog", "alias", "version"}
    return {part for part, given in table.args.items() if given} <= known and not (alias and alias.columns)


class UnknownColumnError(SchemaError):
    """A query names a column that its table does not have."""


_MAY_BE_FUNCTIONS: Final = re.compile(
    "current_.*|localtime.*|user|session_user|system_user|now|grouping__id", re.I
)
"""Names without brackets that Spark takes for functions, where no column is called so."""


@dataclass(frozen=True)
class Columns:
    """Reads a query of a table that is ``called`` so in it, with the columns ``names``."""

    query: QueryText
    called: str
    names: Sequence[str]

    def select(self, tree: exp.Select) -> PlainSelect:
        """The query as values.

        Raises:
            NotPlainError: it is Spark's.
        """
        limit, offset = (self._number(tree.args.get(part)) for part in ("limit", "offset"))
        where = None if tree.args.get("where") is None else tree.args["where"].this
        items = tree.expressions
        if (count := _counts(items)) is not None:
            if tree.args.get("order") or limit is not None or offset is not None:
                raise NotPlainError
            return PlainSelect(self.called, (), count, where, (), None, 0)
        outputs = tuple(pair for item in items for pair in self._outputs(item))
        orders = [] if tree.args.get("order") is None else tree.args["order"].expressions
        found = tuple(self._order(one, outputs) for one in orders)
        return PlainSelect(self.called, outputs, None, where, found, limit, offset or 0)

    def column(self, node: exp.Expr) -> str:
        """The table's column that a part of the query is.

        Raises:
            NotPlainError: it is something else, as far as is known here.
            UnknownColumnError: it can only be a column, and there is none.
        """
        if not isinstance(node, exp.Column) or not isinstance(node.this, exp.Identifier):
            raise NotPlainError
        alike = [name for name in self.names if name.lower() == node.name.lower()]
        if not alike and len(node.parts) == 1 and not _MAY_BE_FUNCTIONS.fullmatch(node.name):
            raise self._unknown(node)
        if len(alike) != 1 or not self._is_before(node):
            raise NotPlainError
        return alike[0]

    def _unknown(self, node: exp.Column) -> UnknownColumnError:
        query = self.query
        where = position(query.statement, query.worded.original(node.this.meta[START]))
        found = unknown_column(node.name, "", [self.names], query)
        return UnknownColumnError(f"{query.subject}: {found} at {where}")

    def _is_before(self, node: exp.Column) -> bool:
        """Whether nothing stands before a column, or the table."""
        return [part.name.lower() for part in node.parts[:-1]] in ([], [self.called])

    def _outputs(self, item: exp.Expr) -> Iterator[tuple[str, str]]:
        name = None
        if isinstance(item, exp.Alias):
            name, item = item.alias, item.this
        star = item.this if isinstance(item, exp.Column) else item
        if not isinstance(star, exp.Star):
            column = self.column(item)
            yield item.name if name is None else name, column
            return
        is_own = not isinstance(item, exp.Column) or self._is_before(item)
        if name is not None or any(star.args.values()) or not is_own:
            raise NotPlainError
        yield from ((column, column) for column in self.names)

    def _order(self, one: exp.Expr, outputs: Sequence[tuple[str, str]]) -> tuple[str, tuple[bool, bool]]:
        """By which column: of those that come out one that is called so, else one of the table."""
        if not isinstance(one, exp.Ordered) or one.args.get("with_fill"):
            raise NotPlainError
        by = one.this
        how = not one.args.get("desc"), bool(one.args.get("nulls_first"))
        if isinstance(by, exp.Literal):
            place = self._number(by) or 0
            if not 1 <= place <= len(outputs):
                raise NotPlainError
            return outputs[place - 1][1], how
        alike = [column for name, column in outputs if name.lower() == by.name.lower()]
        is_output = isinstance(by, exp.Column) and len(by.parts) == 1 and alike
        if is_output and len(alike) > 1:
            raise NotPlainError  # Spark refuses a name of several
        return alike[0] if is_output else self.column(by), how

    def _number(self, part: exp.Expr | None) -> int | None:
        """The number of a LIMIT or an OFFSET, or one that stands for a column."""
        if part is None:
            return None
        literal = part if isinstance(part, exp.Literal) else part.args.get("expression")
        if not isinstance(literal, exp.Literal) or not re.fullmatch("[0-9]{1,10}", literal.name):
            raise NotPlainError
        if literal.is_string or int(literal.name) > _MOST_ROWS:
            raise NotPlainError
        return int(literal.name)


def _counts(items: Sequence[exp.Expr]) -> str | None:
    """The name of ``count(*)``, if that is all that is asked for."""
    if len(items) != 1:
        return None
    item = items[0].this if isinstance(items[0], exp.Alias) else items[0]
    is_count = isinstance(item, exp.Count) and isinstance(item.this, exp.Star) and not item.expressions
    if not is_count or any(item.this.args.values()):
        return None
    return items[0].alias if isinstance(items[0], exp.Alias) else "count(1)"
