"""What may change in a table's definition, and what each change makes of it (pure).

What places or identifies rows cannot change: primary key, partitions, buckets, sequence and merge engine; it
is refused by name. Computed columns and the watermark belong to reads, so no file knows them. An index
belongs to files: existing ones get it in the background, see ``upkeep/index_building.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn, assert_never

import pyarrow as pa

from upsert import nested, types
from upsert.arrays import one_array
from upsert.conditions.expressions import Const
from upsert.errors import ConfigurationError, SchemaError
from upsert.schema import (
    Check,
    Column,
    ComputedColumn,
    Index,
    Length,
    TableSchema,
    Watermark,
    fields_after_add,
    fields_after_drop,
    fields_after_rename,
    form_of,
)
from upsert.store import log_options
from upsert.store.metadata.definition import Definition
from upsert.store.paths import Partition
from upsert.store.read.row_metadata import with_metadata_aside
from upsert.store.rows.conform import of_column
from upsert.store.rows.keys import as_key, has_floats
from upsert.store.rows.merge_rules import is_of_field, renamed, without
from upsert.store.rows.partitions import specified
from upsert.store.table_options import OPTIONS, check_new


@dataclass(frozen=True)
class AddIndex:
    """One more index; a UNIQUE one, if no two existing rows have one key."""

    index: Index


@dataclass(frozen=True)
class DropIndex:
    """An index less; lookups by its columns alone are refused from now on."""

    name: str


@dataclass(frozen=True)
class AddComputed:
    """A computed column or a METADATA column, after all others."""

    column: ComputedColumn | Column


@dataclass(frozen=True)
class AddWatermark:
    """A watermark for a table that has none."""

    watermark: Watermark


@dataclass(frozen=True)
class ModifyWatermark:
    """Another watermark."""

    watermark: Watermark


@dataclass(frozen=True)
class DropWatermark:
    """No watermark any more."""


@dataclass(frozen=True)
class SetComment:
    """Another comment, None for no comment, on a column, or on the table if ``name`` is None."""

    name: str | None
    text: str | None


@dataclass(frozen=True)
class AddColumn:
    """A new column: last, or just after column ``after`` ("" for the first place).

    Existing rows have ``initial`` in it, a value of a scalar type, or NULL. Without one, a column that
    is NOT NULL or has a DEFAULT can only be added while the table has no rows. Where an engine makes one row
    of several, ``initial`` is refused: which of them has the value cannot be said.
    """

    column: Column
    after: str | None = None
    initial: pa.Scalar | None = None


@dataclass(frozen=True)
class DropColumn:
    """A column less. Its values are not seen any more, also if a column of its name is added later."""

    name: str


@dataclass(frozen=True)
class MoveColumn:
    """Another place for a column: just after ``after``, or the first one for ""."""

    name: str
    after: str


@dataclass(frozen=True)
class RenameColumn:
    """Another name for a column; keys, indexes and options that name it follow."""

    old: str
    new: str


@dataclass(frozen=True)
class WidenColumn:
    """A type that holds every value of the present one, see ``types.widens`` and ``Length.holds``."""

    name: str
    type: pa.DataType
    length: Length | None = None


@dataclass(frozen=True)
class AddField:
    """A new field, last in a struct of a column. Old rows have NULL in it.

    ``path`` begins with the column and ends with the new field; between them are fields of structs,
    ``element`` of an array and ``value`` of a map.
    """

    path: tuple[str, ...]
    type: pa.DataType


@dataclass(frozen=True)
class DropField:
    """A field of a struct less; ``path`` as for ``AddField``. A struct keeps at least one."""

    path: tuple[str, ...]


@dataclass(frozen=True)
class RenameField:
    """Another name for a field of a struct, the last of ``path``."""

    path: tuple[str, ...]
    new: str


@dataclass(frozen=True)
class WidenPart:
    """A wider type for a field of a struct, or for ``element`` of an array, ``value`` of a map."""

    path: tuple[str, ...]
    type: pa.DataType


@dataclass(frozen=True)
class SetDefault:
    """Another DEFAULT of a column, None for none; existing rows stay as they are."""

    name: str
    default: str | None


@dataclass(frozen=True)
class SetNullable:
    """Whether a column may hold NULL; to be NOT NULL, no existing row may have one in it.

    Readers are told that such a column may hold NULL, for it may in older snapshots.
    """

    name: str
    nullable: bool


@dataclass(frozen=True)
class AddCheck:
    """A CHECK constraint, which no existing row may break."""

    check: Check


@dataclass(frozen=True)
class DropCheck:
    """A CHECK constraint less."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True)
class SetOptions:
    """Values of options, as WITH (…) takes them."""

    options: Mapping[str, str]


@dataclass(frozen=True)
class ResetOptions:
    """Options that get their defaults back."""

    keys: tuple[str, ...]


@dataclass(frozen=True)
class TrackPartition:
    """Whether commits to a partition show in change streams (FLIP-188: ``change-tracking`` of a partition).

    ``spec`` has a value for every partition column, in the column's type; None for NULL.
    """

    spec: Mapping[str, Any]
    is_tracked: bool


Declaration = (
    AddIndex
    | DropIndex
    | AddComputed
    | AddWatermark
    | ModifyWatermark
    | DropWatermark
    | SetComment
    | SetDefault
    | SetNullable
    | AddCheck
    | DropCheck
)

Alteration = (
    AddColumn
    | DropColumn
    | MoveColumn
    | RenameColumn
    | WidenColumn
    | AddField
    | DropField
    | RenameField
    | WidenPart
    | SetOptions
    | ResetOptions
    | TrackPartition
    | Declaration
)


def altered(definition: Definition, changes: Iterable[Alteration]) -> Definition:
    """The definition after some changes, in their order, under the next version; itself if it is equal."""
    new = definition
    for change in changes:
        new = changed(new, change)
    new.layout  # noqa: B018 - refuses what cannot be stored
    before, after = definition.options, new.options
    if (before.materialize, before.bucket) != (after.materialize, after.bucket):
        check_new(f"{definition.owner}: ALTER TABLE", new.options, new.schema)
    _check_names(definition, new)
    _check_fixed(definition, new)
    if _content(new) == _content(definition):
        return definition
    return replace(new, version=definition.version + 1)


def _check_names(old: Definition, new: Definition) -> None:
    """Refuse a new name where two differ in case alone; tables of earlier releases may have such names."""
    before, after = ({*one.schema.names, *(c.name for c in one.schema.computed)} for one in (old, new))
    try:
        new.schema.check_new_names()
    except SchemaError as cause:
        if after - before:
            _refuse(old, str(cause))


def _content(definition: Definition) -> tuple[Any, ...]:
    ids = tuple((column.id, column.fields, column.initial) for column in definition.schema.columns)
    return definition.schema, ids, dict(definition.given), definition.untracked


def differences(old: TableSchema, new: TableSchema) -> tuple[Alteration, ...]:
    """What makes of one schema another one, by the names of columns and indexes; comments are left alone.

    Columns that are added stand after those that they follow in ``new``; others keep their order.

    Raises:
        SchemaError: a column of both, or the primary key, is another one.

    >>> import pyarrow as pa
    >>> old = TableSchema.of({"id": pa.int64(), "a": pa.string()}, ["id"])
    >>> differences(old, TableSchema.of({"id": pa.int64(), "b": pa.string()}, ["id"]))
    (DropColumn(name='a'), AddColumn(column=Column(name='b', type=DataType(string), ...), after='id', ...))
    """
    for column in old.columns:
        if column.name not in new.names:
            continue
        other = new.column(column.name)
        if column.type != other.type:
            raise SchemaError(
                f"column {column.name!r} must stay {types.sql_name(column.type)}, got "
                f"{types.sql_name(other.type)}"
            )
    if old.primary_key != new.primary_key:
        raise SchemaError(f"the primary key must stay ({', '.join(old.primary_key)})")
    computed = {column.name: column for column in new.computed}
    there = {column.name: column.expression for column in old.computed}
    stays = {name for name, column in computed.items() if there.get(name) == column.expression}
    changes: list[Alteration] = []
    if old.watermark is not None and old.watermark != new.watermark:
        changes.append(DropWatermark())
    changes += [DropColumn(name) for name in there if name not in stays]
    changes += [DropIndex(index.name) for index in old.indexes if index not in new.indexes]
    changes += [DropColumn(name) for name in old.names if name not in new.names]
    before = ["", *new.names]
    for place, column in enumerate(new.columns):
        if column.name not in old.names:
            changes.append(AddColumn(replace(column, id=0), before[place]))
        elif column.nullable != old.column(column.name).nullable:
            changes.append(SetNullable(column.name, column.nullable))
    changes += [AddComputed(column) for name, column in computed.items() if name not in stays]
    changes += [AddIndex(index) for index in new.indexes if index not in old.indexes]
    if new.watermark is not None and old.watermark != new.watermark:
        changes.append(AddWatermark(new.watermark))
    return tuple(changes)


def needs_empty_table(old: Definition, new: Definition) -> str | None:
    """Why a change is possible only while the table has no rows, and what to do; None if it always is."""
    there = {column.id for column in old.schema.columns}
    for column in new.schema.columns:
        if column.id in there or column.initial is not None:
            continue
        of, remedy = "and present rows would have NULL in it", "delete the rows first, or add it"
        if not column.nullable:
            return f"column {column.name!r} is NOT NULL, {of}; {remedy} nullable"
        if column.default is not None:
            then = f"ALTER COLUMN {column.name} SET DEFAULT"
            return f"column {column.name!r} has a DEFAULT, {of}; {remedy} without, and then {then}"
    return None


def with_older_rows(old: Definition, new: Definition) -> Definition:
    """The definition after a change, with marks at new promises, which older snapshots need not keep."""
    before = {column.id: column for column in old.schema.columns}
    columns = (
        replace(one, had_nulls=True)
        if not one.nullable and (before[one.id].may_be_null if one.id in before else one.initial is None)
        else one
        for one in new.schema.columns
    )
    promised = [_ids(index, old) for index in old.schema.indexes if index.unique and not index.is_late]
    indexes = (
        replace(one, is_late=True) if one.unique and _ids(one, new) not in promised else one
        for one in new.schema.indexes
    )
    return replace(new, schema=replace(new.schema, columns=tuple(columns), indexes=tuple(indexes)))


def _ids(index: Index, definition: Definition) -> list[int]:
    """The ids of an index's columns, whose names may have been those of others."""
    return [definition.schema.column(name).id for name in index.columns]


def changed(definition: Definition, change: Alteration) -> Definition:
    """The definition after one change, whose layout has not been looked at."""
    match change:
        case AddColumn():
            return _add(definition, change)
        case DropColumn():
            return _drop(definition, change)
        case MoveColumn(name, after):
            return _move(definition, name, after)
        case RenameColumn():
            return _rename(definition, change)
        case WidenColumn():
            return _widen(definition, change)
        case AddField(path, type_):
            return _add_field(definition, path, type_)
        case DropField(path):
            return _drop_field(definition, path)
        case RenameField(path, new):
            return _rename_field(definition, path, new)
        case WidenPart(path, type_):
            return _widen_part(definition, path, type_)
        case SetOptions(given):
            return replace(definition, given={**_without(definition, given), **given})
        case ResetOptions(keys):
            _check_known(definition, keys)
            return replace(definition, given=_without(definition, keys))
        case TrackPartition(spec, is_tracked):
            own = {_partition_of(definition, spec)}
            untracked = definition.untracked - own if is_tracked else definition.untracked | own
            return replace(definition, untracked=untracked)
    try:
        return replace(definition, schema=_declared(definition.schema, change))
    except SchemaError as cause:
        raise SchemaError(f"{definition.owner}: ALTER TABLE: {cause}") from None


def _declared(schema: TableSchema, change: Declaration) -> TableSchema:
    watermark = schema.watermark
    match change:
        case AddIndex(index):
            return replace(schema, indexes=(*schema.indexes, index))
        case DropIndex(name):
            left = tuple(index for index in schema.indexes if index.name != name)
            if len(left) == len(schema.indexes):
                known = ", ".join(index.name for index in schema.indexes) or "none"
                raise SchemaError(f"DROP INDEX: unknown index {name!r}; indexes are {known}")
            return replace(schema, indexes=left)
        case AddComputed(column):
            return _with_computed(schema, column)
        case AddWatermark(added):
            if watermark is not None:
                raise SchemaError(
                    f"ADD WATERMARK: there is one, for column {watermark.column!r}; write MODIFY WATERMARK"
                )
            return _with_watermark(schema, added)
        case ModifyWatermark(other):
            if watermark is None:
                raise SchemaError("MODIFY WATERMARK: there is none; write ADD WATERMARK")
            return _with_watermark(schema, other)
        case DropWatermark():
            if watermark is None:
                raise SchemaError("DROP WATERMARK: there is none; leave the statement out")
            return replace(schema, watermark=None)
        case SetComment(name, text):
            return replace(schema, comment=text) if name is None else _commented(schema, name, text)
        case SetDefault(name, default):
            schema.type_of(name, "ALTER COLUMN")
            return _with_column(schema, replace(schema.column(name), default=default))
        case SetNullable(name, nullable):
            return _with_nullable(schema, name, nullable)
        case AddCheck(check):
            return replace(schema, checks=(*schema.checks, check))
        case DropCheck(name, if_exists):
            kept = tuple(check for check in schema.checks if check.name.lower() != name.lower())
            if len(kept) == len(schema.checks) and not if_exists:
                known = ", ".join(check.name for check in schema.checks) or "none"
                raise SchemaError(f"DROP CONSTRAINT: unknown constraint {name!r}; constraints are {known}")
            return replace(schema, checks=kept)
    assert_never(change)


def _with_nullable(schema: TableSchema, name: str, nullable: bool) -> TableSchema:
    schema.type_of(name, "ALTER COLUMN")
    column = schema.column(name)
    if column.nullable == nullable:
        return schema
    if name in schema.primary_key:
        raise SchemaError(f"DROP NOT NULL: column {name!r} is of the PRIMARY KEY, which is never NULL")
    return _with_column(schema, replace(column, nullable=nullable, had_nulls=False))


def _with_watermark(schema: TableSchema, watermark: Watermark) -> TableSchema:
    found = replace(schema, watermark=watermark)
    found.check_watermark()
    return found


def _with_computed(schema: TableSchema, column: ComputedColumn | Column) -> TableSchema:
    if isinstance(column, Column):
        whole = replace(schema, columns=(*schema.columns, replace(column, id=0, virtual=True)))
        column = with_metadata_aside(whole, "ADD").computed[-1]
    last = len(schema.columns) + len(schema.computed)
    return replace(schema, computed=(*schema.computed, replace(column, place=last)))


def _without_computed(schema: TableSchema, name: str) -> TableSchema:
    """The schema without a computed column; others move to the left."""
    if schema.watermark is not None and schema.watermark.column == name:
        raise SchemaError(f"DROP COLUMN {name!r}: the WATERMARK needs it; DROP WATERMARK first")
    gone = next(column for column in schema.computed if column.name == name)
    left = (column for column in schema.computed if column is not gone)
    moved = tuple(replace(c, place=c.place - (c.place > gone.place)) for c in left)
    return replace(schema, computed=moved)


def _commented(schema: TableSchema, name: str, text: str | None) -> TableSchema:
    if any(column.name == name for column in schema.computed):
        computed = (replace(c, comment=text) if c.name == name else c for c in schema.computed)
        return replace(schema, computed=tuple(computed))
    schema.type_of(name, "COMMENT")
    return _with_column(schema, replace(schema.column(name), comment=text))


def _add(definition: Definition, change: AddColumn) -> Definition:
    schema, column = definition.schema, change.column
    if column.name in schema.names:
        _refuse(definition, f"ADD COLUMN {column.name!r}: there is a column of this name; choose another")
    columns, id = list(schema.columns), definition.last_id + 1
    columns.insert(
        _place(definition, change.after), replace(column, id=id, initial=_initial(definition, change))
    )
    return replace(definition, schema=replace(schema, columns=tuple(columns)), last_id=id)


def _place(definition: Definition, after: str | None) -> int:
    """How many columns stand before one that comes just after another, as the first or as the last one."""
    if after is None:
        return len(definition.schema.columns)
    return 1 + definition.schema.names.index(_known(definition, after)) if after else 0


def _move(definition: Definition, name: str, after: str) -> Definition:
    moved = definition.schema.column(_known(definition, name))
    if after == name:
        _refuse(definition, f"column {name!r} must come after another one; name that")
    columns: list[Column | None] = [None if one is moved else one for one in definition.schema.columns]
    columns.insert(_place(definition, after), moved)
    return replace(definition, schema=replace(definition.schema, columns=tuple(filter(None, columns))))


def _initial(definition: Definition, change: AddColumn) -> Const | None:
    """What existing rows have in a new column, if it is said."""
    if change.initial is None:
        return None
    of = f"{definition.owner}: ALTER TABLE: ADD COLUMN: value of existing rows"
    if definition.options.merge.combines:
        raise SchemaError(
            f"{of} cannot be given to column {change.column.name!r}, because the 'merge-engine' makes one "
            "row of several, of which each would have it; add the column without a default, insert it for "
            f"each key, and then ALTER COLUMN {change.column.name} SET DEFAULT"
        )
    if not isinstance(change.initial, pa.Scalar):
        raise SchemaError(f"{of} must be a pyarrow.Scalar, got {change.initial!r}; write pa.scalar(…)")
    column = replace(change.column, type=types.canonical(change.column.type, of))
    values = of_column(pa.chunked_array([pa.repeat(change.initial, 1)]), column, None, of)
    if values.null_count and not column.nullable:
        raise SchemaError(f"{of}: column {column.name!r} is NOT NULL, got NULL; give another value")
    if definition.layout.is_counted and has_floats(column.type):
        values = pa.chunked_array([as_key(one_array(values))])
    try:
        return Const.of(values[0])
    except ConfigurationError as cause:
        raise SchemaError(f"{of}: {cause}; add the column without, and UPDATE the rows") from cause


def _drop(definition: Definition, change: DropColumn) -> Definition:
    if any(column.name == change.name for column in definition.schema.computed):
        return replace(definition, schema=_without_computed(definition.schema, change.name))
    name = _known(definition, change.name)
    if used := _use_of(definition, name):
        _refuse(definition, f"DROP COLUMN {name!r}: {used} needs it, and cannot change")
    _refuse_checked(definition, name, "DROP COLUMN")
    left = tuple(column for column in definition.schema.columns if column.name != name)
    schema = replace(definition.schema, columns=left)
    return replace(definition, schema=schema, given=without(definition.given, name))


def _rename(definition: Definition, change: RenameColumn) -> Definition:
    schema, old, new = definition.schema, _known(definition, change.old), change.new
    if old == new:
        return definition
    if new in schema.names:
        _refuse(definition, f"RENAME COLUMN {old!r}: there is a column {new!r}; choose another name")
    if old in schema.partitioned_by:
        _refuse(definition, f"RENAME COLUMN {old!r}: PARTITIONED BY names it, and so do its folders")
    _refuse_checked(definition, old, "RENAME COLUMN")

    def follow(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(new if name == old else name for name in names)

    columns = tuple(replace(c, name=new) if c.name == old else c for c in schema.columns)
    indexes = tuple(replace(index, columns=follow(index.columns)) for index in schema.indexes)
    changed = replace(schema, columns=columns, primary_key=follow(schema.primary_key), indexes=indexes)
    return replace(definition, schema=changed, given=renamed(definition.given, old, new))


def _refuse_checked(definition: Definition, name: str, what: str) -> None:
    """Refuse to change a column that a CHECK constraint names."""
    if check := next((check for check in definition.schema.checks if name in check.columns), None):
        _refuse(definition, f"{what} {name!r}: {check} names it; DROP CONSTRAINT {check.name} first")


def _widen(definition: Definition, change: WidenColumn) -> Definition:
    name = _known(definition, change.name)
    column = definition.schema.column(name)
    type_ = types.canonical(change.type, f"column {name!r}")
    if (type_, change.length) == (column.type, column.length):
        return definition
    changed = replace(column, type=type_, length=change.length, initial=_widened(column.initial, type_))
    found, wanted = column.sql_type, changed.sql_type
    if column.metadata is not None:
        _refuse(definition, f"column {name!r} is a METADATA column, which is not stored; drop and add it")
    if type_ == column.type:
        if change.length is not None and (column.length is None or not change.length.holds(column.length)):
            _refuse(
                definition,
                f"column {name!r} of type {found} can become STRING or a VARCHAR that holds its texts, got "
                f"{wanted}; add another column",
            )
    elif not types.widens(column.type, type_):
        _refuse(
            definition,
            f"column {name!r} of type {found} can become a wider integer, DOUBLE or a longer DECIMAL, where "
            f"that holds its values, got {wanted}; add another column",
        )
    else:
        _refuse_checked(definition, name, "ALTER COLUMN … TYPE of column")
        for what, names in _PLACES:
            if name in names(definition):
                _refuse(
                    definition, f"column {name!r} must stay {found}: {what} places rows by it, got {wanted}"
                )
    return _with_changed(definition, changed)


def _widened(initial: Const | None, type_: pa.DataType) -> Const | None:
    """What older rows have in a column, in its wider type: the same as if the value had been stored."""
    if initial is None or initial.type == type_ or not types.widens(initial.type, type_):
        return initial
    stored = pa.array([initial.value], initial.type)
    return Const.of(nested.reshaped(stored, form_of(initial.type, ()), form_of(type_, ()))[0])


def _add_field(definition: Definition, path: Sequence[str], type_: pa.DataType) -> Definition:
    name, *between = path[:-1]
    column = definition.schema.column(_known(definition, name))
    of = f"{definition.owner}: ALTER TABLE: ADD COLUMN {'.'.join(path)}"
    grown = nested.with_field(column.type, between, pa.field(path[-1], type_), f"{of}: column {name!r}")
    number = definition.last_id + 1
    fields = fields_after_add(column.fields, tuple(path[1:]), number)
    changed = replace(column, type=types.canonical(grown, of), fields=fields)
    return replace(_with_changed(definition, changed), last_id=number)


def _drop_field(definition: Definition, path: Sequence[str]) -> Definition:
    column, of = _with_part(definition, path, "DROP COLUMN")
    type_ = nested.without_field(column.type, path[1:], of)
    fields = fields_after_drop(column.fields, tuple(path[1:]))
    return _with_changed(definition, replace(column, type=type_, fields=fields))


def _rename_field(definition: Definition, path: Sequence[str], new: str) -> Definition:
    column, of = _with_part(definition, path, "RENAME COLUMN")
    type_ = nested.with_name(column.type, path[1:], new, of)
    fields = fields_after_rename(column.fields, tuple(path[1:]), new)
    return _with_changed(definition, replace(column, type=type_, fields=fields))


def _widen_part(definition: Definition, path: Sequence[str], type_: pa.DataType) -> Definition:
    column, of = _with_part(definition, path, "ALTER COLUMN", is_wider=True)
    wanted = types.canonical(type_, of)

    def wider(found: pa.DataType) -> pa.DataType:
        if found != wanted and not types.widens(found, wanted):
            raise SchemaError(
                f"{of}: {types.sql_name(found)} can become a wider integer, DOUBLE or a longer DECIMAL "
                f"that holds its values, got {types.sql_name(wanted)}; add another field"
            )
        return wanted

    type_ = nested.changed_within(column.type, path[1:], wider, of)
    return _with_changed(definition, replace(column, type=type_))


def _with_part(
    definition: Definition, path: Sequence[str], what: str, *, is_wider: bool = False
) -> tuple[Column, str]:
    """The column that a path begins with, and what to say of a change of its part that cannot be made."""
    name = _known(definition, path[0])
    _refuse_checked(definition, name, f"{what} {'.'.join(path)}: column")
    for computed in definition.schema.computed:
        if name in computed.uses and not is_wider:
            _refuse(
                definition,
                f"{what} {'.'.join(path)}: column {computed.name!r} AS {computed.expression} names {name!r}; "
                "drop it first",
            )
    return definition.schema.column(name), (
        f"{definition.owner}: ALTER TABLE: {what} {'.'.join(path)}: column {name!r}"
    )


def _with_changed(definition: Definition, changed: Column) -> Definition:
    return replace(definition, schema=_with_column(definition.schema, changed))


def _with_column(schema: TableSchema, changed: Column) -> TableSchema:
    """The columns with one that has changed, but for its name."""
    return replace(schema, columns=tuple(changed if c.name == changed.name else c for c in schema.columns))


def _check_known(definition: Definition, keys: Iterable[str]) -> None:
    """Refuse unknown options; one that was never set is no error."""
    for key in keys:
        if key.lower() not in _KEYS and not is_of_field(key) and not log_options.is_of_client(key):
            raise ConfigurationError(f"{definition.owner}: ALTER TABLE: RESET: unknown option {key!r}")


def _without(definition: Definition, keys: Iterable[str]) -> dict[str, str]:
    """The given options without some, whichever of its names each was given by."""
    gone = {_key(key) for key in keys}
    return {key: value for key, value in definition.given.items() if _key(key) not in gone}


_KEYS: Final = {alias: option.key for option in OPTIONS for alias in (option.key, *option.aliases)}
"""Key of each option, by it and its other names."""


def _key(name: str) -> str:
    return _KEYS.get(name.lower(), name)


def _partition_of(definition: Definition, spec: Mapping[str, Any]) -> Partition:
    columns = definition.schema.partitioned_by
    if set(spec) != set(columns) or not columns:
        expected = f"name each of ({', '.join(columns)})" if columns else "need a table with PARTITIONED BY"
        raise ConfigurationError(
            f"{definition.owner}: a partition must {expected}, got {', '.join(spec) or 'nothing'}"
        )
    return specified(definition.schema, spec, definition.owner)


def _known(definition: Definition, name: str) -> str:
    definition.schema.type_of(name, f"{definition.owner}: ALTER TABLE")
    return name


_PLACES: Final[tuple[tuple[str, Callable[[Definition], Sequence[str]]], ...]] = (
    ("PRIMARY KEY", lambda definition: definition.schema.primary_key),
    ("PARTITIONED BY", lambda definition: definition.schema.partitioned_by),
    ("option 'bucket-key'", lambda definition: definition.options.bucket_key),
)


def _use_of(definition: Definition, name: str) -> str | None:
    """What needs a column, in the words of a message; None for nothing."""
    for what, names in _PLACES:
        if name in names(definition):
            return what
    for index in definition.schema.indexes:
        if name in index.columns:
            return f"index {index.name!r}"
    for group in definition.options.merge.groups:
        if name in group.sequence:
            return f"option {group.option!r}"
    return "option 'sequence.field'" if name in definition.options.merge.sequence else None


def _check_fixed(old: Definition, new: Definition) -> None:
    """Refuse another value of an option that places or combines rows; renamed columns are the same ones."""
    before, after = _fixed(old), _fixed(new)
    begins_or_ends = old.options.log.system != new.options.log.system
    if new.options.log.is_kafka and old.options.bucket != new.options.bucket:
        when, remedy = "while the table has a log", "set 'log.system' = 'none', and then another number"
        if begins_or_ends:
            when, remedy = "while the table gets a log", "set the number first, and then 'log.system'"
        raise ConfigurationError(
            f"{old.owner}: ALTER TABLE: option 'bucket' cannot change {when}, whose topic has a partition "
            f"for each bucket; {remedy}"
        )
    for key in before:  # in this order: the first that differs is what was asked for
        if key not in after or before[key] == after[key]:
            continue
        if key not in log_options.FIXED:
            for column in old.schema.columns:
                key = key.replace(f"<column {column.id}>", column.name)
            raise ConfigurationError(
                f"{old.owner}: ALTER TABLE: option {key!r} cannot change, for present rows are stored by it; "
                "create another table and copy the rows"
            )
        if not begins_or_ends:
            raise ConfigurationError(
                f"{old.owner}: ALTER TABLE: option {key!r} cannot change, for the table's log is made by it; "
                "set 'log.system' = 'none', and then another log"
            )


def _fixed(definition: Definition) -> dict[str, Any]:
    options = definition.options
    ids = {column.name: column.id for column in definition.schema.columns}
    functions = {
        f"fields.<column {column.id}>.aggregate-function": options.merge.aggregate(column.name).function
        for column in definition.schema.columns
        if column.name not in definition.schema.primary_key and column.name not in options.merge.orders
    }
    return functions | {
        "bucket-key": [ids[name] for name in options.bucket_key],
        "merge-engine": options.merge.engine,
        "sequence.field": [ids[name] for name in options.merge.sequence],
        **{key: getattr(options.log, name) for key, name in log_options.FIXED.items()},
    }


def _refuse(definition: Definition, reason: str) -> NoReturn:
    raise SchemaError(f"{definition.owner}: ALTER TABLE: {reason}")
