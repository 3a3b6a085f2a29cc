"""Values of one parsed JSON text, as Flink's json format understands it: the reference (pure).

The bulk reader (``json_reader``) has to give what these functions give, message by message. Numbers keep
their text until a type asks for them, so nothing passes through a double that need not. `JsonDialect` is what
the options that the JSON formats share say.

* An INT is a whole number, or a string with one; ``1.0`` is 1, ``1.5`` is bad (Flink cuts it silently).
* A FLOAT or DOUBLE is a number, a string with one, or ``"NaN"``, ``"Infinity"``, ``"-Infinity"``. One that
  is too large is bad (Flink reads it as infinite).
* A DECIMAL is a number or a string with one, rounded half up to the scale; too large is bad (Flink: NULL).
* A STRING is a string, or the JSON text of anything else.
* A BOOLEAN is one, or ``"true"`` or ``"false"`` in any case (Flink takes any other text as false).
* BINARY is base64. DATE and times are texts in the standard chosen (``text_values``).
* Of names that are given twice the last one counts. NULL stands for a field that is missing.
* A NULL in a column, element or field declared NOT NULL is bad.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from json.encoder import encode_basestring
from typing import Any, Final, NoReturn, Self

import numpy as np
import pyarrow as pa

from upsert import options, types
from upsert.errors import SchemaError
from upsert.formats.text_values import (
    BadValueError,
    TimestampStandard,
    has_form,
    integer_range,
    scalar_reader,
    shown,
)
from upsert.options import Option

SHARED_OPTIONS: Final = (
    Option(
        "ignore-parse-errors",
        options.boolean,
        "whether bad values become NULL and unreadable messages are skipped",
        False,
    ),
    Option(
        "timestamp-format.standard",
        options.one_of(*TimestampStandard),
        "how times are written: SQL, ISO-8601 or ISO-8601-WITH-OFFSET",
        TimestampStandard.SQL.value,
    ),
    # A NULL key is no part of an Arrow or Spark map. The next two are known so that a table definition that
    # Flink takes is taken here; no value that they speak of ever arrives.
    Option(
        "map-null-key.mode",
        options.one_of("fail", "drop", "literal"),
        "what is written for a map's NULL key: FAIL, DROP or LITERAL",
        "fail",
    ),
    Option("map-null-key.literal", options.text, "the name written for a NULL key in mode LITERAL", "null"),
    Option(
        "encode.decimal-as-plain-number",
        options.boolean,
        "whether 0.00000001 is never written as 1E-8",
        False,
    ),
)
"""Options of all JSON formats."""


@dataclass(frozen=True)
class JsonDialect:
    """How JSON is read and written: the values of the options that the JSON formats share."""

    timestamps: TimestampStandard = TimestampStandard.SQL
    fail_on_missing_field: bool = False
    ignore_parse_errors: bool = False
    decimal_as_plain_number: bool = False
    ignore_null_fields: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """The dialect that the options of a format ask for; a format without some option has its default."""
        return cls(
            TimestampStandard(options.get("timestamp-format.standard", TimestampStandard.SQL)),
            options.get("fail-on-missing-field", False),
            options.get("ignore-parse-errors", False),
            options.get("encode.decimal-as-plain-number", False),
            options.get("encode.ignore-null-fields", False),
        )


MAX_DEPTH: Final = 200
"""How deep arrays and objects may lie in each other; a message that goes deeper is bad."""

_SPACES: Final = " \t\r\n"
_PLAIN_DIGITS: Final = 19
_MAX_DIGITS: Final = 40
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
STEPS: Final = np.zeros(256, dtype=np.int8)
STEPS[list(b"[{")] = 1
STEPS[list(b"]}")] = -1

Converter = Callable[[Any], Any]


class Number(str):
    """A JSON number by its text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _refuse_constant(name: str) -> Any:
    raise BadValueError(f"not valid JSON: {name} is no number")


_DECODER: Final = json.JSONDecoder(
    strict=False, parse_int=Number, parse_float=Number, parse_constant=_refuse_constant
)


def parse(message: bytes) -> Any:
    """The JSON value of a message; None when it is empty or ``null``.

    Control characters may stand in strings as they are, as in Flink. A second value after the first is
    refused (Flink drops it), as is what is nested too deep.

    >>> parse(b'{"a": 1, "a": 2}')
    {'a': 2}
    """
    try:
        text = message.removeprefix(_BYTE_ORDER_MARK).decode()
    except UnicodeDecodeError as cause:
        raise BadValueError(f"not valid UTF-8 at byte {cause.start}") from None
    if message.count(b"[") + message.count(b"{") > MAX_DEPTH and _depth(message) > MAX_DEPTH:
        raise BadValueError(f"nested deeper than {MAX_DEPTH} levels")
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as cause:
        if not text.strip(_SPACES):
            return None
        raise BadValueError(f"not valid JSON: {cause.msg} at character {cause.pos}") from None


def _depth(message: bytes) -> int:
    outside = np.frombuffer(_STRING.sub(b"", message), dtype=np.uint8)
    return int(np.cumsum(STEPS[outside], dtype=np.int64).max(initial=0))


def to_text(value: Any) -> str:
    """A parsed JSON value as compact JSON text."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case Number():
            return str(value)
        case str():
            return encode_basestring(value)
        case list():
            return f"[{','.join(map(to_text, value))}]"
    return "{" + ",".join(f"{encode_basestring(name)}:{to_text(item)}" for name, item in value.items()) + "}"


def check_types(fields: pa.Schema) -> None:
    """Refuse fields whose types JSON has no form for."""
    for field in fields:
        _check_type(field.type, f"column {field.name!r}")


def _check_type(type_: pa.DataType, of: str) -> None:
    if type_ == types.VARIANT:
        raise SchemaError(
            f"{of}: JSON has no form for the type VARIANT; make it a STRING, and use parse_json"
        )
    if pa.types.is_map(type_):
        if type_.key_type != pa.string():
            raise SchemaError(
                f"{of}: a MAP in JSON must have a key of type STRING, got {types.sql_name(type_.key_type)}; "
                "a JSON object has only names"
            )
        _check_type(type_.item_type, of)
    elif pa.types.is_list(type_):
        _check_type(type_.value_type, of)
    elif pa.types.is_struct(type_):
        for field in type_:
            _check_type(field.type, of)
    elif not has_form(type_):
        raise SchemaError(f"{of}: JSON has no form for the type {types.sql_name(type_)}; make it a STRING")


def converter(field: pa.Field, dialect: JsonDialect) -> Converter:
    """What turns a parsed JSON value into a value of a field, as ``pa.array`` takes it, or ``BadValueError``.

    With ``ignore_parse_errors`` a bad value is NULL.
    """
    convert = _converter(field.type, dialect)

    def checked(value: Any) -> Any:
        found = None
        if value is not None:
            try:
                found = convert(value)
            except BadValueError:
                if not dialect.ignore_parse_errors:
                    raise
        if found is None and not field.nullable:
            raise BadValueError("is NULL, but declared NOT NULL")
        return found

    return checked


def _converter(type_: pa.DataType, dialect: JsonDialect) -> Converter:
    if pa.types.is_struct(type_):
        return struct_converter(list(type_), dialect)
    if pa.types.is_list(type_):
        return _list_converter(type_.value_field, dialect)
    if pa.types.is_map(type_):
        return _map_converter(type_.item_field, dialect)
    read = scalar_reader(type_, dialect.timestamps)
    if type_ == pa.string():
        return lambda value: read(str(value) if isinstance(value, str) else to_text(value))
    if type_ == pa.bool_():
        return lambda value: value if isinstance(value, bool) else _read_text(value, type_, read)
    if pa.types.is_integer(type_):
        return _integer_converter(type_, read)
    if pa.types.is_floating(type_) or pa.types.is_decimal(type_):
        return lambda value: read(value) if isinstance(value, str) else _refuse(value, type_)
    return lambda value: _read_text(value, type_, read)


def _read_text(value: Any, type_: pa.DataType, read: Converter) -> Any:
    if isinstance(value, Number) or not isinstance(value, str):
        _refuse(value, type_)
    return read(value)


def _refuse(value: Any, type_: pa.DataType) -> NoReturn:
    raise BadValueError(f"{_kind(value)} is no {types.sql_name(type_)}")


def _kind(value: Any) -> str:
    match value:
        case list():
            return "an array"
        case dict():
            return "an object"
        case bool():
            return to_text(value)
    return shown(value)


def _integer_converter(type_: pa.DataType, read: Converter) -> Converter:
    low, high = integer_range(type_)

    def convert(value: Any) -> int:
        if isinstance(value, Number) and len(value) < _PLAIN_DIGITS and value.isdigit():
            number = int(value)
            return number if number <= high else _refuse(value, type_)
        if not isinstance(value, str):
            _refuse(value, type_)
        if isinstance(value, Number) and not value.lstrip("-").isdigit():
            return _whole(value, low, high, type_)
        found: int = read(value)
        return found

    return convert


def _whole(text: Number, low: int, high: int, type_: pa.DataType) -> int:
    """The whole number that a number with a point or an exponent is."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        _refuse(text, type_)
    # The size comes first: 1e999999999 must not be written out.
    if number.adjusted() < _MAX_DIGITS and low <= number <= high and number == number.to_integral_value():
        return int(number)
    _refuse(text, type_)


def _list_converter(element: pa.Field, dialect: JsonDialect) -> Converter:
    convert = converter(element, dialect)

    def convert_list(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise BadValueError(f"{_kind(value)} is no ARRAY")
        found = []
        for position, item in enumerate(value):
            try:
                found.append(convert(item))
            except BadValueError as bad:
                bad.path.insert(0, str(position))
                raise
        return found

    return convert_list


def _map_converter(item_field: pa.Field, dialect: JsonDialect) -> Converter:
    convert = converter(item_field, dialect)
    read_name = scalar_reader(pa.string(), dialect.timestamps)

    def convert_map(value: Any) -> list[tuple[str, Any]]:
        if not isinstance(value, dict):
            raise BadValueError(f"{_kind(value)} is no MAP")
        found = []
        for name, item in value.items():
            try:
                found.append((read_name(name), convert(item)))
            except BadValueError as bad:
                bad.path.insert(0, name)
                raise
        return found

    return convert_map


def struct_converter(fields: list[pa.Field], dialect: JsonDialect) -> Converter:
    """What turns a parsed JSON object into the tuple of some fields' values; it raises ``BadValueError``."""
    converters = [(field.name, converter(field, dialect)) for field in fields]

    def convert_struct(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, dict):
            raise BadValueError(f"{_kind(value)} is no object")
        found = []
        for name, convert in converters:
            try:
                if dialect.fail_on_missing_field and name not in value:
                    raise BadValueError("is missing")
                found.append(convert(value.get(name)))
            except BadValueError as bad:
                bad.path.insert(0, name)
                raise
        return tuple(found)

    return convert_struct
