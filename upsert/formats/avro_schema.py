"""Avro schemas: parsed, derived from columns, and which of them fit which columns (pure).

A writer's schema may come from a registry and is not trusted. Refused are recursive types, which no column
can hold, and arrays and maps of what takes no bytes, of which a short message could hold billions. What is
left needs no more memory than its messages, times a constant. A field that takes no bytes, null alone or a
record without fields, is as none. No column holds a union of several types: such a field is passed over. A
union of one type is that type.

Which types of schemas and of columns go together: reading is generous where nothing is lost (whole numbers of
other widths, enums as texts, times of any unit and either kind); writing takes what the schema's readers get
back unchanged.

A message is read with the schema that it was written with. Where the table was given a schema too, its fields
may say under which names they were written before (``aliases``), and what they are in messages that lack them
(``default``); other rules of Avro's schema resolution follow from the columns.

Names and scalar types are those of tables' Avro files too; what these do with lists, structs, maps and NULL
differs, for a topic follows Flink and a data file gives everything back.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa

from upsert import types
from upsert.errors import SchemaError
from upsert.formats.binary_columns import varint_bytes

NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""What Avro takes for the name of a field."""

_SCALARS: Final[Mapping[pa.DataType, Any]] = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    types.TIMESTAMP: {"type": "long", "logicalType": "timestamp-micros"},
    types.TIMESTAMP_NTZ: {"type": "long", "logicalType": "local-timestamp-micros"},
    types.time_of(0): {"type": "int", "logicalType": "time-millis"},
    types.time_of(3): {"type": "int", "logicalType": "time-millis"},
    types.time_of(6): {"type": "long", "logicalType": "time-micros"},
}


def scalar(type_: pa.DataType) -> Any | None:
    """The Avro type of a scalar's values; None if the type is no scalar that has one without a name.

    >>> scalar(pa.int16()), scalar(pa.list_(pa.int16()))
    ('int', None)
    """
    if pa.types.is_decimal128(type_):
        return {"type": "bytes", "logicalType": "decimal", "precision": type_.precision, "scale": type_.scale}
    return _SCALARS.get(type_)


_PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_MAX_DEPTH: Final = 64

_NAMESPACE: Final = "org.apache.flink.avro.generated"
"""Namespace that Flink gives the record of a table, whose name is ``record``; a registry compares them."""


@dataclass(frozen=True)
class AvroType:
    """One type of a schema.

    Attributes:
        kind: ``null``, ``boolean`` … ``string``, ``enum``, ``fixed``, ``array``, ``map`` or ``record``; or
            ``union``, of other than one type and null.
        name: full name of a record, enum or fixed.
        nullable: whether it is in a union with null.
        null_is_first: whether null is the first of the two.
        inner: type of the items of an array, or of the values of a map.
        branches: of a union; None for null.
        size: of a fixed, in bytes.
        aliases: of a record, other names of fields, each with the field's own.
        defaults: of a record, of fields that have one, as JSON has it.
        absent: of a record that was written with another schema, fields that it lacks, their types and the
            bytes of their defaults, see ``resolved``.
        depth: how deep the types in it are nested.
    """

    kind: str
    logical: str | None = None
    name: str = ""
    nullable: bool = False
    null_is_first: bool = True
    inner: AvroType | None = None
    branches: tuple[AvroType | None, ...] = ()
    fields: tuple[tuple[str, AvroType], ...] = ()
    symbols: tuple[str, ...] = ()
    size: int = 0
    precision: int = 0
    scale: int = 0
    depth: int = 1
    aliases: tuple[tuple[str, str], ...] = ()
    defaults: tuple[tuple[str, Any], ...] = ()
    absent: tuple[tuple[str, AvroType, bytes], ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether its only value takes no bytes."""
        return not self.nullable and (self.kind == "null" or (self.kind == "record" and not self.fields))

    @cached_property
    def without_null(self) -> AvroType:
        """The other type of a union with null; made once, for each batch of messages asks."""
        return replace(self, nullable=False)

    def __str__(self) -> str:
        if self.branches:
            return "a union of " + ", ".join(str(branch or "null") for branch in self.branches)
        return f"{self.kind} ({self.logical})" if self.logical else self.kind


def parse(text: str) -> AvroType:
    """The type that a schema's JSON text describes; `SchemaError` for none, or one that no table can have."""
    try:
        found = _Parser().read(json.loads(text), "")
        if found.is_empty:
            raise ValueError("its values take no bytes")
        return found
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as cause:
        reason = "it is nested too deeply" if isinstance(cause, RecursionError) else str(cause)
        missing = " is missing" if isinstance(cause, KeyError) else ""
        raise SchemaError(f"avro schema cannot be read: {reason}{missing}") from cause


class _Parser:
    """Reads one schema; remembers the types that have a name."""

    def __init__(self) -> None:
        self._named: dict[str, AvroType | None] = {}

    def read(self, value: Any, namespace: str) -> AvroType:
        match value:
            case str():
                return AvroType(value) if value in _PRIMITIVES else self._reference(value, namespace)
            case list():
                return self._union(value, namespace)
            case {"type": "record" | "enum" | "fixed"}:
                return self._define(value, namespace)
            case {"type": "array" | "map" as kind}:
                inner = self.read(value["items" if kind == "array" else "values"], namespace)
                if inner.is_empty:
                    raise ValueError(f"what is in {_short(value)} takes no bytes")
                return AvroType(kind, inner=inner, depth=_deeper(inner.depth))
            case {"type": str() as kind} if kind in _PRIMITIVES:
                return _with_logical(AvroType(kind), value)
            case {"type": inner}:
                return self.read(inner, namespace)
        raise ValueError(f"{_short(value)} is no type")

    def _reference(self, name: str, namespace: str) -> AvroType:
        for full in (name if "." in name else f"{namespace}.{name}", name):
            if full in self._named:
                found = self._named[full]
                if found is None:
                    raise ValueError(f"type {name!r} is recursive")
                return found
        raise ValueError(f"{_short(name)} is no type")

    def _union(self, branches: list[Any], namespace: str) -> AvroType:
        types_ = (self.read(branch, namespace) for branch in branches)
        found = [None if one.kind == "null" else one for one in types_]
        others = [branch for branch in found if branch is not None]
        if any(branch.nullable or branch.branches for branch in others):
            raise ValueError("a union must not be in a union")
        if len(found) == 2 and len(others) == 1:
            return replace(others[0], nullable=True, null_is_first=found[0] is None)
        if not found:
            raise ValueError("a union must be of some type, got []")
        return AvroType("union", branches=tuple(found), depth=_deeper(0, *(b.depth for b in others)))

    def _define(self, value: Mapping[str, Any], namespace: str) -> AvroType:
        name = _text(value["name"])
        if "." not in name:
            own = _text(value.get("namespace") or namespace)
            name = f"{own}.{name}" if own else name
        if name in self._named:
            raise ValueError(f"type {name!r} is defined twice")
        self._named[name] = None
        self._named[name] = found = self._body(value, name)
        return found

    def _body(self, value: Mapping[str, Any], name: str) -> AvroType:
        if value["type"] == "enum":
            symbols = tuple(_text(symbol) for symbol in value["symbols"])
            return AvroType("enum", name=name, symbols=symbols)
        if value["type"] == "fixed":
            size = value["size"]
            if not isinstance(size, int) or not 1 <= size < 2**31:
                raise ValueError(f"the size of a fixed must be 1 to {2**31 - 1}, got {_short(size)}")
            return _with_logical(AvroType("fixed", name=name, size=size), value)
        inside = name.rpartition(".")[0]
        fields = tuple((_text(one["name"]), self.read(one["type"], inside)) for one in value["fields"])
        if len({field for field, _ in fields}) != len(fields):
            raise ValueError(f"record {name!r} must have each field once")
        fields = tuple((field, own) for field, own in fields if not own.is_empty)
        return AvroType(
            "record",
            name=name,
            fields=fields,
            depth=_deeper(0, *(t.depth for _, t in fields)),
            aliases=tuple(
                (_text(a), one["name"]) for one in value["fields"] for a in one.get("aliases") or ()
            ),
            defaults=tuple((one["name"], one["default"]) for one in value["fields"] if "default" in one),
        )


_ZONED: Final = "iso-8601-with-offset"

_OF_DEBEZIUM: Final = {
    "io.debezium.time.Date": "date",
    "io.debezium.time.Timestamp": "local-timestamp-millis",
    "io.debezium.time.MicroTimestamp": "local-timestamp-micros",
    "io.debezium.time.NanoTimestamp": "local-timestamp-nanos",
    "io.debezium.time.ZonedTimestamp": _ZONED,
    "io.debezium.time.IsoTimestamp": _ZONED,
    "io.debezium.time.Time": "time-millis",
    "io.debezium.time.MicroTime": "time-micros",
    "io.debezium.time.NanoTime": "time-nanos",
}
"""Debezium's names of numbers and texts that are times -> what Avro calls them, if it has them."""


def _with_logical(found: AvroType, value: Mapping[str, Any]) -> AvroType:
    logical = value.get("logicalType")
    if logical is None and isinstance(name := value.get("connect.name"), str):
        logical = _OF_DEBEZIUM.get(name)
    if not isinstance(logical, str):
        return found
    if logical != "decimal":
        return replace(found, logical=logical)
    precision, scale = value.get("precision"), value.get("scale", 0)
    # what is none is read as the type that it has, as Avro wants it; but of Oracle, more digits may be behind
    # the point than there are digits
    if found.kind not in ("bytes", "fixed") or not isinstance(precision, int) or not isinstance(scale, int):
        return found
    if max(precision, abs(scale)) > _MAX_DIGITS:
        return found
    return replace(found, logical=logical, precision=precision, scale=scale)


_MAX_DIGITS: Final = 1_000
"""A number with a million of them takes seconds to compute."""


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a name, got {_short(value)}")
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"


def _deeper(*depths: int) -> int:
    depth = 1 + max(depths)
    if depth > _MAX_DEPTH:
        raise ValueError(f"types must be nested at most {_MAX_DEPTH} deep")
    return depth


def derived(fields: pa.Schema, *, legacy_times: bool = False) -> str:
    """The schema that Flink derives from a table's columns, as JSON text.

    >>> derived(pa.schema([pa.field("n", pa.int64(), nullable=False)]))
    '{"type":"record","name":"record",...,"fields":[{"name":"n","type":"long"}]}'
    """
    own = [_field(field, "record", legacy_times) for field in fields]
    value = {"type": "record", "name": "record", "namespace": _NAMESPACE, "fields": own}
    return json.dumps(value, separators=(",", ":"))


def _field(field: pa.Field, parent: str, legacy_times: bool) -> dict[str, Any]:
    if not NAME.fullmatch(field.name):
        raise SchemaError(
            f"avro: the name of a column must be letters, digits and _, the first no digit, got "
            f"{field.name!r}; rename the column"
        )
    value = {"name": field.name, "type": _type(field, f"{parent}_{field.name}", legacy_times)}
    return value | {"default": None} if field.nullable else value


def _type(field: pa.Field, name: str, legacy_times: bool) -> Any:
    plain = _plain_type(field, name, legacy_times)
    return ["null", plain] if field.nullable else plain


def _plain_type(field: pa.Field, name: str, legacy_times: bool) -> Any:
    type_ = field.type
    if legacy_times and type_ in _TIMES:
        return {"type": "long", "logicalType": "timestamp-millis"}
    if (found := scalar(type_)) is not None:
        return found
    if pa.types.is_list(type_):
        return {"type": "array", "items": _type(type_.value_field, name, legacy_times)}
    if pa.types.is_struct(type_) and type_ != types.VARIANT:
        fields = [_field(inner, name, legacy_times) for inner in type_]
        return {"type": "record", "name": name, "fields": fields}
    if pa.types.is_map(type_) and type_.key_type == pa.string():
        return {"type": "map", "values": _type(type_.item_field, name, legacy_times)}
    raise SchemaError(
        f"avro: column {field.name!r} must be of a type that Avro has, got {types.sql_name(type_)}; keys of "
        "maps must be STRING"
    )


_INTEGERS: Final = ("int", "long")
_FLOATS: Final = ("float", "double")
_TEXTS: Final = ("string", "enum", "bytes", "fixed")
_TIMES: Final = (types.TIMESTAMP, types.TIMESTAMP_NTZ)
_PER_SECOND: Final = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}


def ticks(avro: AvroType) -> int | None:
    """How many units of a time are in a second; None for what is no time.

    >>> ticks(AvroType("long", "timestamp-millis"))
    1000
    """
    name, _, unit = (avro.logical or "").rpartition("-")
    is_time = avro.kind == "long" and name in ("timestamp", "local-timestamp")
    return _PER_SECOND.get(unit) if is_time else None


def ticks_of_day(avro: AvroType) -> int | None:
    """The same of a time of day.

    >>> ticks_of_day(AvroType("int", "time-millis")), ticks_of_day(AvroType("int", "time-micros"))
    (1000, None)
    """
    name, _, unit = (avro.logical or "").rpartition("-")
    is_time = name == "time" and avro.kind == ("int" if unit == "millis" else "long")
    return _PER_SECOND.get(unit) if is_time else None


def is_zoned(avro: AvroType) -> bool:
    """Whether values are texts of times with an offset, which Debezium has and Avro has not."""
    return avro.kind == "string" and avro.logical == _ZONED


def mismatch(avro: AvroType, field: pa.Field, *, writing: bool) -> str | None:
    """Why values of an Avro type are none of a column, or the other way round; None if they are.

    >>> mismatch(AvroType("string"), pa.field("n", pa.int64()), writing=False)
    "'n' is BIGINT, the schema says string"
    """
    type_ = field.type
    if writing and field.nullable and not avro.nullable:
        return f"{field.name!r} may be NULL, the schema says {avro} without null"
    if len(avro.branches) == 1 and avro.branches[0] is not None and not writing:
        return mismatch(avro.branches[0], field, writing=False)
    if avro.kind == "array" and avro.inner is not None and pa.types.is_list(type_):
        return mismatch(avro.inner, type_.value_field, writing=writing)
    if avro.kind == "map" and avro.inner is not None and pa.types.is_map(type_):
        if type_.key_type == pa.string():
            return mismatch(avro.inner, type_.item_field, writing=writing)
    elif avro.kind == "record" and pa.types.is_struct(type_):
        return record_mismatch(avro, list(type_), writing=writing)
    elif avro.kind == "record" and type_ == TEXTS_BY_NAME and not writing:
        odd = next((f"{name!r}, {inner}" for name, inner in avro.fields if not _is_text(inner)), None)
        return None if odd is None else f"{field.name!r} is a map of texts, the schema has a field {odd}"
    elif (_can_write if writing else _can_read)(avro, type_):
        return None
    return f"{field.name!r} is {types.sql_name(type_)}, the schema says {avro}"


def record_mismatch(avro: AvroType, fields: Sequence[pa.Field], *, writing: bool) -> str | None:
    """Why the fields of a record are not these; a nullable column that the record lacks is NULL."""
    own, absent = dict(avro.fields), [name for name, _, _ in avro.absent]
    for field in fields:
        if field.name in own:
            if reason := mismatch(own[field.name], field, writing=writing):
                return reason
        elif writing or not (field.nullable or field.name in absent):
            return f"the schema has no field {field.name!r}"
    if writing:
        columns = {field.name for field in fields}
        for name, inner in avro.fields:
            if name not in columns and not inner.nullable:
                return f"the schema's field {name!r} has no column and must not be null"
    return None


TEXTS_BY_NAME: Final = pa.map_(pa.string(), pa.string())
"""The column that any record of texts, numbers and BOOLEANs is read into."""


def _is_text(avro: AvroType) -> bool:
    return avro.kind in (*_INTEGERS, *_FLOATS, "string", "enum", "boolean")


def _can_read(avro: AvroType, type_: pa.DataType) -> bool:
    if avro.logical == "decimal":
        return bool(pa.types.is_decimal128(type_))
    if avro.kind in _INTEGERS and pa.types.is_integer(type_):
        return True
    if type_ in (pa.string(), pa.binary()):
        return avro.kind in _TEXTS
    if type_ == pa.float64():
        return avro.kind in (*_FLOATS, *_INTEGERS)
    if type_ == pa.float32():
        return avro.kind in ("float", *_INTEGERS)
    if type_ in _TIMES:
        return ticks(avro) is not None or is_zoned(avro)
    if type_ == pa.date32():
        return avro.kind == "int" and avro.logical in ("date", None)
    if pa.types.is_time(type_):
        return ticks_of_day(avro) is not None
    return bool(avro.kind == "boolean" and type_ == pa.bool_())


def _can_write(avro: AvroType, type_: pa.DataType) -> bool:
    if not _can_read(avro, type_):
        return False
    if avro.logical == "decimal":
        return 0 <= avro.scale <= avro.precision
    if pa.types.is_integer(type_):
        return avro.kind == "long" or type_ != pa.int64()
    if type_ in _TIMES:
        return not is_zoned(avro)
    if pa.types.is_time(type_):
        return types.NANOS[type_] * (ticks_of_day(avro) or 0) >= 10**9
    if type_ == pa.float64():
        return avro.kind == "double"
    if pa.types.is_floating(type_):
        return avro.kind in _FLOATS
    if type_ == pa.string():
        return avro.kind in ("string", "enum")
    if type_ == pa.binary():
        return avro.kind in ("bytes", "fixed")
    return True


class UnfitError(ValueError):
    """A value does not fit its column or its schema; the text says which in a few words."""


def to_scale(number: int, digits: int) -> int:
    """An unscaled number with so many more digits after the point; fewer only where nothing is lost."""
    factor: int = 10 ** abs(digits)
    if digits >= 0:
        return number * factor
    shortened, rest = divmod(number, factor)
    if rest:
        raise UnfitError("a decimal has more digits after the point than its column")
    return shortened


def resolved(written: AvroType, own: AvroType) -> AvroType:
    """The type of messages as they were written, its fields by a table's own names, and with its defaults.

    Raises:
        SchemaError: the default of a field that messages lack is no value of it.

    >>> own = '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "int", "aliases": ["b"]}]}'
    >>> resolved(AvroType("record", fields=(("b", AvroType("long")),)), parse(own)).fields[0][0]
    'a'
    """
    if written.inner is not None and own.inner is not None:
        return replace(written, inner=resolved(written.inner, own.inner))
    if written.kind != "record" or own.kind != "record":
        return written
    types, fields = dict(own.fields), dict(written.fields)
    for alias, name in own.aliases:
        if alias in fields and alias not in types and name not in fields:
            fields = {name if one == alias else one: inner for one, inner in fields.items()}
    # what is absent and has no default is NULL anyway
    absent = tuple(
        (name, types[name], _default(name, value, types[name]))
        for name, value in own.defaults
        if value is not None and name in types and name not in fields
    )
    # what no column has stays as it is: a short schema may name types in types a billion times
    of_own = ((name, resolved(one, types[name]) if name in types else one) for name, one in fields.items())
    return replace(written, fields=tuple(of_own), absent=absent)


_NO_VALUE: Final = (TypeError, ValueError, KeyError, OverflowError, struct.error)
"""What making bytes of JSON that is no value of a type ends in."""


def _default(name: str, value: Any, avro: AvroType) -> bytes:
    try:
        return datum(value, avro)
    except _NO_VALUE:
        raise SchemaError(f"the default of field {name!r} must be {avro} in JSON, got {value!r}") from None


_PACKED: Final = {"float": "<f", "double": "<d"}


def datum(value: Any, avro: AvroType) -> bytes:
    r"""The bytes of a default, which is JSON: texts for bytes, whose characters are bytes.

    >>> datum([1, -1], AvroType("array", inner=AvroType("long"))), datum("ÿ", AvroType("bytes"))
    (b'\x04\x02\x01\x00', b'\x02\xff')
    """
    if avro.nullable:
        is_first = (value is None) == avro.null_is_first
        return _number(not is_first) + (b"" if value is None else datum(value, avro.without_null))
    match avro.kind, value:
        case "union", _:
            return _of_union(value, avro.branches)
        case "boolean", bool():
            return bytes([value])
        case (("int" | "long"), int()) if not isinstance(value, bool):
            return _number(value)
        case (("float" | "double"), int() | float()):
            return struct.pack(_PACKED[avro.kind], value)
        case "string", str():
            return _with_length(value.encode())
        case "bytes", str():
            return _with_length(value.encode("latin-1"))
        case "fixed", str() if len(value) == avro.size:
            return value.encode("latin-1")
        case "enum", str():
            return _number(avro.symbols.index(value))
        case "array", list() if avro.inner is not None:
            return _block([datum(one, avro.inner) for one in value])
        case "map", dict() if avro.inner is not None:
            pairs = value.items()
            return _block([_with_length(key.encode()) + datum(one, avro.inner) for key, one in pairs])
        case "record", dict():
            members = {**dict(avro.defaults), **value}
            return b"".join(datum(members[name], inner) for name, inner in avro.fields)
    raise TypeError(value)


def _of_union(value: Any, branches: Sequence[AvroType | None]) -> bytes:
    """The bytes of a value of the first type that it is of."""
    for place, branch in enumerate(branches):
        if branch is None and value is None:
            return _number(place)
        if branch is not None:
            with suppress(*_NO_VALUE):
                return _number(place) + datum(value, branch)
    raise TypeError(value)


def _number(value: int) -> bytes:
    words = np.array([value], np.int64)
    found: bytes = varint_bytes(b"", ((words << 1) ^ (words >> 63)).view(np.uint64))[0].as_py()
    return found


def _with_length(value: bytes) -> bytes:
    return _number(len(value)) + value


def _block(items: list[bytes]) -> bytes:
    return b"".join([_number(len(items)), *items, b"\x00"]) if items else b"\x00"
