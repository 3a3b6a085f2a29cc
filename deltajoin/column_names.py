"""A join with its columns under other names, and conditions without the types of its columns (pure)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal, localcontext
from math import isfinite
from typing import Any

from deltajoin import expressions_json
from deltajoin.expressions import Call, Cast, Condition, Const, Field, Ref
from deltajoin.joined_table import JoinedTable
from deltajoin.tree import Inner, Leaf, Node, On, Outer, Where

Name = Callable[[Ref], str]


def renamed_tables(tables: Sequence[JoinedTable], name: Name) -> tuple[JoinedTable, ...]:
    """The tables with each column under the name that ``name`` gives it."""
    return tuple(_renamed_table(number, table, name) for number, table in enumerate(tables))


def _renamed_table(number: int, table: JoinedTable, name: Name) -> JoinedTable:
    def of(column: str) -> str:
        return name(Ref(number, column))

    where = table.where and tuple(
        tuple((of(column), operator, value) for column, operator, value in parts) for parts in table.where
    )
    emit = None if table.emit is None else tuple(map(of, table.emit))
    return JoinedTable(table.path, tuple(map(of, table.select)), where, emit)


def renamed_tree(node: Node, name: Name) -> Node:
    """The tree with each column under the name that ``name`` gives it.

    >>> on = ((Ref(0, "a"), Ref(1, "b")),)
    >>> renamed_tree(Inner((Leaf(0), Leaf(1)), on), lambda ref: ref.column.upper()).on
    ((Ref(table=0, column='A'), Ref(table=1, column='B')),)
    """
    match node:
        case Leaf():
            return node
        case Inner(below, on, where):
            children = tuple(renamed_tree(child, name) for child in below)
            return Inner(children, _pairs(on, name), renamed_condition(where, name))
        case Outer(kind, left, right, on, where):
            sides = renamed_tree(left, name), renamed_tree(right, name)
            return Outer(kind, *sides, _pairs(on, name), renamed_condition(where, name))
        case Where(child, condition):
            renamed = renamed_condition(condition, name)
            assert renamed is not None
            return Where(renamed_tree(child, name), renamed)


def _pairs(on: On, name: Name) -> On:
    return tuple((Ref(a.table, name(a)), Ref(b.table, name(b))) for a, b in on)


def renamed_condition(condition: Condition | None, name: Name) -> Condition | None:
    """The condition with each column under the name that ``name`` gives it; None for None."""
    match condition:
        case Field(ref):
            return Field(Ref(ref.table, name(ref)))
        case Cast(value, type_):
            renamed = renamed_condition(value, name)
            assert renamed is not None
            return Cast(renamed, type_)
        case Call(_, args):
            parts = (renamed_condition(arg, name) for arg in args)
            return replace(condition, args=tuple(part for part in parts if part is not None))
    return condition


def untyped(condition: Condition) -> Any:
    """JSON values of a condition, equal before and after a column of it has become wider.

    Spark casts a narrower column to the other side's type, and gives a constant the column's type. A cast of
    a condition loses nothing, so neither has a part in what it means; but for ``wrapping`` arithmetic, which
    begins again at the end of its type.

    >>> import pyarrow as pa
    >>> field = Field(Ref(0, "a"))
    >>> narrow = Call("<", (Cast(field, pa.int64()), Const(5, pa.int64())))
    >>> untyped(narrow) == untyped(Call("<", (field, Const(5, pa.int32()))))
    True
    """
    match condition:
        case Cast(value):
            return untyped(value)
        case Const(value, _) if is_number(value):
            return {"const": plain_number(value)}
        case Call(op, args) if not op.startswith("wrapping"):
            return {"call": op, "args": [untyped(arg) for arg in args]}
    return expressions_json.to_json(condition)


def is_number(value: Any) -> bool:
    """Whether a constant is a number that `plain_number` can write."""
    if isinstance(value, float):
        return isfinite(value)
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def plain_number(value: float | Decimal) -> str:
    """A number as a text that does not depend on its type.

    >>> plain_number(5), plain_number(5.0), plain_number(Decimal("5.00"))
    ('5', '5', '5')
    """
    with localcontext(prec=400):
        exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
        return str(exact.normalize())
