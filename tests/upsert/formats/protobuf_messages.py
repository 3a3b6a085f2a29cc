"""Descriptors for tests, and random messages of them, written by the library itself."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf import timestamp_pb2 as _timestamp  # noqa: F401  is in the default pool then
from google.protobuf import wrappers_pb2 as _wrappers  # noqa: F401

from upsert import types

_TYPES = {
    name.removeprefix("TYPE_").lower(): number
    for name, number in descriptor_pb2.FieldDescriptorProto.Type.items()
}


def file_of(text: str, package: str = "shop", syntax: str = "proto3", name: str = "shop.proto") -> Any:
    """A file of messages, one a block of lines: ``Name`` and then ``[label] type name = number`` each.

    Labels are ``optional``, ``required``, ``repeated``, ``map <key>`` and ``in <oneof>``; enums are
    ``enum Name A=0 B=1``.
    """
    file = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax=syntax)
    for well_known in ("timestamp", "wrappers"):
        if "google.protobuf" in text:
            file.dependency.append(f"google/protobuf/{well_known}.proto")
    message: Any = None
    for line in filter(str.strip, text.splitlines()):
        words = line.replace("=", " ").split()
        if words[0] == "enum":
            enum = file.enum_type.add(name=words[1])
            for label, number in zip(words[2::2], words[3::2], strict=True):
                enum.value.add(name=label, number=int(number))
        elif len(words) == 1:
            message = file.message_type.add(name=words[0])
        else:
            _add(file, message, words)
    for message in file.message_type:  # the oneofs of `optional` come last
        for field in message.field:
            if field.proto3_optional:
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field.name}")
    return file


def _add(file: Any, message: Any, words: list[str]) -> None:
    number, name, type_ = int(words[-1]), words[-2], words[-3]
    labels = words[:-3]
    field = message.field.add(name=name, number=number, label=1)
    if labels[:1] == ["map"]:
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        _set_type(file, entry.field.add(name="key", number=1, label=1), labels[1])
        _set_type(file, entry.field.add(name="value", number=2, label=1), type_)
        field.label, field.type = 3, _TYPES["message"]
        field.type_name = f".{file.package}.{message.name}.{entry.name}"
        return
    _set_type(file, field, type_)
    if labels == ["repeated"]:
        field.label = 3
    elif labels == ["unpacked"]:
        field.label = 3
        field.options.packed = False
    elif labels == ["required"]:
        field.label = 2
    elif labels == ["optional"]:
        field.proto3_optional = file.syntax == "proto3"
    elif labels[:1] == ["in"]:
        names = [oneof.name for oneof in message.oneof_decl]
        if labels[1] not in names:
            message.oneof_decl.add(name=labels[1])
            names.append(labels[1])
        field.oneof_index = names.index(labels[1])


def _set_type(file: Any, field: Any, type_: str) -> None:
    if type_ in _TYPES:
        field.type = _TYPES[type_]
        return
    is_enum = type_ in [enum.name for enum in file.enum_type]
    field.type = _TYPES["enum" if is_enum else "message"]
    field.type_name = f".{type_}" if "." in type_ else f".{file.package}.{type_}"


def descriptor_options(folder: Path, file: Any, name: str) -> dict[str, str]:
    """The options that name a message of a file, of which the descriptors are written to the folder."""
    path = folder / "messages.desc"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    return {"descriptor-file": str(path), "message-name": f"{file.package}.{name}"}


def message_class(file: Any, name: str) -> Any:
    """The library's class of a message of a file."""
    pool = descriptor_pool.DescriptorPool()
    for well_known in file.dependency:
        found = descriptor_pb2.FileDescriptorProto()
        descriptor_pool.Default().FindFileByName(well_known).CopyToProto(found)
        pool.Add(found)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{name}"))


def fill(message: Any, rng: random.Random, depth: int = 0) -> Any:
    """The message with some of its fields set at random; itself."""
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.35:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            for _ in range(rng.randrange(3)):
                entry = _scalar(key, rng)
                if value.message_type is not None:
                    if depth < 2:
                        fill(getattr(message, field.name)[entry], rng, depth + 1)
                else:
                    getattr(message, field.name)[entry] = _scalar(value, rng)
        elif field.is_repeated and field.message_type is not None:
            for _ in range(rng.randrange(3) if depth < 2 else 0):
                fill(getattr(message, field.name).add(), rng, depth + 1)
        elif field.is_repeated:
            getattr(message, field.name).extend(_scalar(field, rng) for _ in range(rng.randrange(4)))
        elif field.message_type is not None:
            if depth < 2:
                getattr(message, field.name).SetInParent()
                fill(getattr(message, field.name), rng, depth + 1)
        else:
            setattr(message, field.name, _scalar(field, rng))
    if message.DESCRIPTOR.full_name == "google.protobuf.Timestamp":
        message.seconds, message.nanos = rng.randrange(-(10**10), 10**11), rng.randrange(10**6) * 1000
    return message


def _scalar(field: Any, rng: random.Random) -> Any:
    if field.enum_type is not None:
        known = [value.number for value in field.enum_type.values]
        return rng.choice(known if field.enum_type.is_closed else [*known, 77, -1])
    name = next(name for name, number in _TYPES.items() if number == field.type)
    if name == "bool":
        return rng.random() < 0.5
    if name == "string":
        return rng.choice(["", "a", "größer", "x" * 200, "\x00"])
    if name == "bytes":
        return rng.choice([b"", b"\xff\x00", b"abc" * 50])
    if name in ("float", "double"):
        return rng.choice([0.0, -0.0, 1.5, -2.25e10, float("inf")])
    bits = 32 if name.endswith("32") else 64
    low, high = (
        (0, 2**bits - 1)
        if "u" in name or name.startswith("fixed")
        else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    )
    return rng.choice([0, 1, low, high, 300, rng.randint(low, high)])


def as_row(message: Any, fields: Any, defaults: bool = False) -> dict[str, Any]:
    """What a message holds of columns, by the library's attributes; ValueError for NULL that may not be."""
    row = {field.name: _value_of(message, field, defaults) for field in fields}
    if any(row[field.name] is None and not field.nullable for field in fields):
        raise ValueError("NULL in a column that is NOT NULL")
    return row


def _value_of(message: Any, field: pa.Field, defaults: bool, always: bool = False) -> Any:
    own = message.DESCRIPTOR.fields_by_name[field.name]
    value = getattr(message, field.name)
    if pa.types.is_map(field.type):
        inner = own.message_type.fields_by_name["value"]
        pairs = [(key, _converted(value[key], inner, field.type.item_type, defaults)) for key in value]
        return sorted(pairs) if pairs or defaults or always or not field.nullable else None
    if pa.types.is_list(field.type):
        found = [_converted(item, own, field.type.value_type, defaults) for item in value]
        return found if found or defaults or always or not field.nullable else None
    if own.has_presence and not defaults and not always and not message.HasField(field.name):
        return None
    return _converted(value, own, field.type, defaults)


def _converted(value: Any, own: Any, type_: pa.DataType, defaults: bool) -> Any:
    if own.enum_type is not None:
        found = own.enum_type.values_by_number.get(value)
        return value if type_ != pa.string() else str(value) if found is None else found.name
    if type_ in (types.TIMESTAMP, types.TIMESTAMP_NTZ):
        if not 0 <= value.nanos < 10**9:
            raise ValueError("no time")
        return pa.scalar(value.seconds * 1_000_000 + value.nanos // 1000, pa.int64()).cast(type_).as_py()
    if pa.types.is_struct(type_):
        return as_row(value, type_, defaults)
    if own.message_type is not None:
        return value.value
    return value
