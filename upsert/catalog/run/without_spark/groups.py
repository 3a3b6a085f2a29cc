"""What a SELECT asks of groups of rows: functions of them, GROUP BY, HAVING, DISTINCT (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sqlglot import exp

from upsert.catalog.run.without_spark.columns import Columns
from upsert.catalog.run.without_spark.words import NotPlainError
from upsert.store.rows.grouped import GroupFunction, name_of_key, name_of_result

_FUNCTIONS: Final[dict[type[exp.Expr], str]] = {
    exp.Avg: "avg",
    exp.Count: "count",
    exp.Max: "max",
    exp.Min: "min",
    exp.Sum: "sum",
}
_READ: Final = frozenset({"this", "expressions", "big_int"})
"""The arguments of functions that are read, or mean nothing."""


@dataclass(frozen=True)
class Item:
    """What the list of a query asks for under a name: a column, a function of groups, or an expression."""

    name: str
    value: str | GroupFunction | exp.Expr


@dataclass(frozen=True)
class Groups:
    """Groups of a table's rows by columns, functions of each, and the condition for those that come out.

    The condition has the names that `upsert.store.rows.grouped` gives to keys and results.
    """

    keys: tuple[str, ...]
    functions: tuple[GroupFunction, ...]
    having: exp.Expr | None

    @property
    def columns(self) -> list[str]:
        """Those of the table that are needed."""
        return [*self.keys, *(name for one in self.functions for name in one.columns)]


def is_of_groups(node: exp.Expr) -> bool:
    """Whether an expression is a function of groups."""
    return type(node) in _FUNCTIONS


def group_function(node: exp.Expr, columns: Columns) -> tuple[GroupFunction, str]:
    """A function of groups, and what Spark calls its result.

    Raises:
        NotPlainError: it is Spark's.
        UnknownColumnError: it names a column that the table does not have.
    """
    name = _FUNCTIONS[type(node)]
    args = [node.this, *node.expressions]
    is_distinct = isinstance(node.this, exp.Distinct)
    if is_distinct:
        args = node.this.expressions
    is_read = {part for part, given in node.args.items() if given} <= _READ
    if not is_read or None in args or (is_distinct and (node.this.args.get("on") or node.expressions)):
        raise NotPlainError
    if name == "count" and len(args) == 1 and not is_distinct and _is_each_row(args[0]):
        return GroupFunction("count"), "count(1)"
    if name != "count" and (is_distinct or len(args) > 1):
        raise NotPlainError
    words = ", ".join(arg.name for arg in args)
    found = GroupFunction(name, tuple(map(columns.column, args)), is_distinct)
    return found, f"{name}({'DISTINCT ' if is_distinct else ''}{words})"


def _is_each_row(arg: exp.Expr) -> bool:
    """Whether ``count`` of it is of all rows."""
    if isinstance(arg, exp.Star):
        return not any(arg.args.values())
    return isinstance(arg, exp.Literal) and not arg.is_string and arg.name == "1"


@dataclass
class Grouping:
    """Reads what a query asks of groups, whose list has ``items``.

    With DISTINCT or HAVING it ``is_strict``: by what does not stand in the list Spark orders no groups then.
    """

    columns: Columns
    items: Sequence[Item]
    keys: list[str] = field(default_factory=list)
    functions: list[GroupFunction] = field(default_factory=list)
    is_strict: bool = False

    @classmethod
    def of(cls, tree: exp.Select, items: Sequence[Item], columns: Columns) -> Grouping | None:
        """That of a query; None if it is of rows.

        Raises:
            NotPlainError: it is Spark's.
        """
        group, is_distinct = tree.args.get("group"), bool(tree.args.get("distinct"))
        values = [item.value for item in items]
        has_functions = any(isinstance(value, GroupFunction) for value in values)
        if (is_distinct and (group is not None or has_functions)) or (
            group is None and tree.args.get("having") is not None
        ):
            raise NotPlainError
        if group is None and not is_distinct and not has_functions:
            return None
        found = cls(columns, items, is_strict=is_distinct or tree.args.get("having") is not None)
        if group is not None:
            has_star = any(node.is_star for node in tree.expressions)
            found.keys += dict.fromkeys(found._key(node, has_star=has_star) for node in group.expressions)
        elif is_distinct:
            found.keys += dict.fromkeys(value for value in values if isinstance(value, str))
        return found

    def _key(self, node: exp.Expr, *, has_star: bool) -> str:
        """The column by which is grouped: one of the table, or what the list gives the name or the place."""
        if isinstance(node, exp.Literal):
            if node.is_string or has_star or not re.fullmatch("[1-9][0-9]{0,8}", node.name):
                raise NotPlainError
            place = int(node.name)
            found = [item.value for item in self.items[place - 1 : place]]
        elif len(getattr(node, "parts", ())) == 1 and not self.columns.alike(node):
            found = [item.value for item in self.items if item.name.lower() == node.name.lower()]
        else:
            found = [self.columns.column(node)]
        if not found:
            self.columns.column(node)  # there may be none
        if len(found) != 1 or not isinstance(found[0], str):
            raise NotPlainError
        return found[0]

    def name(self, value: str | GroupFunction | exp.Expr) -> str:
        """What a column or a function of groups is called among the results.

        Raises:
            NotPlainError: rows are not grouped by the column, or it is an expression.
        """
        if isinstance(value, GroupFunction):
            if value not in self.functions:
                self.functions.append(value)
            return name_of_result(self.functions.index(value))
        if not isinstance(value, str) or value not in self.keys:
            raise NotPlainError
        return name_of_key(self.keys.index(value))

    def order(self, node: exp.Expr) -> str:
        """By what a query orders groups that is no name of its list; NotPlainError where it is Spark's."""
        found = self._named(node)
        if self.is_strict and not self._stands_in_list(node):
            raise NotPlainError
        return found

    def _stands_in_list(self, node: exp.Expr) -> bool:
        """Whether the list has a column that has no alias, or ``count(*)``."""
        if is_of_groups(node):
            function, _ = group_function(node, self.columns)
            return not function.columns and function in [item.value for item in self.items]
        names = {item.name.lower() for item in self.items} - self.columns.aliases
        return node.name.lower() in names

    def having(self, tree: exp.Expr) -> exp.Expr:
        """A condition of HAVING over the names of keys and results; NotPlainError where it is Spark's."""

        def replaced(node: exp.Expr) -> exp.Expr:
            if is_of_groups(node) or isinstance(node, exp.Column):
                return exp.column(self._in_having(node))
            return node

        return tree.transform(replaced)

    def _in_having(self, node: exp.Expr) -> str:
        is_name = isinstance(node, exp.Column) and len(node.parts) == 1
        if not is_name or self.columns.alike(node):
            return self._named(node)
        found = [item.value for item in self.items if item.name.lower() == node.name.lower()]
        if len(found) != 1:
            raise NotPlainError
        return self.name(found[0])

    def _named(self, node: exp.Expr) -> str:
        """What a column of the table or a function of groups is called, if no name in it may be another's."""
        for column in node.find_all(exp.Column):
            own = self.columns.column(column)
            alike = [item for item in self.items if item.name.lower() == column.name.lower()]
            if any(item.value != own for item in alike):
                raise NotPlainError
        if is_of_groups(node):
            return self.name(group_function(node, self.columns)[0])
        return self.name(self.columns.column(node))

    def groups(self, having: exp.Expr | None) -> Groups:
        """What has been read."""
        return Groups(tuple(self.keys), tuple(self.functions), having)
