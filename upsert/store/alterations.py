"""What may change in a table's definition, and what each change makes of it (pure).

Follows ALTER TABLE of FLIP-188 and FLIP-486's tables. What places or identifies rows cannot change: primary
key, partitions, buckets, sequence and merge engine; it is refused by name. Computed columns and the watermark
belong to reads, so no file knows them. An index belongs to files: existing ones build it in memory when they
are opened, until a compaction rewrites them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn, get_args

import pyarrow as pa

from upsert import types
from upsert.errors import ConfigurationError, SchemaError
from upsert.schema import Column, ComputedColumn, Index, TableSchema, Watermark
from upsert.store import log_options
from upsert.store.metadata.definition import Definition
from upsert.store.paths import Partition
from upsert.store.read.row_metadata import with_metadata_aside
from upsert.store.rows.merge_rules import is_of_field, renamed, without
from upsert.store.rows.partitions import specified
from upsert.store.table_options import OPTIONS


@dataclass(frozen=True)
class AddIndex:
    """One more index. A UNIQUE one only while the table has no rows, which were never compared."""

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


Declaration = AddIndex | DropIndex | AddComputed | AddWatermark | ModifyWatermark | DropWatermark | SetComment


def _add_index(schema: TableSchema, change: AddIndex) -> TableSchema:
    return replace(schema, indexes=(*schema.indexes, change.index))


def _drop_index(schema: TableSchema, change: DropIndex) -> TableSchema:
    left = tuple(index for index in schema.indexes if index.name != change.name)
    if len(left) == len(schema.indexes):
        known = ", ".join(index.name for index in schema.indexes) or "none"
        raise SchemaError(f"DROP INDEX: unknown index {change.name!r}; indexes are {known}")
    return replace(schema, indexes=left)


def _add_computed(schema: TableSchema, change: AddComputed) -> TableSchema:
    column = change.column
    if isinstance(column, Column):
        whole = replace(schema, columns=(*schema.columns, replace(column, id=0, virtual=True)))
        added = with_metadata_aside(whole, "ADD").computed[-1]
    else:
        added = column
    place = len(schema.columns) + len(schema.computed)
    return replace(schema, computed=(*schema.computed, replace(added, place=place)))


def drop_computed(schema: TableSchema, name: str) -> TableSchema:
    """The schema without a computed column; others move to the left.

    Raises:
        SchemaError: the watermark needs it.
    """
    if schema.watermark is not None and schema.watermark.column == name:
        raise SchemaError(f"DROP COLUMN {name!r}: the WATERMARK needs it; DROP WATERMARK first")
    gone = next(column for column in schema.computed if column.name == name)
    left = (column for column in schema.computed if column is not gone)
    moved = tuple(replace(c, place=c.place - (c.place > gone.place)) for c in left)
    return replace(schema, computed=moved)


def _add_watermark(schema: TableSchema, change: AddWatermark) -> TableSchema:
    if schema.watermark is not None:
        raise SchemaError(
            f"ADD WATERMARK: there is one, for column {schema.watermark.column!r}; write MODIFY WATERMARK"
        )
    return replace(schema, watermark=change.watermark)


def _modify_watermark(schema: TableSchema, change: ModifyWatermark) -> TableSchema:
    if schema.watermark is None:
        raise SchemaError("MODIFY WATERMARK: there is none; write ADD WATERMARK")
    return replace(schema, watermark=change.watermark)


def _drop_watermark(schema: TableSchema, _: DropWatermark) -> TableSchema:
    if schema.watermark is None:
        raise SchemaError("DROP WATERMARK: there is none; leave the statement out")
    return replace(schema, watermark=None)


def _comment(schema: TableSchema, change: SetComment) -> TableSchema:
    name, text = change.name, change.text
    if name is None:
        return replace(schema, comment=text)
    if any(column.name == name for column in schema.computed):
        computed = (replace(c, comment=text) if c.name == name else c for c in schema.computed)
        return replace(schema, computed=tuple(computed))
    schema.type_of(name, "COMMENT")
    columns = (replace(c, comment=text) if c.name == name else c for c in schema.columns)
    return replace(schema, columns=tuple(columns))


_DECLARATION_RULES: Final[Mapping[type, Callable[[TableSchema, Any], TableSchema]]] = {
    AddIndex: _add_index,
    DropIndex: _drop_index,
    AddComputed: _add_computed,
    AddWatermark: _add_watermark,
    ModifyWatermark: _modify_watermark,
    DropWatermark: _drop_watermark,
    SetComment: _comment,
}


def declared(definition: Definition, change: Declaration) -> Definition:
    """The definition after a change of what it declares.

    Raises:
        SchemaError: what is to change is not there, or what is to be there is so already.

    >>> from upsert.schema import TableSchema
    >>> import pyarrow as pa
    >>> old = Definition(0, TableSchema.of({"id": pa.int64(), "hub": pa.string()}, primary_key=["id"]))
    >>> str(declared(old, AddIndex(Index.over(["hub"]))).schema.indexes[0])
    'INDEX INDEX_hub (hub)'
    """
    try:
        return replace(definition, schema=_DECLARATION_RULES[type(change)](definition.schema, change))
    except SchemaError as cause:
        raise SchemaError(f"{definition.owner}: ALTER TABLE: {cause}") from None


def why_needs_no_rows(old: TableSchema, new: TableSchema) -> str | None:
    """Why what is declared needs a table without rows; None if it does not."""
    there = {(index.columns, index.unique) for index in old.indexes}
    for index in new.indexes:
        if index.unique and (index.columns, True) not in there and not _is_renamed(index, old, new):
            return f"{index} is a promise that was not checked for the existing rows"
    return None


def _is_renamed(index: Index, old: TableSchema, new: TableSchema) -> bool:
    """Whether the index was there under other names of its columns."""
    ids = [new.column(name).id for name in index.columns]
    return any([old.column(name).id for name in one.columns] == ids for one in old.indexes if one.unique)


@dataclass(frozen=True)
class AddColumn:
    """A new column: last, or just after column ``after`` ("" for the first place). Old rows have NULL in it.

    A NOT NULL column can only be added while the table has no rows.
    """

    column: Column
    after: str | None = None


@dataclass(frozen=True)
class DropColumn:
    """A column less. Its values are not seen any more, also if a column of its name is added later."""

    name: str


@dataclass(frozen=True)
class RenameColumn:
    """Another name for a column; keys, indexes and options that name it follow."""

    old: str
    new: str


@dataclass(frozen=True)
class WidenColumn:
    """A type that holds every value of the column's present one, see ``types.widens``."""

    name: str
    type: pa.DataType


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


Alteration = (
    AddColumn
    | DropColumn
    | RenameColumn
    | WidenColumn
    | Declaration
    | SetOptions
    | ResetOptions
    | TrackPartition
)


def altered(definition: Definition, changes: Iterable[Alteration]) -> Definition:
    """The definition after some changes, in their order, under the next version; itself if nothing differs.

    Raises:
        SchemaError: a column is unknown or there already, or may not change like this.
        ConfigurationError: an option is unknown, wrong or fixed, or no partition is given.

    >>> import pyarrow as pa
    >>> from upsert.schema import TableSchema
    >>> old = Definition(0, TableSchema.of({"id": pa.int64(), "name": pa.string()}, primary_key=["id"]))
    >>> new = altered(old, [RenameColumn("name", "title"), AddColumn(Column("price", pa.int32()))])
    >>> new.version, new.schema.names, [column.id for column in new.schema.columns]
    (1, ('id', 'title', 'price'), [1, 2, 3])
    """
    new = definition
    for change in changes:
        new = _RULES[type(change)](new, change)
    new.layout  # noqa: B018 - refuses what cannot be stored
    _check_fixed(definition, new)
    if _content(new) == _content(definition):
        return definition
    return replace(new, version=definition.version + 1)


def _content(definition: Definition) -> tuple[Any, ...]:
    ids = tuple(column.id for column in definition.schema.columns)
    return definition.schema, ids, dict(definition.given), definition.untracked


def needs_empty_table(old: Definition, new: Definition) -> str | None:
    """Why a change is possible only while the table has no rows; None if it always is."""
    there = {column.id for column in old.schema.columns}
    for column in new.schema.columns:
        if column.id not in there and not column.nullable:
            return f"column {column.name!r} is NOT NULL, and present rows would have NULL in it"
    return why_needs_no_rows(old.schema, new.schema)


def _add(definition: Definition, change: AddColumn) -> Definition:
    schema, column = definition.schema, change.column
    if column.name in schema.names:
        _refuse(definition, f"ADD COLUMN {column.name!r}: there is a column of this name; choose another")
    columns = list(schema.columns)
    place = len(columns)
    if change.after is not None:
        place = 1 + schema.names.index(_known(definition, change.after)) if change.after else 0
    columns.insert(place, replace(column, id=definition.last_id + 1))
    return replace(definition, schema=replace(schema, columns=tuple(columns)), last_id=definition.last_id + 1)


def _drop(definition: Definition, change: DropColumn) -> Definition:
    if any(column.name == change.name for column in definition.schema.computed):
        return replace(definition, schema=drop_computed(definition.schema, change.name))
    name = _known(definition, change.name)
    if used := _use_of(definition, name):
        _refuse(definition, f"DROP COLUMN {name!r}: {used} needs it, and cannot change")
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

    def follow(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(new if name == old else name for name in names)

    columns = tuple(replace(c, name=new) if c.name == old else c for c in schema.columns)
    indexes = tuple(replace(index, columns=follow(index.columns)) for index in schema.indexes)
    changed = replace(schema, columns=columns, primary_key=follow(schema.primary_key), indexes=indexes)
    return replace(definition, schema=changed, given=renamed(definition.given, old, new))


def _widen(definition: Definition, change: WidenColumn) -> Definition:
    name = _known(definition, change.name)
    column = definition.schema.column(name)
    type_ = types.canonical(change.type, f"column {name!r}")
    if type_ == column.type:
        return definition
    found, wanted = types.sql_name(column.type), types.sql_name(type_)
    if column.metadata is not None:
        _refuse(definition, f"column {name!r} is a METADATA column, which is not stored; drop and add it")
    if not types.widens(column.type, type_):
        _refuse(
            definition,
            f"column {name!r} of type {found} can become a wider integer, DOUBLE or a longer DECIMAL, where "
            f"that holds its values, got {wanted}; add another column",
        )
    for what, names in _PLACES:
        if name in names(definition):
            _refuse(definition, f"column {name!r} must stay {found}: {what} places rows by it, got {wanted}")
    return _with_column(definition, replace(column, type=type_))


def _set(definition: Definition, change: SetOptions) -> Definition:
    return replace(definition, given={**_without(definition, change.options), **change.options})


def _reset(definition: Definition, change: ResetOptions) -> Definition:
    for key in change.keys:
        # a key that was never set is no error, an unknown one is
        if _key(key) not in (option.key for option in OPTIONS) and not _is_of_family(key):
            raise ConfigurationError(f"{definition.owner}: ALTER TABLE: RESET: unknown option {key!r}")
    return replace(definition, given=_without(definition, change.keys))


def _is_of_family(key: str) -> bool:
    """Whether an option is one of those that are known by how they begin."""
    return is_of_field(key) or log_options.is_of_client(key)


def _without(definition: Definition, keys: Iterable[str]) -> dict[str, str]:
    """The given options without some, whichever of its names each was given by."""
    gone = {_key(key) for key in keys}
    return {key: value for key, value in definition.given.items() if _key(key) not in gone}


def _key(name: str) -> str:
    keys = {alias: option.key for option in OPTIONS for alias in (option.key, *option.aliases)}
    return keys.get(name.lower(), name)


def _track(definition: Definition, change: TrackPartition) -> Definition:
    partition = _partition_of(definition, change.spec)
    if change.is_tracked:
        return replace(definition, untracked=definition.untracked - {partition})
    return replace(definition, untracked=definition.untracked | {partition})


def _partition_of(definition: Definition, spec: Mapping[str, Any]) -> Partition:
    """The partition that a value for every partition column names.

    Raises:
        ConfigurationError: a partition column is missing, or another one given.
        SchemaError: a value is not of its column's type.
    """
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


def _with_column(definition: Definition, column: Column) -> Definition:
    columns = tuple(column if c.name == column.name else c for c in definition.schema.columns)
    return replace(definition, schema=replace(definition.schema, columns=columns))


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
    for key in before:  # in this order: the first that differs is what was asked for
        if key not in after or before[key] == after[key]:
            continue
        if key not in log_options.FIXED:
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
    }
    return functions | {
        "bucket": options.bucket,
        "bucket-key": [ids[name] for name in options.bucket_key],
        "merge-engine": options.merge.engine,
        "sequence.field": [ids[name] for name in options.merge.sequence],
        **{key: getattr(options.log, name) for key, name in log_options.FIXED.items()},
    }


def _refuse(definition: Definition, reason: str) -> NoReturn:
    raise SchemaError(f"{definition.owner}: ALTER TABLE: {reason}")


_RULES: Final[Mapping[type, Callable[[Definition, Any], Definition]]] = {
    AddColumn: _add,
    DropColumn: _drop,
    RenameColumn: _rename,
    WidenColumn: _widen,
    **dict.fromkeys(get_args(Declaration), declared),
    SetOptions: _set,
    ResetOptions: _reset,
    TrackPartition: _track,
}
