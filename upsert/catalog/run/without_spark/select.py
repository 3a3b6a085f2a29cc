"""A SELECT of columns of tables that are joined, or of groups of their rows, as values (pure)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqlglot import exp

from upsert.catalog.run.without_spark.columns import Columns
from upsert.catalog.run.without_spark.groups import Grouping, Groups, Item, group_function, is_of_groups
from upsert.catalog.run.without_spark.relations import Relation, relation
from upsert.catalog.run.without_spark.words import NotPlainError, is_plain_select, words_of
from upsert.sql.query import QueryText

_PARTS: Final = frozenset(
    {"distinct", "expressions", "from_", "joins", "where", "group", "having", "order", "limit", "offset"}
)
_MOST_ROWS: Final = (1 << 31) - 1
"""The largest number that Spark takes for a LIMIT, and for its sum with an OFFSET."""


@dataclass(frozen=True)
class PlainSelect:
    """What a SELECT asks of the rows that it reads.

    Attributes:
        relation: the tables and their joins.
        outputs: the names of the columns that come out, and of those that they are: of the tables, or with
            ``groups`` the keys and results of these.
        computed: expressions that are columns of the rows, too, by the names that these have.
        groups: what is asked of groups of rows; None where the rows themselves come out.
        where: the condition, about which nothing is known here.
        orders: by which of such columns, and for each whether ascending, and whether NULLs come first.
    """

    relation: Relation
    outputs: tuple[tuple[str, str], ...]
    computed: tuple[tuple[str, exp.Expr], ...]
    groups: Groups | None
    where: exp.Expr | None
    orders: tuple[tuple[str, tuple[bool, bool]], ...]
    limit: int | None
    offset: int


def plain_select(query: QueryText, names: Sequence[Sequence[str]]) -> PlainSelect | None:
    """A query of tables with these columns, in the order of its text; None for one that only Spark answers.

    Raises:
        UnknownColumnError: it names a column that no table has.

    >>> query = QueryText.of("SELECT ID, o.name AS n FROM orders o WHERE id > 3 ORDER BY n DESC LIMIT 5")
    >>> found = plain_select(query, [["id", "name"]])
    >>> found.outputs, found.orders, found.limit
    ((('ID', 'id'), ('n', 'name')), (('name', (False, False)),), 5)
    >>> query = QueryText.of("SELECT name, count(*) FROM orders GROUP BY 1 ORDER BY count(*)")
    >>> found = plain_select(query, [["id", "name"]])
    >>> found.outputs, found.groups.keys, [one.function for one in found.groups.functions]
    ((('name', 'group_0'), ('count(1)', 'result_0')), ('name',), ['count'])
    >>> found = plain_select(QueryText.of("SELECT id + 1 AS next FROM orders"), [["id", "name"]])
    >>> [tree.sql() for _, tree in found.computed]
    ['id + 1']
    >>> plain_select(QueryText.of("SELECT id + 1 FROM orders"), [["id", "name"]])
    """
    return _plain(query, query.tree, names, is_computed=False)


def plain_update(
    query: QueryText, names: Sequence[Sequence[str]]
) -> tuple[PlainSelect, list[exp.Expr]] | None:
    """The rows of an UPDATE, all of their columns, and the values that it sets; None where Spark is needed.

    ``query`` gives both, the values last.

    >>> query = QueryText.of("SELECT *, 7 AS n FROM orders WHERE id > 3")
    >>> found, values = plain_update(query, [["id", "name"]])
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
    query: QueryText, tree: exp.Expr, names: Sequence[Sequence[str]], *, is_computed: bool
) -> PlainSelect | None:
    if not isinstance(tree, exp.Select) or not {part for part, given in tree.args.items() if given} <= _PARTS:
        return None
    words = None if query.is_piped else words_of(query)
    if words is None or not is_plain_select(words, is_computed=is_computed):
        return None
    aliases = frozenset(node.alias.lower() for node in tree.expressions if isinstance(node, exp.Alias))
    try:
        read = relation(query, tree, names)
        return _Reader(read, replace(read.columns, aliases=aliases)).select(tree)
    except NotPlainError:
        return None


def _name(number: int, item: Item) -> str:
    """What an item is called among the rows: an expression so as no column can be called."""
    return f"\0{number}" if isinstance(item.value, exp.Expr) else str(item.value)


@dataclass(frozen=True)
class _Reader:
    """Reads a query over tables, in whose list names of ``columns`` may be those of aliases."""

    relation: Relation
    columns: Columns

    def select(self, tree: exp.Select) -> PlainSelect:
        """The query as values.

        Raises:
            NotPlainError: it is Spark's.
        """
        limit, offset = (self._number(tree.args.get(part)) for part in ("limit", "offset"))
        if (limit or 0) + (offset or 0) > _MOST_ROWS:
            raise NotPlainError
        where, having = (
            None if tree.args.get(part) is None else tree.args[part].this for part in ("where", "having")
        )
        items = [item for node in tree.expressions for item in self._items(node)]
        grouping = Grouping.of(tree, items, self.columns)
        if grouping is None:
            outputs = tuple((item.name, _name(number, item)) for number, item in enumerate(items))
            by_others = self.columns.column
        else:
            outputs = tuple((item.name, grouping.name(item.value)) for item in items)
            by_others = grouping.order
        orders = [] if tree.args.get("order") is None else tree.args["order"].expressions
        found = tuple(self._order(one, outputs, by_others) for one in orders)
        kept = None if grouping is None or having is None else grouping.having(having)
        groups = None if grouping is None else grouping.groups(kept)
        computed = tuple(
            (_name(number, item), item.value)
            for number, item in enumerate(items)
            if isinstance(item.value, exp.Expr)
        )
        return PlainSelect(self.relation, outputs, computed, groups, where, found, limit, offset or 0)

    def _items(self, node: exp.Expr) -> Iterator[Item]:
        name, inner = None, node
        if isinstance(node, exp.Alias):
            name, inner = node.alias, node.this
        if is_of_groups(inner):
            function, own = group_function(inner, self.columns)
            yield Item(own if name is None else name, function)
        elif name is not None and not isinstance(inner, exp.Column | exp.Star):
            for node in inner.find_all(exp.Column):
                self.columns.column(node)
            yield Item(name, inner)
        elif not inner.is_star:
            column = self.columns.column(inner)
            yield Item(inner.name if name is None else name, column)
        else:
            star = inner.this if isinstance(inner, exp.Column) else inner
            if name is not None or any(star.args.values()):
                raise NotPlainError
            yield from (Item(one.name, one.column) for one in self.columns.star(inner))

    def _order(
        self, one: exp.Expr, outputs: Sequence[tuple[str, str]], by_others: Callable[[exp.Expr], str]
    ) -> tuple[str, tuple[bool, bool]]:
        """By which column: of those that come out one that is called so, else another one."""
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
        return alike[0] if is_output else by_others(by), how

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
