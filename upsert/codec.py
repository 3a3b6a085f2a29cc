"""Frozen dataclasses as JSON values and back, by the types of their fields (pure).

Files, options and offsets keep such values for years. So each field is written under its name, in the order
of the fields, and those that may be left out come last. What is read is checked to the letter: a number is no
text, true is no number, and a missing field is an error unless its ``metadata`` allows it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, NamedTuple, Self, TypeVar, Union, get_args, get_origin, get_type_hints

import pyarrow as pa

from upsert import types
from upsert.errors import ConfigurationError, UpsertError

T = TypeVar("T")

_BY: Final = "read and written by"
_IS: Final = "is"
_WITH: Final = "written with"

MAY_BE_MISSING: Final[Mapping[str, Any]] = {_WITH: None}
"""Metadata of a field that is always written; older releases have left it out, which means its default."""


def written_with(name: str) -> Mapping[str, Any]:
    """Metadata of a field that is left out where another one, or the field itself, has its default value."""
    return {_WITH: name}


def json_by(read: Callable[[Any], Any], write: Callable[[Any], Any]) -> Mapping[str, Any]:
    """Metadata of a field of a type that says not how: by what its JSON is read, and written."""
    return {_BY: (read, write)}


class Jsonable:
    """Gives a frozen dataclass its JSON form.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Point(Jsonable):
    ...     x: int
    ...     tags: tuple[str, ...] = ()
    ...     note: str | None = dataclasses.field(default=None, metadata=written_with("note"))
    >>> Point(1, ("a",)).to_json(), Point.from_json({"x": 1, "tags": ["a"]}) == Point(1, ("a",))
    ({'x': 1, 'tags': ['a']}, True)
    """

    def to_json(self) -> dict[str, Any]:
        """JSON values of which ``from_json`` makes the value again."""
        return _values(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The value of its JSON form; names that it does not have are ignored.

        Raises:
            KeyError: a field is missing.
            TypeError: one is not of the type that it should have.
            ValueError: one has not as many parts as it should have.
        """
        return _made(cls, value)


class OneOf(Jsonable):
    """Gives one of several dataclasses, any of which a field may have, a JSON form that says which it is.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Circle(OneOf):
    ...     radius: int
    >>> Circle(3).to_json()
    {'is': 'Circle', 'radius': 3}
    """

    def to_json(self) -> dict[str, Any]:
        """JSON values, with the name of the class."""
        return {_IS: type(self).__name__, **_values(self)}


def to_text(value: Any) -> str:
    """A frozen dataclass as JSON text."""
    return json.dumps(_values(value))


def from_text(cls: type[T], text: str, what: str) -> T:
    """The value of its JSON text, which is not trusted.

    Raises:
        ConfigurationError: it is none; ``what`` says what it should be.
    """
    try:
        return _made(cls, json.loads(text))
    except ConfigurationError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, UpsertError) as cause:
        raise ConfigurationError(f"{what} must be JSON text of one, got {text[:80]!r}: {cause!r}") from cause


def _values(value: Any) -> dict[str, Any]:
    own: Any = type(value)  # mypy takes no class of a dataclass as hashable
    parts = _parts(own)
    defaults = {part.name: part.default for part in parts}
    others = [part for part in parts if part.with_ and getattr(value, part.with_) != defaults[part.with_]]
    written = [*(part for part in parts if part.with_ is None), *others]
    return {part.name: part.write(getattr(value, part.name)) for part in written}


def _made(cls: type[T], value: Mapping[str, Any]) -> T:
    own: Any = cls
    parts = (part for part in _parts(own) if part.name in value or not part.may_be_missing)
    return cls(**{part.name: part.read(value[part.name]) for part in parts})


class _Part(NamedTuple):
    name: str
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]
    default: Any
    may_be_missing: bool
    with_: str | None


@cache
def _parts(cls: type[Any]) -> tuple[_Part, ...]:
    hints = get_type_hints(cls)
    return tuple(_part(each, hints[each.name], cls.__name__) for each in dataclasses.fields(cls) if each.init)


def _part(each: dataclasses.Field[Any], hint: Any, of: str) -> _Part:
    read, write = each.metadata.get(_BY) or (_reader(hint, f"{of}.{each.name}"), plain)
    about = each.metadata
    return _Part(each.name, read, write, each.default, _WITH in about, about.get(_WITH))


def plain(value: Any) -> Any:
    """A value as JSON has it.

    >>> plain((pa.int64(), {"a": (1, None)}))
    ['long', {'a': [1, None]}]
    """
    match value:
        case None | bool() | int() | float() | str():
            return value
        case pa.DataType():
            return types.to_json(value)
        case tuple() | list():
            return [plain(one) for one in value]
        case Mapping():
            return {name: plain(one) for name, one in value.items()}
    return value.to_json()


def _reader(hint: Any, name: str) -> Callable[[Any], Any]:
    """Makes a value of type ``hint`` of its JSON form, or raises `TypeError`."""
    arguments = get_args(hint)
    match get_origin(hint):
        case origin if origin in (Union, UnionType):
            inner = [one for one in arguments if one is not NoneType]
            if len(inner) > 1:
                by_name = {one.__name__: one for one in inner}
                return lambda value: by_name[_checked(dict, name, value)[_IS]].from_json(value)
            read_inner = _reader(inner[0], name)
            return lambda value: None if value is None else read_inner(value)
        case origin if origin is Literal:
            return lambda value: value if value in arguments else _refuse(name, value)
        case origin if origin is tuple and arguments[1:] == (...,):
            read_one = _reader(arguments[0], name)
            return lambda value: tuple(map(read_one, _checked(list, name, value)))
        case origin if origin is tuple:
            readers = [_reader(one, name) for one in arguments]
            return lambda value: tuple(
                read(one) for read, one in zip(readers, _checked(list, name, value), strict=True)
            )
        case origin if isinstance(origin, type) and issubclass(origin, Mapping):
            read_value = _reader(arguments[1], name)
            return lambda value: {key: read_value(one) for key, one in _checked(dict, name, value).items()}
    if hint is pa.DataType:
        return types.from_json
    if hint in (str, int, float, bool):
        return lambda value: _checked(hint, name, value)
    return lambda value: hint.from_json(_checked(dict, name, value))


def _checked(type_: type[Any], name: str, value: Any) -> Any:
    return value if type(value) is type_ else _refuse(name, value)


def _refuse(name: str, value: Any) -> Any:
    raise TypeError(f"{name} is {value!r}")
