"""Expressions of computed columns and of watermarks: what is read of them in DDL (pure)."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

from sqlglot import exp

from upsert.catalog.dialect import expression_tree
from upsert.catalog.flink_words import spark_words
from upsert.catalog.places import Revision, place
from upsert.catalog.tokens import Cursor, blanked
from upsert.catalog.window_tables import UNITS
from upsert.errors import SchemaError


def spark_expression(text: str) -> str:
    """An expression in Spark's words.

    >>> spark_expression("PROCTIME()")
    'current_timestamp()'
    """
    return Revision(text).edited(spark_words(text, "expression")).text


def is_processing_time(text: str) -> bool:
    """Whether an expression is nothing but ``PROCTIME()``."""
    return "".join(text.split()).upper() == "PROCTIME()"


def columns_of(text: str, start: int, end: int, subject: str) -> tuple[str, ...]:
    """The columns that an expression names, each once.

    Args:
        text: the statement.
        start: where in it the expression begins.
        end: where it ends.
        subject: first words of every refusal.

    Raises:
        SchemaError: it is no expression of one row; the message has the place.

    >>> columns_of("price * (1 + vat) - price", 0, 25, "column 'gross'")
    ('price', 'vat')
    """
    white = blanked(text, start, end)
    tree = expression_tree(white, subject)
    whole = next(tree.find_all(exp.Query, exp.AggFunc, exp.Window, exp.Star), None)
    if whole is not None:
        raise SchemaError(
            f"{subject}: a column is computed from its own row, found {whole.sql('spark')!r} at "
            f"{place(text, start)}; compute it in a query"
        )
    found = (column.parts[0].name for column in tree.find_all(exp.Column))
    return tuple(dict.fromkeys(found))


def read_delay(cursor: Cursor) -> int:
    """Read ``INTERVAL 'number' unit``; in milliseconds."""
    cursor.expect("INTERVAL")
    start = cursor.refusal("expected a number of seconds, minutes, hours or days")
    number = cursor.string("a number") if cursor.is_string(0) else str(cursor.number("a number"))
    unit = cursor.name("a unit such as SECOND").upper().removesuffix("S")
    try:
        milliseconds = Decimal(number) * UNITS[unit]
    except (InvalidOperation, KeyError):
        raise start from None
    if milliseconds < 0 or milliseconds != int(milliseconds):
        raise start
    return int(milliseconds)
