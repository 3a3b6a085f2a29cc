"""Constants of Spark's expressions as values of Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import numpy as np

_EPOCH: Final = datetime(1970, 1, 1)

_VALUES: Final[Mapping[str, Callable[[Any], Any]]] = {
    "boolean": bool,
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), int),
    "float": lambda number: float(np.float32(number)),  # Java tells 0.2 of what is 0.200000003
    "double": float,
    "string": str,
    "date": lambda days: date(1970, 1, 1) + timedelta(days=days),
    "timestamp": lambda micros: (_EPOCH + timedelta(microseconds=micros)).replace(tzinfo=UTC),
    "timestamp_ntz": lambda micros: _EPOCH + timedelta(microseconds=micros),
}


def python_value(value: Any, type_name: str) -> Any:
    """A value as Catalyst has it inside, of a type by its name in SQL, as Python has it.

    Raises:
        ValueError: Python has no such value.

    >>> python_value(15_706, "date"), python_value(None, "int")
    (datetime.date(2013, 1, 1), None)
    >>> python_value(0.2, "float")
    0.20000000298023224
    """
    if value is None:
        return None
    if type_name.startswith("decimal"):
        return Decimal(str(value))
    if type_name == "string" and not value.isValid():
        raise ValueError("no constant: text that is no UTF-8, which Java shows with other signs")
    try:
        return _VALUES[type_name](value if isinstance(value, int | float) else str(value))
    except (KeyError, OverflowError) as cause:
        raise ValueError(f"no constant of type {type_name}: {value}") from cause
