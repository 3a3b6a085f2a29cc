"""Fields of structs inside of columns: told apart by ids, found under other names and types, changed (pure).

A table may rename, drop and widen such fields. Its older files keep what they have, and each read gives the
fields that there are now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from upsert import types
from upsert.errors import SchemaError

Path = tuple[str, ...]
"""Where a part of a column is: fields of structs, ``element`` of an array, ``value`` of a map."""

FieldKey = tuple[str, int]
"""What tells a field from others of its struct, see ``Form``."""

ELEMENT: Final = "element"
VALUE: Final = "value"
KEY: Final = "key"


def has_fields(type_: pa.DataType) -> bool:
    """Whether values of a type have fields that can be named; a VARIANT is one value.

    >>> has_fields(pa.struct([("a", pa.int32())])), has_fields(types.VARIANT), has_fields(pa.int32())
    (True, False, False)
    """
    return bool(pa.types.is_struct(type_) and type_ != types.VARIANT)


@dataclass(frozen=True)
class Form:
    """A type, and what tells the fields in it apart, whatever their names.

    Most fields have no id of their own: what was there when its column was made is known by the name that it
    had then. So files of tables whose fields never changed say nothing of ids.

    Attributes:
        type: of a column, or of a part of it.
        ids: by the path from the column, of fields that need one: the name that a field was added under, and
            a number that its table never uses again, 0 if it was there when its column was made.
        path: from the column to this part.
    """

    type: pa.DataType
    ids: Mapping[Path, FieldKey] = field(default_factory=dict)
    path: Path = ()

    def part(self, name: str, type_: pa.DataType) -> Form:
        """A part of it."""
        return Form(type_, self.ids, (*self.path, name))

    @property
    def id(self) -> FieldKey:
        """What tells a field from the others of its struct."""
        return self.ids.get(self.path, (self.path[-1], 0))

    @property
    def parts(self) -> list[Form]:
        """Element of an array; key and value of a map; fields of a struct."""
        type_ = self.type
        if pa.types.is_list(type_):
            return [self.part(ELEMENT, type_.value_type)]
        if pa.types.is_map(type_):
            return [self.part(KEY, type_.key_type), self.part(VALUE, type_.item_type)]
        if has_fields(type_):
            return [self.part(field.name, field.type) for field in type_]
        return []

    @property
    def is_struct(self) -> bool:
        """Whether it has fields, which are known by ids."""
        return has_fields(self.type)


def is_same_form(old: Form, new: Form) -> bool:
    """Whether values of one form are values of the other one as they are."""
    if old.type != new.type:
        return False
    if old.ids == new.ids:
        return True
    pairs = zip(old.parts, new.parts, strict=True)
    return all((not old.is_struct or a.id == b.id) and is_same_form(a, b) for a, b in pairs)


def follows(old: Form, new: Form) -> bool:
    """Whether values of one form can be read in the other: wider types, and fields that came and went.

    >>> old, new = pa.struct([("a", pa.int32())]), pa.struct([("b", pa.int64())])
    >>> follows(Form(old), Form(new, {("b",): ("a", 0)}))
    True
    """
    if not old.parts or not new.parts:
        return bool(old.type == new.type or types.widens(old.type, new.type))
    if type(old.type) is not type(new.type):
        return False
    if not old.is_struct:
        return all(follows(a, b) for a, b in zip(old.parts, new.parts, strict=True))
    there = {part.id: part for part in old.parts}
    fields = zip(new.parts, new.type, strict=True)
    return all(
        follows(there[part.id], part) if part.id in there else field.nullable for part, field in fields
    )


Cast = Callable[[pa.Array, pa.DataType], pa.Array]
"""Makes values of one scalar type of another one."""


class MissingFieldError(LookupError):
    """A field that is wanted was dropped; the argument is its path."""


def reshaped(
    values: pa.Array, old: Form, new: Form, cast: Cast = pa.Array.cast, *, may_lack: bool = True
) -> pa.Array:
    """Values of one form as those of another: fields by their ids, NULL where there is none.

    Raises:
        MissingFieldError: a field has no values, and that is not allowed.
    """
    if is_same_form(old, new):
        return values
    if not old.parts or type(old.type) is not type(new.type):
        return cast(values, new.type)
    if old.is_struct:
        there = {part.id: number for number, part in enumerate(old.parts)}
        children: list[pa.Array] = []
        for part in new.parts:
            number = there.get(part.id)
            if number is None and not may_lack:
                raise MissingFieldError(part.path)
            if number is None:
                children.append(pa.nulls(len(values), part.type))
            else:
                own = values.field(number)
                children.append(reshaped(own, old.parts[number], part, cast, may_lack=may_lack))
        mask = values.is_null() if values.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(new.type), mask=mask)
    if not _is_whole(values):
        values = values.take(pa.array(np.arange(len(values))))  # values outside of a slice may not fit
    inner = [values.keys, values.items] if pa.types.is_map(old.type) else [values.values]
    pairs = zip(inner, old.parts, new.parts, strict=True)
    made = [reshaped(part, a, b, cast, may_lack=may_lack) for part, a, b in pairs]
    if pa.types.is_map(new.type):
        entries = [new.type.key_field, new.type.item_field]
        made = [pa.StructArray.from_arrays(made, fields=entries)]
    validity, offsets = values.buffers()[:2]
    return pa.Array.from_buffers(new.type, len(values), [validity, offsets], -1, 0, children=made)


def _is_whole(values: pa.Array) -> bool:
    """Whether the parts of lists or maps are all that lies in their memory."""
    inner = values.keys if pa.types.is_map(values.type) else values.values
    return values.offset == 0 and len(values) > 0 and values.offsets[-1].as_py() == len(inner)


def reshaped_column(
    values: pa.ChunkedArray, old: Form, new: Form, cast: Cast = pa.Array.cast, *, may_lack: bool = True
) -> pa.ChunkedArray:
    """``reshaped`` of a column."""
    chunks = [reshaped(chunk, old, new, cast, may_lack=may_lack) for chunk in values.chunks]
    return pa.chunked_array(chunks, new.type)


def own_path(type_: pa.DataType, path: Sequence[str]) -> Path:
    """The path with the names that fields of structs have, where case does not count; see ``any_case``.

    >>> own_path(pa.list_(pa.struct([("a", pa.int32())])), ["ELEMENT", "A", "b"])
    ('element', 'a', 'b')
    """
    if not path:
        return ()
    parts = {type_.field(at).name: type_.field(at).type for at in range(type_.num_fields)}
    if pa.types.is_list(type_):
        parts = {ELEMENT: type_.value_type}
    elif pa.types.is_map(type_):
        parts = {VALUE: type_.item_type}
    name = types.any_case(parts)(path[0])
    return (name, *(own_path(parts[name], path[1:]) if name in parts else path[1:]))


def changed_within(
    type_: pa.DataType, path: Sequence[str], change: Callable[[pa.DataType], pa.DataType], of: str
) -> pa.DataType:
    """The type in which a part is another one.

    Raises:
        SchemaError: there is no such part.
    """
    if not path:
        return change(type_)
    first, rest, inner = path[0], path[1:], f"{of}: {path[0]!r}"
    if pa.types.is_list(type_) and first == ELEMENT:
        own = type_.value_field
        return pa.list_(own.with_type(changed_within(own.type, rest, change, inner)))
    if pa.types.is_map(type_) and first == VALUE:
        own = type_.item_field
        return pa.map_(type_.key_type, own.with_type(changed_within(own.type, rest, change, inner)))
    if has_fields(type_) and (at := type_.get_field_index(first)) >= 0:
        own = type_.field(at).with_type(changed_within(type_.field(at).type, rest, change, inner))
        return pa.struct([own if number == at else one for number, one in enumerate(type_)])
    raise SchemaError(
        f"{of}: {types.sql_name(type_)} has no part {first!r}; name a field of a STRUCT, element of an ARRAY "
        "or value of a MAP"
    )


def with_field(type_: pa.DataType, path: Sequence[str], field: pa.Field, of: str) -> pa.DataType:
    """The type with one more field, last in the struct that a path leads to, as Spark writes it.

    Raises:
        SchemaError: the path leads to no struct, or the struct has such a field.

    >>> points = pa.list_(pa.struct([("x", pa.int32())]))
    >>> types.sql_name(with_field(points, ["element"], pa.field("y", pa.int32()), "column 'points'"))
    'ARRAY<STRUCT<x: INT,y: INT>>'
    """
    of_struct = _of_struct(of, path)

    def grown(type_: pa.DataType) -> pa.DataType:
        _check_struct(type_, of_struct)
        _check_is_free(type_, field.name, [one.name for one in type_], of_struct)
        return pa.struct([*type_, field])

    return changed_within(type_, path, grown, of)


def without_field(type_: pa.DataType, path: Sequence[str], of: str) -> pa.DataType:
    """The type without the field at the end of a path; a struct keeps at least one.

    >>> at = pa.struct([("lat", pa.int32()), ("lon", pa.int32())])
    >>> types.sql_name(without_field(at, ["lon"], "column 'at'"))
    'STRUCT<lat: INT>'
    """
    of_struct, name = _of_struct(of, path[:-1]), path[-1]

    def less(type_: pa.DataType) -> pa.DataType:
        _check_has(type_, name, of_struct)
        if type_.num_fields == 1:
            raise SchemaError(f"{of_struct}: {name!r} is the only field; drop the column")
        return pa.struct([field for field in type_ if field.name != name])

    return changed_within(type_, path[:-1], less, of)


def with_name(type_: pa.DataType, path: Sequence[str], new: str, of: str) -> pa.DataType:
    """The type in which the field at the end of a path has another name."""
    of_struct, old = _of_struct(of, path[:-1]), path[-1]

    def renamed(type_: pa.DataType) -> pa.DataType:
        _check_has(type_, old, of_struct)
        _check_is_free(type_, new, [field.name for field in type_ if field.name != old], of_struct)
        return pa.struct([field.with_name(new) if field.name == old else field for field in type_])

    return changed_within(type_, path[:-1], renamed, of)


def _of_struct(of: str, path: Sequence[str]) -> str:
    return ": ".join((of, *map(repr, path)))


def _check_struct(type_: pa.DataType, of: str) -> None:
    if not has_fields(type_):
        raise SchemaError(f"{of}: only a STRUCT has fields, got {types.sql_name(type_)}")


def _check_has(type_: pa.DataType, name: str, of: str) -> None:
    _check_struct(type_, of)
    if type_.get_field_index(name) < 0:
        known = ", ".join(field.name for field in type_)
        raise SchemaError(f"{of}: unknown field {name!r}; fields are {known}")


def _check_is_free(type_: pa.DataType, name: str, others: Sequence[str], of: str) -> None:
    if name in others or types.differ_in_case([*others, name]):
        known = ", ".join(field.name for field in type_)
        raise SchemaError(f"{of}: there is a field {name!r} among {known}; choose another name")
