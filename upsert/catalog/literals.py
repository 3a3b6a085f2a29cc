"""Literals in statements: values of partitions (pure)."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

from upsert.catalog.tokens import Cursor
from upsert.errors import SchemaError


def partition(cursor: Cursor) -> dict[str, Any]:
    """Read ``(column = value, …)``: values by the names of their columns.

    Raises:
        SchemaError: it is no such list, or has a column twice.

    >>> partition(Cursor("(day = DATE '2020-10-01', n = -3, region = 'Berlin', x = NULL)"))
    {'day': datetime.date(2020, 10, 1), 'n': -3, 'region': 'Berlin', 'x': None}
    """
    return _partition(cursor, allow_names=False)[0]


def written_partition(cursor: Cursor) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Read ``(column = value, other, …)`` of INSERT: values, and the columns whose values the rows have.

    Raises:
        SchemaError: it is no such list, or has a column twice.

    >>> written_partition(Cursor("(day = DATE '2020-10-01', hub)"))
    ({'day': datetime.date(2020, 10, 1)}, ('hub',))
    """
    return _partition(cursor, allow_names=True)


def _partition(cursor: Cursor, *, allow_names: bool) -> tuple[dict[str, Any], tuple[str, ...]]:
    values: dict[str, Any] = {}
    dynamic: list[str] = []

    def read() -> None:
        name = cursor.name("the name of a partition column")
        if name in values or name in dynamic:
            raise SchemaError(f"{cursor.subject}: PARTITION names column {name!r} twice")
        if allow_names and not cursor.ahead("="):
            dynamic.append(name)
            return
        cursor.expect("=")
        values[name] = literal(cursor)

    cursor.listed(read)
    return values, tuple(dynamic)


def literal(cursor: Cursor) -> Any:
    """Read one literal.

    Raises:
        SchemaError: there is none.
    """
    for word, value in (("TRUE", True), ("FALSE", False), ("NULL", None)):
        if cursor.skip(word):
            return value
    if cursor.is_string(0):
        return cursor.string("a text")
    if cursor.ahead("DATE") and cursor.is_string(1):
        refusal = cursor.refusal("expected DATE 'year-month-day'")
        cursor.expect("DATE")
        try:
            return date.fromisoformat(cursor.string("a date"))
        except ValueError:
            raise refusal from None
    sign = -1 if cursor.skip("-") else 1
    refusal = cursor.refusal("expected a literal")
    text = cursor.numeral("a literal")
    try:
        return sign * (int(text) if text.isdigit() else Decimal(text))
    except ArithmeticError:
        raise refusal from None
