"""Changes of what a table declares of its columns, and what each makes of a definition (pure).

Computed columns and the watermark belong to reads, so no file knows them. An index belongs to files: those
that are there build it in memory when they are opened, until a compaction writes them anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from upsert.errors import SchemaError
from upsert.schema import Column, ComputedColumn, Index, TableSchema, Watermark
from upsert.store.definition import Definition
from upsert.store.row_metadata import with_metadata_aside


@dataclass(frozen=True)
class AddIndex:
    """One more index. A UNIQUE one only while the table has no rows, which nobody has compared."""

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


_RULES: Final[Mapping[type, Callable[[TableSchema, Any], TableSchema]]] = {
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
        return replace(definition, schema=_RULES[type(change)](definition.schema, change))
    except SchemaError as cause:
        raise SchemaError(f"{definition.owner}: ALTER TABLE: {cause}") from None


def why_needs_no_rows(old: TableSchema, new: TableSchema) -> str | None:
    """Why what is declared needs a table without rows; None if it does not."""
    there = {(index.columns, index.unique) for index in old.indexes}
    for index in new.indexes:
        if index.unique and (index.columns, True) not in there and not _is_renamed(index, old, new):
            return f"{index} is a promise that nobody has checked for the rows that are there"
    return None


def _is_renamed(index: Index, old: TableSchema, new: TableSchema) -> bool:
    """Whether the index was there under other names of its columns."""
    ids = [new.column(name).id for name in index.columns]
    return any([old.column(name).id for name in one.columns] == ids for one in old.indexes if one.unique)
