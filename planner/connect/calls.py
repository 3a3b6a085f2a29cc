"""Functions of the rows of a group in a text, and what a query gives of its groups: values (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sqlglot import exp

from deltajoin.expressions import Ref

FUNCTIONS: Final[Mapping[type[exp.Expr], str]] = {
    exp.ArgMax: "MaxBy",
    exp.ArgMin: "MinBy",
    exp.ArrayAgg: "CollectList",
    exp.ArrayUniqueAgg: "CollectSet",
    exp.Avg: "Average",
    exp.Count: "Count",
    exp.CountIf: "CountIf",
    exp.LogicalAnd: "BoolAnd",
    exp.LogicalOr: "BoolOr",
    exp.Max: "Max",
    exp.Min: "Min",
    exp.Sum: "Sum",
}
"""What is computed, by its class in the text: what Spark's plans call it."""

_OF_DISTINCT: Final = (exp.ArrayAgg, exp.Avg, exp.Count, exp.Sum)
_BY_ANOTHER: Final = (exp.ArgMax, exp.ArgMin)
_WITH_MORE: Final = (exp.IgnoreNulls, exp.RespectNulls, exp.WithinGroup)
"""What stands around a function that is told more in the text behind it."""


@dataclass(frozen=True)
class Call:
    """A function of the rows of a group.

    Attributes:
        function: one of `FUNCTIONS`.
        given: what it is given, in Spark SQL; None for the rows.
        is_distinct: whether it takes each value once.
        where: the condition of its FILTER, in Spark SQL.
        values: what it is given, one by one, as it is in the text.
        condition: the same of ``where``.
    """

    function: str
    given: str | None
    is_distinct: bool = False
    where: str | None = None
    values: tuple[exp.Expr, ...] = field(default=(), compare=False, repr=False)
    condition: exp.Expr | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        distinct = "DISTINCT " if self.is_distinct else ""
        where = "" if self.where is None else f" FILTER (WHERE {self.where})"
        return f"{self.function}({distinct}{'1' if self.given is None else self.given}){where}"


@dataclass(frozen=True)
class Item:
    """A column of the result.

    Attributes:
        name: of the column.
        value: it in Spark SQL, over the names of groups and calls.
        is_computed: whether it is made of calls, and no call itself.
        is_constant: whether it is a value that is written there.
    """

    name: str
    value: str
    is_computed: bool = False
    is_constant: bool = False


@dataclass(frozen=True)
class Groups:
    """What a query gives of each group.

    Attributes:
        by: the values of the GROUP BY, in Spark SQL; () for one group of all rows.
        columns: the same, where they are columns of stored tables.
        calls: what is computed.
        items: the columns of the result.
        having: which groups stay, in Spark SQL over the names of groups and calls; None for all.
    """

    by: tuple[str, ...]
    columns: tuple[Ref | None, ...]
    calls: tuple[Call, ...]
    items: tuple[Item, ...]
    having: str | None = None

    def held(self, place: int) -> tuple[str, ...]:
        """The columns of the result that hold a value of the GROUP BY."""
        return tuple(one.name for one in self.items if one.value == group_name(place))


def group_name(place: int) -> str:
    """What stands for a value of the GROUP BY."""
    return f"group_{place}"


def result_name(place: int) -> str:
    """What stands for a call."""
    return f"result_{place}"


def function_of(node: exp.Expr) -> str | None:
    """The function that a node calls; None for another one, and for what it is given besides values."""
    known = {"this", "big_int", "nulls_excluded", "expression" if isinstance(node, _BY_ANOTHER) else ""}
    if any(part for name, part in node.args.items() if name not in known):
        return None
    if isinstance(node.parent, _WITH_MORE) or isinstance(node.this, exp.Order):
        return None
    given = node.this
    if isinstance(given, exp.Star) and not isinstance(node, exp.Count):
        return None
    if isinstance(given, exp.Distinct) and (not isinstance(node, _OF_DISTINCT) or given.args.get("on")):
        return None
    has_star = any(isinstance(one, exp.Column) and isinstance(one.this, exp.Star) for one in values_of(node))
    has_call = any(one.find(exp.AggFunc) is not None for one in values_of(node))
    return None if has_star or has_call else FUNCTIONS.get(type(node))


def values_of(node: exp.Expr) -> list[exp.Expr]:
    """What a call is given, one by one."""
    if isinstance(node.this, exp.Star):
        return []
    if isinstance(node.this, exp.Distinct):
        return list(node.this.expressions)
    return [node.this, node.expression] if isinstance(node, _BY_ANOTHER) else [node.this]
