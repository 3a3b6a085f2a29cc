"""What each alteration makes of a table's definition, and which may not be (pure).

What places or identifies rows cannot change: primary key, partitions, buckets, sequence and merge engine;
it is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NoReturn, get_args

from upsert import types
from upsert.errors import ConfigurationError, SchemaError
from upsert.log import log_options
from upsert.schema import Column
from upsert.store.alterations import (
    AddColumn,
    Alteration,
    DropColumn,
    RenameColumn,
    ResetOptions,
    SetOptions,
    TrackPartition,
    WidenColumn,
)
from upsert.store.declarations import Declaration, declared, drop_computed, why_needs_no_rows
from upsert.store.definition import Definition
from upsert.store.merge_rules import is_of_field, renamed, without
from upsert.store.partitions import specified
from upsert.store.paths import Partition
from upsert.store.table_options import OPTIONS


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
        # a key that was never set is no error, one that nobody knows is
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
