"""Literals of intervals of days and of their parts (pure)."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal
from typing import Final

from sqlglot import exp

_SECONDS: Final = {"DAY": 86_400, "HOUR": 3_600, "MINUTE": 60, "SECOND": 1}
_NUMBER: Final = re.compile(r"\s*([+-]?[0-9]{1,14})(\.[0-9]{1,6})?\s*")
_SPAN: Final = re.compile(
    r"\s*([+-]?)([0-9]{1,9}) ([01]?[0-9]|2[0-3]):([0-5]?[0-9]):([0-5]?[0-9](?:\.[0-9]{1,6})?)\s*"
)


def interval_literal(node: exp.Interval) -> timedelta | None:
    """What ``INTERVAL '1' DAY`` or ``INTERVAL '1 02:03:04.5' DAY TO SECOND`` is; None for other intervals.

    >>> import sqlglot
    >>> interval_literal(sqlglot.parse_one("INTERVAL '-1 00:00:01.5' DAY TO SECOND", dialect="spark"))
    datetime.timedelta(days=-2, seconds=86398, microseconds=500000)
    >>> interval_literal(sqlglot.parse_one("INTERVAL '1-2' YEAR TO MONTH", dialect="spark"))
    """
    value, unit = node.this, node.args.get("unit")
    if not isinstance(value, exp.Literal):
        return None
    if isinstance(unit, exp.IntervalSpan):
        is_whole = (unit.this.name.upper(), unit.expression.name.upper()) == ("DAY", "SECOND")
        found = _SPAN.fullmatch(value.name) if is_whole else None
        if found is None:
            return None
        sign, days, hours, minutes, seconds = found.groups()
        micros = int(Decimal(seconds) * 1_000_000)
        size = timedelta(days=int(days), hours=int(hours), minutes=int(minutes), microseconds=micros)
        return -size if sign == "-" else size
    each = None if unit is None else _SECONDS.get(unit.name.upper().removesuffix("S"))
    number = _NUMBER.fullmatch(value.name)
    if each is None or number is None or (number[2] and each > 1):
        return None
    try:
        return timedelta(microseconds=int(Decimal(value.name.strip()) * each * 1_000_000))
    except OverflowError:
        return None
