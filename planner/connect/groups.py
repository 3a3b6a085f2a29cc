"""The groups of a text over Spark Connect: what it makes of these, and of functions of their rows (pure).

Each function and each value of the GROUP BY gets a name, ``result_0``, ``group_0`` and so on. What SELECT and
HAVING say stays their text, with these names in place of what they stand for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from sqlglot import exp

from deltajoin.expressions import Ref
from planner.connect.calls import FUNCTIONS, Call, Groups, Item, group_name, result_name, values_of
from planner.connect.clauses import Span
from planner.connect.select import Select, alias_of, is_parameter, name_of, names_a_field
from upsert.sql.dialect import END, START, Edit, Revision, spelled


def groups_of(select: Select) -> Groups:
    """What a SELECT that has groups gives of them.

    Raises:
        PlanError: it gives what is no value of a group, or leaves out what tells the groups apart.
        SchemaError: a column is unknown.
    """
    found = _distinct(select) if select.node.args.get("distinct") is not None else _Reader(select).groups()
    names = [one.name for one in found.items]
    keys = [name for place in range(len(found.by)) for name in found.held(place)]
    if (twice := next((name for name in keys if names.count(name) > 1), None)) is not None:
        select.refuse(f"a query of groups with several columns {twice!r}", "name them by AS")
    lost = [text for place, text in enumerate(found.by) if not found.held(place)]
    if lost:
        select.refuse(f"a query that leaves out {lost[0]}, by which it groups,", "select it")
    return found


def _distinct(select: Select) -> Groups:
    outputs = select.outputs
    by = tuple(dict.fromkeys(one.value for one in outputs))
    refs = {one.value: one.ref for one in outputs}
    items = (Item(one.name or one.value, group_name(by.index(one.value))) for one in outputs)
    return Groups(by, tuple(refs[text] for text in by), (), tuple(items))


class _Reader:
    """Reads the text of a SELECT with functions of groups."""

    def __init__(self, select: Select) -> None:
        self._select, self._calls = select, list[Call]()
        self._clauses = select.clauses
        self._aliases = [*map(alias_of, select.node.expressions)]
        self._values = [self._clauses.value(place) for place in range(len(select.node.expressions))]
        by: dict[tuple[str, ...], tuple[str, Ref | None]] = {}
        group = select.node.args.get("group")
        nodes = group.expressions if group is not None else ()
        for node, span in zip(nodes, self._clauses.groups, strict=True):
            place = self._item_of(node)
            value = node if place is None else select.node.expressions[place].unalias()
            where = span if place is None else self._values[place]
            by.setdefault(select.words(where), (select.edited(where), select.ref_of(value)))
        self._by = by

    def groups(self) -> Groups:
        """All of it."""
        select = self._select
        items = tuple(
            self._item(item, span) for item, span in zip(select.node.expressions, self._values, strict=True)
        )
        condition = select.node.args.get("having")
        having = None if condition is None else self._over_groups(condition.this, self._clauses.having, items)
        texts, columns = zip(*self._by.values(), strict=True) if self._by else ((), ())
        return Groups(texts, columns, tuple(self._calls), items, having)

    def _item_of(self, node: exp.Expr) -> int | None:
        """The item that GROUP BY names by its number or alias; None for a value by itself."""
        items = self._select.node.expressions
        if isinstance(node, exp.Literal) and not node.is_string:
            place = int(node.name) - 1 if node.is_int else -1
            if not 0 <= place < len(items):
                self._select.refuse(
                    f"GROUP BY {node.name}, of {len(items)} items,", "name what the query groups by"
                )
            return place
        name = node.name.lower() if isinstance(node, exp.Column) and len(node.parts) == 1 else None
        aliases = self._aliases
        is_alias = name is not None and not self._select.scope.has(name) and aliases.count(name) == 1
        return aliases.index(name) if is_alias else None

    def _item(self, item: exp.Expr, span: Span) -> Item:
        value, name = item.unalias(), name_of(item) or _name_of_value(item)
        text = self._over_groups(value, span)
        is_call = any(text == result_name(place) for place in range(len(self._calls)))
        is_computed = value.find(exp.AggFunc) is not None and not is_call
        return Item(name, text, is_computed, isinstance(value, exp.Literal | exp.Boolean))

    def _over_groups(self, node: exp.Expr, span: Span, items: Sequence[Item] = ()) -> str:
        """A part of the text over the names of groups and calls, and of the items before it."""
        select, (start, end) = self._select, span
        if not items and node.find(exp.AggFunc) is None and (same := self._group_of(span)) is not None:
            return same
        if isinstance(node, exp.Star):
            select.refuse("'*' in a query of groups", "name the columns of its GROUP BY")
        edits = []
        for call in node.find_all(exp.AggFunc):
            if (struct := call.find_ancestor(exp.Struct, exp.Tuple)) is not None:
                self._refuse_names(struct)
            edits.append(Edit(*self._call(call)))
        inside = [(one.start, one.end) for one in edits]
        for column in node.find_all(exp.Column):
            at = column.parts[0].meta.get(START, start)
            if any(begin <= at < behind for begin, behind in inside) or is_parameter(column):
                continue
            if names_a_field(column):
                self._refuse_names(column.find_ancestor(exp.Struct, exp.Tuple) or column)
            place = at, column.parts[-1].meta.get(END, at) + 1
            is_star = isinstance(column.this, exp.Star)
            text = None if is_star else self._alias_in(column, place, items) or self._group_of(place)
            if text is None:
                select.refuse(f"{spelled(column)!r}, which is not in GROUP BY,", "name it there")
            edits.append(Edit(*place, text))
        moved = (replace(one, start=one.start - start, end=one.end - start) for one in edits)
        return Revision(select.text[start:end]).edited(moved).text.strip()

    def _refuse_names(self, struct: exp.Expr) -> NoReturn:
        self._select.refuse(f"{spelled(struct)!r} of groups", "use named_struct, which says its names")

    def _group_of(self, span: Span) -> str | None:
        """The name of a value of the GROUP BY; None for what is none."""
        words = self._select.words(span)
        return group_name(list(self._by).index(words)) if words in self._by else None

    def _alias_in(self, column: exp.Column, place: Span, items: Sequence[Item]) -> str | None:
        """The item that a HAVING calls by its alias."""
        name = column.name.lower()
        if len(column.parts) > 1 or not items or name not in self._aliases:
            return None
        value = items[self._aliases.index(name)].value
        if self._aliases.count(name) > 1 or self._select.scope.has(name):
            if value == self._group_of(place):
                return value
            self._select.refuse(
                f"a HAVING by {column.name!r}, which is an alias and another column,",
                "write what it stands for",
            )
        return f"({value})"

    def _call(self, node: exp.Expr) -> tuple[int, int, str]:
        """Where a call stands, and its name."""
        select = self._select
        above = node.parent
        filter_ = above.expression.this if isinstance(above, exp.Filter) and above.this is node else None
        whole, given, where = self._clauses.call(node.meta[START])
        values = values_of(node)
        call = Call(
            FUNCTIONS[type(node)],
            select.edited(given) if values else None,
            isinstance(node.this, exp.Distinct),
            None if where is None else select.edited(where),
            tuple(values),
            filter_,
        )
        if call not in self._calls:
            self._calls.append(call)
        return *whole, result_name(self._calls.index(call))


def _name_of_value(item: exp.Expr) -> str:
    """About what Spark calls a value without a name; an aggregate just so.

    >>> import sqlglot
    >>> select = sqlglot.parse_one("SELECT count(*), SUM(/* of all */ n) FROM t", dialect="spark")
    >>> [_name_of_value(item) for item in select.expressions]
    ['count(1)', 'sum(n)']
    """
    if isinstance(item, exp.Count) and isinstance(item.this, exp.Star):
        return "count(1)"
    return spelled(item, comments=False, normalize_functions="lower")
