"""Descriptors of Protobuf messages: read, derived from columns, and which fit which columns.

Descriptors are data: no generated code is needed, and none is run. They may come from a registry and are not
trusted; the library checks them. This file and the codec beside it are the door to it.

Which types of fields and of columns go together is Flink's table, and more where nothing is lost: whole
numbers of other widths, enums as their names or numbers, ``google.protobuf.Timestamp`` as times, the wrappers
as the values that they hold; each message may also be a STRUCT of its fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

import pyarrow as pa

from upsert import types
from upsert.errors import SchemaError, optional_package
from upsert.formats.avro_schema import NAME
from upsert.formats.protobuf.wire import FIXED32, FIXED64, LENGTH, VARINT
from upsert.formats.text_values import integer_range


class Kind(IntEnum):
    """Types of fields, by the numbers that descriptors have for them."""

    DOUBLE = 1
    FLOAT = 2
    INT64 = 3
    UINT64 = 4
    INT32 = 5
    FIXED64 = 6
    FIXED32 = 7
    BOOL = 8
    STRING = 9
    GROUP = 10
    MESSAGE = 11
    BYTES = 12
    UINT32 = 13
    ENUM = 14
    SFIXED32 = 15
    SFIXED64 = 16
    SINT32 = 17
    SINT64 = 18


SIGNED_32: Final = (Kind.INT32, Kind.SINT32, Kind.SFIXED32)
SIGNED_64: Final = (Kind.INT64, Kind.SINT64, Kind.SFIXED64)
UNSIGNED_32: Final = (Kind.UINT32, Kind.FIXED32)
UNSIGNED_64: Final = (Kind.UINT64, Kind.FIXED64)
ZIGZAG: Final = (Kind.SINT32, Kind.SINT64)
_FIXED_4: Final = (Kind.FIXED32, Kind.SFIXED32, Kind.FLOAT)
_FIXED_8: Final = (Kind.FIXED64, Kind.SFIXED64, Kind.DOUBLE)
_INTEGERS: Final = (*SIGNED_32, *SIGNED_64, *UNSIGNED_32, *UNSIGNED_64)

_TIMESTAMP: Final = "google.protobuf.Timestamp"
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_OF_GOOGLE: Final = frozenset({
    *("any", "api", "descriptor", "duration", "empty", "field_mask", "source_context", "struct"),
    *("timestamp", "type", "wrappers"),
})  # fmt: skip
"""The files that every implementation of Protobuf has, and so registries do."""
_TIMES: Final = (types.TIMESTAMP, types.TIMESTAMP_NTZ)
SECONDS_AND_NANOS: Final = pa.struct(
    [pa.field("seconds", pa.int64(), nullable=False), pa.field("nanos", pa.int32(), nullable=False)]
)
"""What a Timestamp is made of."""
_UNSIGNED: Final = 20
"""Digits of the largest uint64."""


def wire_of(kind: int) -> int:
    """The wire type of a single value of a field's type."""
    if kind in _FIXED_4:
        return FIXED32
    if kind in _FIXED_8:
        return FIXED64
    return LENGTH if kind in (Kind.STRING, Kind.BYTES, Kind.MESSAGE) else VARINT


def library() -> Any:
    """The package ``google.protobuf`` with the modules of it that are used here."""
    with optional_package("protobuf", "kafka", "a protobuf format"):
        import google.protobuf.descriptor_pb2
        import google.protobuf.descriptor_pool
        import google.protobuf.message
        import google.protobuf.message_factory
    return google.protobuf


def files_in(content: bytes) -> tuple[bytes, ...]:
    """The files of a FileDescriptorSet, each one serialized; `SchemaError` for what is none."""
    package = library()
    try:
        found = package.descriptor_pb2.FileDescriptorSet.FromString(content)
    except package.message.DecodeError:
        found = None
    if found is None or not found.file or not all(file.name for file in found.file):
        raise SchemaError(
            "must hold a FileDescriptorSet, which protoc --include_imports --descriptor_set_out=… writes, "
            "and does not"
        )
    return tuple(file.SerializeToString() for file in found.file)


@lru_cache(maxsize=1_000)
def pool_of(files: tuple[bytes, ...]) -> Any:
    """A pool of these files, in any order; those of Google's own that they import may be left out."""
    package = library()
    pool = package.descriptor_pool.DescriptorPool()
    known: set[str] = set()

    def add(proto: Any) -> None:
        if proto.name in known:
            return
        known.add(proto.name)
        for name in proto.dependency:
            if name in own:
                add(own[name])
            elif (google := _of_google(name)) is not None:
                add(google)
        pool.Add(proto)

    try:
        protos = [package.descriptor_pb2.FileDescriptorProto.FromString(file) for file in files]
        own = {proto.name: proto for proto in protos}
        for proto in protos:
            add(proto)
        for name in own:
            pool.FindFileByName(name)
    except (TypeError, KeyError, RecursionError, package.message.DecodeError) as cause:  # the library's
        raise SchemaError(f"descriptors cannot be read: {' '.join(str(cause).split())[:200]}") from None
    return pool


def is_of_google(name: str) -> bool:
    """Whether a file of this name comes with every implementation of Protobuf.

    >>> is_of_google("google/protobuf/timestamp.proto"), is_of_google("google/type/date.proto")
    (True, False)
    """
    return name.removeprefix("google/protobuf/").removesuffix(".proto") in _OF_GOOGLE


def _of_google(name: str) -> Any | None:
    own = name.removeprefix("google/protobuf/").removesuffix(".proto")
    if own not in _OF_GOOGLE:
        return None
    proto = library().descriptor_pb2.FileDescriptorProto()
    import_module(f"google.protobuf.{own}_pb2").DESCRIPTOR.CopyToProto(proto)
    return proto


def message_named(files: tuple[bytes, ...], name: str) -> Any:
    """The descriptor of the message of this full name; `SchemaError` if there is none."""
    pool = pool_of(files)
    try:
        return pool.FindMessageTypeByName(name.removeprefix("."))
    except KeyError:
        names = [".".join(path) for path in _names(files)]
        shown = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
        raise SchemaError(f"there is no message {name!r}; messages are {shown}") from None


def _names(files: Iterable[bytes]) -> list[tuple[str, ...]]:
    protos = map(library().descriptor_pb2.FileDescriptorProto.FromString, files)
    return [
        (*filter(None, (proto.package,)), message.name) for proto in protos for message in proto.message_type
    ]


def renamed(content: bytes, name: str) -> bytes:
    """A file under another name; under its own where that is empty."""
    package = library()
    try:
        file = package.descriptor_pb2.FileDescriptorProto.FromString(content)
    except package.message.DecodeError:
        raise SchemaError("the registry's descriptor of the schema cannot be read") from None
    file.name = name or file.name or "schema.proto"
    found: bytes = file.SerializeToString(deterministic=True)
    return found


def file_named(files: tuple[bytes, ...], name: str) -> tuple[bytes, tuple[str, ...]]:
    """A file, and the names of those that it imports and that are not Google's own."""
    for content in files:
        file = library().descriptor_pb2.FileDescriptorProto.FromString(content)
        if file.name == name:
            return content, tuple(one for one in file.dependency if not is_of_google(one))
    raise SchemaError(f"the descriptors must hold file {name!r} too; write them with --include_imports")


def indexes_of(message: Any) -> tuple[int, ...]:
    """Where a message is in its file: its number there, or that of the one around it and its own there."""
    path: list[int] = []
    while (outer := message.containing_type) is not None:
        path.insert(0, [one.full_name for one in outer.nested_types].index(message.full_name))
        message = outer
    names = [*message.file.message_types_by_name]
    return names.index(message.name), *path


def message_at(files: tuple[bytes, ...], indexes: Sequence[int]) -> Any:
    """The message at these places of the last file, as `indexes_of` has them."""
    proto = library().descriptor_pb2.FileDescriptorProto.FromString(files[-1])
    path, inner = ([proto.package] if proto.package else []), proto.message_type
    for index in indexes:
        if not 0 <= index < len(inner):
            raise SchemaError(f"the schema has no message at {list(indexes)}")
        path.append(inner[index].name)
        inner = inner[index].nested_type
    return message_named(files, ".".join(path))


def is_map(field: Any) -> bool:
    """Whether it is a map, which is a repeated message with key and value to its descriptor."""
    return bool(
        field.type == Kind.MESSAGE and field.is_repeated and field.message_type.GetOptions().map_entry
    )


def is_time(field: Any, type_: pa.DataType) -> bool:
    """Whether the field's messages are times, and the column has them as such."""
    return field.type == Kind.MESSAGE and field.message_type.full_name == _TIMESTAMP and type_ in _TIMES


def is_wrapped(field: Any, type_: pa.DataType) -> bool:
    """Whether the field's messages wrap a value, and the column has the value alone."""
    return (
        field.type == Kind.MESSAGE
        and field.message_type.full_name in _WRAPPERS
        and not pa.types.is_struct(type_)
    )


def type_name(field: Any) -> str:
    """The field's type as a .proto file has it."""
    if is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return f"map<{type_name(key)}, {type_name(value)}>"
    if field.type == Kind.MESSAGE:
        own = field.message_type.full_name
    elif field.type == Kind.ENUM:
        own = field.enum_type.full_name
    else:
        own = Kind(field.type).name.lower()
    return f"repeated {own}" if field.is_repeated else own


def mismatch(
    message: Any, fields: Sequence[pa.Field], *, writing: bool, may_lack: bool = False
) -> str | None:
    """Why messages are no rows of these columns, or the other way round; None if they are.

    ``may_lack``: a nullable column that messages do not have is NULL, for those of another schema.
    """
    known = message.fields_by_name
    for field in fields:
        if field.name in known:
            if reason := _field_mismatch(known[field.name], field, writing, may_lack):
                return reason
        elif writing or not may_lack or not field.nullable:
            return f"message {message.full_name} has no field {field.name!r}"
    if writing:
        columns = {field.name for field in fields}
        for name, one in known.items():
            if one.is_required and name not in columns:
                return f"field {name!r} of {message.full_name} is required, and has no column"
    return None


def _field_mismatch(found: Any, field: pa.Field, writing: bool, may_lack: bool) -> str | None:
    type_, inner = field.type, None
    if is_map(found):
        if pa.types.is_map(type_):
            key, value = (found.message_type.fields_by_name[name] for name in ("key", "value"))
            return _value_mismatch(key, type_.key_field, writing, may_lack) or _value_mismatch(
                value, type_.item_field, writing, may_lack
            )
    elif found.is_repeated:
        if pa.types.is_list(type_):
            inner = type_.value_field
            return _value_mismatch(found, inner, writing, may_lack)
    else:
        return _value_mismatch(found, field, writing, may_lack)
    return f"{field.name!r} is {types.sql_name(type_)}, the message says {type_name(found)}"


def _value_mismatch(found: Any, field: pa.Field, writing: bool, may_lack: bool) -> str | None:
    type_ = field.type
    if is_time(found, type_):
        return None
    if is_wrapped(found, type_):
        return _value_mismatch(found.message_type.fields_by_name["value"], field, writing, may_lack)
    if found.type == Kind.MESSAGE and pa.types.is_struct(type_):
        return mismatch(found.message_type, list(type_), writing=writing, may_lack=may_lack)
    if _fits(found.type, type_, writing):
        if pa.types.is_integer(type_) and found.has_default_value and not found.is_repeated:
            # other numbers that do not fit are seen where they occur
            low, high = integer_range(type_)
            if found.type != Kind.ENUM and not low <= found.default_value <= high:
                name = types.sql_name(type_)
                return f"{field.name!r} is {name}, the message's default is {found.default_value}"
        return None
    return f"{field.name!r} is {types.sql_name(type_)}, the message says {type_name(found)}"


def _fits(kind: int, type_: pa.DataType, writing: bool) -> bool:
    """Whether a scalar field and a column go together; whether numbers are in range is seen later."""
    if kind == Kind.ENUM:
        return bool(type_ == pa.string() or pa.types.is_integer(type_))
    if kind in UNSIGNED_64 and pa.types.is_decimal128(type_):
        return bool(type_.scale == 0 and type_.precision >= _UNSIGNED)
    if kind in _INTEGERS and pa.types.is_integer(type_):
        return not (writing and kind in SIGNED_32 and type_ == pa.int64())
    if kind in (Kind.STRING, Kind.BYTES) and type_ in (pa.string(), pa.binary()):
        return not writing or (kind == Kind.STRING) == (type_ == pa.string())
    if kind == Kind.FLOAT:
        return type_ == pa.float32() or (type_ == pa.float64() and not writing)
    if kind == Kind.DOUBLE:
        return type_ == pa.float64() or (type_ == pa.float32() and writing)
    return bool(kind == Kind.BOOL and type_ == pa.bool_())


_SCALARS: Final = {
    pa.bool_(): Kind.BOOL,
    pa.int8(): Kind.INT32,
    pa.int16(): Kind.INT32,
    pa.int32(): Kind.INT32,
    pa.int64(): Kind.INT64,
    pa.float32(): Kind.FLOAT,
    pa.float64(): Kind.DOUBLE,
    pa.string(): Kind.STRING,
    pa.binary(): Kind.BYTES,
    pa.decimal128(_UNSIGNED, 0): Kind.UINT64,
}
_KEYS: Final = (Kind.BOOL, Kind.INT32, Kind.INT64, Kind.STRING)
DERIVED: Final = "Row"
"""The name of the message that is derived from columns."""


def derived(fields: pa.Schema) -> tuple[bytes, ...]:
    """One file, in ``proto3``, with a message that has a field for each column, numbered from 1 on.

    A nullable column of a scalar type is ``optional``, a time a Timestamp, a STRUCT a message within.
    """
    package = library()
    file = package.descriptor_pb2.FileDescriptorProto(name="row.proto", syntax="proto3")
    if any(one in _TIMES for field in fields for one in types.within(field.type)):
        file.dependency.append("google/protobuf/timestamp.proto")
    message = file.message_type.add(name=DERIVED)
    _derive(message, f".{DERIVED}", list(fields))
    return (file.SerializeToString(deterministic=True),)


def _derive(message: Any, path: str, fields: Sequence[pa.Field]) -> None:
    for number, field in enumerate(fields, start=1):
        if not NAME.fullmatch(field.name):
            raise SchemaError(
                f"protobuf: the name of a column must be letters, digits and _, the first no digit, got "
                f"{field.name!r}; rename the column"
            )
        one = message.field.add(name=field.name, number=number, label=1)
        type_ = field.type
        if pa.types.is_map(type_):
            one.label, one.type = 3, Kind.MESSAGE
            name = f"{_camel(field.name)}Entry"
            entry = message.nested_type.add(name=name)
            one.type_name = f"{path}.{name}"
            entry.options.map_entry = True
            for place, part in enumerate((type_.key_field, type_.item_field), start=1):
                inner = entry.field.add(name=("key", "value")[place - 1], number=place, label=1)
                _type(message, path, inner, part, field)
            if entry.field[0].type not in _KEYS:
                raise _no_type(field)
        elif pa.types.is_list(type_):
            one.label = 3
            _type(message, path, one, type_.value_field, field)
        else:
            _type(message, path, one, field, field)
            if field.nullable and one.type != Kind.MESSAGE:
                one.proto3_optional = True
                one.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field.name}")


def _type(message: Any, path: str, one: Any, field: pa.Field, column: pa.Field) -> None:
    """Give a field the type of a column, or of what is in one."""
    if field.type in _TIMES:
        one.type, one.type_name = Kind.MESSAGE, f".{_TIMESTAMP}"
    elif pa.types.is_struct(field.type) and field.type != types.VARIANT:
        name = f"{_camel(column.name)}Row"
        one.type, one.type_name = Kind.MESSAGE, f"{path}.{name}"
        _derive(message.nested_type.add(name=name), one.type_name, list(field.type))
    elif field.type in _SCALARS:
        one.type = _SCALARS[field.type]
    else:
        raise _no_type(column)


def _no_type(column: pa.Field) -> SchemaError:
    return SchemaError(
        f"protobuf: column {column.name!r} must be of a type that Protobuf has, got "
        f"{types.sql_name(column.type)}; there are no DATE and DECIMAL, arrays and maps are not in each "
        "other but in a STRUCT, and keys of maps are STRING, BOOLEAN or whole numbers"
    )


def _camel(name: str) -> str:
    """A name as the library wants it of the message of a map's entries.

    >>> _camel("word_count")
    'WordCount'
    """
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))
