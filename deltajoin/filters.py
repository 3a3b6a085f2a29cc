"""Filters of a side of a join as values that compare, travel as JSON and mean the same everywhere (pure).

The form is the store's own: ``(column, operator, value)`` predicates, all of which must hold, or
a list of such lists, one of which must hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from upsert.errors import ConfigurationError

Predicate = tuple[str, str, Any]
Filters = tuple[tuple[Predicate, ...], ...]
"""Alternatives, each of predicates that must all hold."""

_READERS: dict[str, Callable[[str], Any]] = {
    "date": date.fromisoformat,
    "timestamp": datetime.fromisoformat,
    "time": time.fromisoformat,
    "interval": lambda text: timedelta(microseconds=int(text)),
    "decimal": Decimal,
    "binary": bytes.fromhex,
}


def normalized(filters: Sequence[Any] | None) -> Filters | None:
    """Filters in their one immutable form, or None when they keep every row.

    >>> normalized([("a", ">", 3), ("b", "in", ["x", "y"])])
    ((('a', '>', 3), ('b', 'in', ('x', 'y'))),)
    """
    if not filters:
        return None
    is_one_conjunction = all(
        isinstance(part, tuple) and part and isinstance(part[0], str) for part in filters
    )
    alternatives = [filters] if is_one_conjunction else filters
    return tuple(tuple(_predicate(part) for part in alternative) for alternative in alternatives)


def _predicate(part: Any) -> Predicate:
    match part:
        case [str(column), str(operator), value]:
            return (
                column,
                operator,
                tuple(value) if isinstance(value, list | tuple | set | frozenset) else value,
            )
    raise ConfigurationError(f"a filter must be (column, operator, value) or lists of such, got {part!r}")


def columns_of(filters: Sequence[Any] | None) -> tuple[str, ...]:
    """The columns that filters name, each once."""
    return tuple(dict.fromkeys(column for parts in filters or () for column, _, _ in parts))


def renamed(filters: Sequence[Any] | None, name: Callable[[str], str]) -> Filters | None:
    """The filters with their columns under the names that ``name`` gives them."""
    if filters is None:
        return None
    return tuple(tuple((name(c), op, value) for c, op, value in parts) for parts in filters)


def to_json(filters: Sequence[Any] | None) -> Any:
    """JSON values of filters; types that JSON lacks carry their name.

    >>> to_json(((("day", ">=", date(2013, 1, 31)),),))
    [[['day', '>=', {'date': '2013-01-31'}]]]
    """
    if filters is None:
        return None
    return [[[column, op, _value_to_json(value)] for column, op, value in parts] for parts in filters]


def _value_to_json(value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case tuple():
            return [_value_to_json(one) for one in value]
        case datetime():
            return {"timestamp": value.isoformat()}
        case date():
            return {"date": value.isoformat()}
        case time():
            return {"time": value.isoformat()}
        case timedelta():
            return {"interval": str(value // timedelta(microseconds=1))}
        case Decimal():
            return {"decimal": str(value)}
        case bytes():
            return {"binary": value.hex()}
    raise ConfigurationError(
        f"a filter's value must be a number, text, boolean, date, timestamp, decimal or binary, got {value!r}"
    )


def from_json(value: Any) -> Filters | None:
    """The filters of their JSON values, which are not trusted: a `ConfigurationError` if they are none."""
    if value is None:
        return None
    if not (isinstance(value, list) and value and all(isinstance(parts, list) and parts for parts in value)):
        raise ConfigurationError(f"filters must be null or a list of lists of predicates, got {value!r}")
    return tuple(tuple(_predicate_from_json(part) for part in parts) for parts in value)


def _predicate_from_json(part: Any) -> Predicate:
    match part:
        case [str(column), str(operator), value]:
            return column, operator, _value_from_json(value)
    raise ConfigurationError(f"a filter must be [column, operator, value], got {part!r}")


def _value_from_json(value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list():
            return tuple(_value_from_json(one) for one in value)
        case dict() if len(value) == 1:
            ((kind, text),) = value.items()
            if kind in _READERS and isinstance(text, str):
                try:
                    return _READERS[kind](text)
                except (ValueError, OverflowError, InvalidOperation):
                    pass
    raise ConfigurationError(
        f"a filter's value must be a scalar, a list or {sorted(_READERS)}, got {value!r}"
    )
