"""What a table's schema and bucket options mean on disk: stored columns, keys and lookup indexes (pure).

A table with a primary key stores its columns; a row's identity is the key. A table without one is a multiset:
it stores each distinct row once, with the 128-bit hash of the whole row as its key and a count (FLIP-188).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upsert import nested
from upsert.errors import CorruptTableError, SchemaError
from upsert.schema import Column, FieldId, TableSchema, form_of
from upsert.store.checksums import checksum_of
from upsert.store.files.formats.base import FileForm, without_columns
from upsert.store.rows.hashing import Hashes, bucket_of, hash_columns
from upsert.store.rows.keys import is_integer_like
from upsert.store.rows.merge_rules import PLAIN, MergeRules

KIND_COLUMN: Final = "_kind"
"""Column of a data file with deletions: 0 = the row is there, 1 = the key is deleted.

No column of a table has this name, so what goes beside a table's columns in memory has it too.
"""

ROW_HASH_COLUMN: Final = "_row_hash"
"""Key of a table without primary key: the canonical hash of the whole row."""

COUNT_COLUMN: Final = "_count"
"""How many equal rows a table without primary key has (in one file: how many it adds or takes away)."""

PRIMARY_KEY: Final = "PRIMARY KEY"


@dataclass(frozen=True)
class LookupIndex:
    """One way to find rows: by the primary key, by its first columns, or by a secondary index.

    ``name`` names its columns in the sidecar file: that of a secondary index tells field ids, so that no
    reader takes it for one of other columns that had its label once. ``label`` is what users read;
    ``is_unique`` says that a key has one current row at most.
    """

    name: str
    columns: tuple[str, ...]
    label: str
    is_unique: bool = False


@dataclass(frozen=True)
class Layout:
    """Physical form of a table; made by ``Layout.of``, equal wherever it is made again.

    Attributes:
        buckets: number of buckets within a partition.
        bucket_key: columns whose hash gives a row's bucket.
        key: columns that identify a row within the files, in sort order.
        is_counted: whether the table has no primary key, so that files hold rows and counts.
        stored: Arrow schema of a data file without ``_kind``; all columns may be NULL there, for a deletion
            need not carry more than its key.
        indexes: the lookup indexes that every data file has, the one of ``key`` first.
        version: version of the table's definition whose form this is.
    """

    schema: TableSchema
    buckets: int
    bucket_key: tuple[str, ...]
    key: tuple[str, ...]
    is_counted: bool
    stored: pa.Schema
    indexes: tuple[LookupIndex, ...]
    version: int = 0
    merge: MergeRules = PLAIN
    file_form: FileForm = field(default_factory=FileForm)

    @classmethod
    def of(
        cls,
        schema: TableSchema,
        buckets: int = 1,
        bucket_key: tuple[str, ...] = (),
        version: int = 0,
        merge: MergeRules = PLAIN,
        file_form: FileForm | None = None,
    ) -> Self:
        """The layout of a table; an empty ``bucket_key`` is the primary key, or the whole row without one."""
        _check_columns(schema)
        fields = [pa.field(c.name, c.type) for c in schema.columns]
        if not schema.primary_key:
            fields += [pa.field(ROW_HASH_COLUMN, pa.binary(16)), pa.field(COUNT_COLUMN, pa.int64())]
        key = schema.primary_key or (ROW_HASH_COLUMN,)
        return cls(
            schema=schema,
            buckets=buckets,
            bucket_key=bucket_key or key,
            key=key,
            is_counted=not schema.primary_key,
            stored=pa.schema(fields),
            indexes=_indexes(schema, key),
            version=version,
            merge=merge,
            file_form=file_form or FileForm(),
        )

    def with_buckets(self, count: int) -> Self:
        """The same form with another number of buckets."""
        return self if count == self.buckets else replace(self, buckets=count)

    def lookup_index(self, name: str) -> LookupIndex:
        """The index of this name."""
        return next(index for index in self.indexes if index.name == name)

    def best_index(self, columns: Collection[str]) -> LookupIndex | None:
        """The index to search for a lookup by these columns; None if none is within them.

        The primary key, else an index whose keys have one row, else the one with most columns.
        """
        within = [index for index in self.indexes if set(index.columns) <= set(columns)]
        if within and within[0].name == "pk":
            return within[0]
        return max(within, key=lambda index: (index.is_unique, len(index.columns)), default=None)

    @cached_property
    def is_searched_by_key(self) -> bool:
        """Whether files are sorted by one integer-like column, so that it can be searched itself."""
        return len(self.key) == 1 and is_integer_like(self.stored.field(self.key[0]).type)

    @cached_property
    def identity(self) -> int:
        """Tells this form from any other of the table: a version may be given twice.

        That of an ALTER TABLE which was refused is the next one's, and those after an older copy of the table
        are given again where it was restored.
        """
        columns = with_ids(self).serialize().to_pybytes()
        return checksum_of(columns + repr((self.version, self.indexes)).encode())

    @cached_property
    def fields(self) -> Mapping[str, pa.Field]:
        """What the table declares of each column that files have, by name."""
        return {field.name: field for field in (*self.stored, *self.schema.arrow)}

    def declared(self, names: Iterable[str]) -> pa.Schema:
        """The schema of some columns, as the table declares them."""
        return pa.schema([self.fields[name] for name in names])

    def key_hashes(self, rows: pa.Table | pa.RecordBatch) -> Hashes:
        """Hash of the key of each stored row: what the sidecar's ``pk`` index is sorted by."""
        return hash_columns([rows.column(name) for name in self.key], rows.num_rows)

    def buckets_of(self, rows: pa.Table | pa.RecordBatch) -> npt.NDArray[np.int64]:
        """Bucket of each stored row, within its partition."""
        if self.buckets == 1:
            return np.zeros(rows.num_rows, dtype=np.int64)
        hashes = hash_columns([rows.column(name) for name in self.bucket_key], rows.num_rows)
        return bucket_of(hashes, self.buckets)


def _indexes(schema: TableSchema, key: tuple[str, ...]) -> tuple[LookupIndex, ...]:
    prefixes = [key[:length] for length in range(1, len(key))]
    secondary: dict[str, LookupIndex] = {}
    # of two over the same columns, one is enough: a unique one
    for index in sorted(schema.indexes, key=lambda one: not one.unique):
        label = f"UNIQUE {index.name}" if index.unique else index.name
        name = "_".join(("index", *(str(schema.column(name).id) for name in index.columns)))
        secondary.setdefault(name, LookupIndex(name, index.columns, label, index.unique))
    return (
        LookupIndex("pk", key, PRIMARY_KEY, is_unique=True),
        *(LookupIndex(f"prefix_{len(p)}", p, f"{PRIMARY_KEY} prefix ({', '.join(p)})") for p in prefixes),
        *secondary.values(),
    )


def _check_columns(schema: TableSchema) -> None:
    if schema.metadata:
        raise SchemaError(
            f"a METADATA column is never stored, got {schema.metadata[0].name!r}; see "
            "row_metadata.with_metadata_aside"
        )
    reserved = {KIND_COLUMN} if schema.primary_key else {KIND_COLUMN, ROW_HASH_COLUMN, COUNT_COLUMN}
    for name in schema.names:
        if name in reserved:
            raise SchemaError(f"column name {name!r} is used inside the table's files; choose another")


_ID: Final = b"id"
_FIELDS: Final = b"fields"
_COUNTED: Final = frozenset({ROW_HASH_COLUMN, COUNT_COLUMN})
_INTERNAL: Final = _COUNTED | {KIND_COLUMN}


def with_ids(layout: Layout) -> pa.Schema:
    """``layout.stored`` with the field id of each column of the table, as files have it."""
    said = {column.name: _said(column) for column in layout.schema.columns}
    return pa.schema([f.with_metadata(said[f.name]) if f.name in said else f for f in layout.stored])


def _said(column: Column) -> dict[bytes | str, bytes | str]:
    """What a file says of a column beside name and type."""
    said: dict[bytes | str, bytes | str] = {_ID: str(column.id)}
    if column.fields:
        said[_FIELDS] = json.dumps([one.to_json() for one in column.fields])
    return said


@dataclass(frozen=True)
class Projection:
    """Which column of rows that were stored under an older definition each column of a layout is.

    Columns are found by their field ids, which files keep beside the names: one that the file lacks has the
    value of older rows, one that the table lacks is not seen, a widened one is cast. A name means nothing.

    Attributes:
        layout: the form that rows are wanted in.
        sources: column of the layout -> column of the rows; without one it is of older rows.
        converted: the form that columns have in the rows, where it is another one.
        is_same: whether the rows have the layout's form already.
    """

    layout: Layout
    sources: Mapping[str, str]
    converted: Mapping[str, nested.Form] = field(default_factory=dict)
    is_same: bool = False

    @classmethod
    def same(cls, layout: Layout) -> Self:
        """The projection of rows that have the layout's form."""
        return cls(layout, {name: name for name in layout.stored.names}, is_same=True)

    @classmethod
    def of(cls, found: pa.Schema, layout: Layout, what: str) -> Self:
        """The projection of rows whose schema has field ids, but for columns whose names files need."""
        by_id = {_id_of(field, what): field for field in found if _ID in (field.metadata or {})}
        sources = {name: name for name in layout.stored.names if name in _COUNTED and name in found.names}
        converted: dict[str, nested.Form] = {}
        for column in layout.schema.physical:
            if (stored := by_id.get(column.id)) is None:
                continue
            sources[column.name] = stored.name
            form = form_of(stored.type, _fields_of(stored, what))
            if nested.is_same_form(form, column.form):
                continue
            if not nested.follows(form, column.form):
                raise _damaged(what, f"column {column.name!r} in a type within {column.type}", stored.type)
            converted[column.name] = form
        unknown = [f.name for f in found if _ID not in (f.metadata or {}) and f.name not in _INTERNAL]
        if len(by_id) + sum(f.name in _INTERNAL for f in found) != len(found) or unknown:
            raise _damaged(what, "columns with different field ids", ", ".join(found.names))
        if missing := [name for name in layout.key if name not in sources or name in converted]:
            raise _damaged(what, f"key column {missing[0]!r}", ", ".join(found.names))
        return cls(layout, sources, converted)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all stored columns of the layout."""
        return tuple(self.layout.stored.names)

    def converts(self, columns: Collection[str]) -> bool:
        """Whether values of some of these columns are cast."""
        return not self.converted.keys().isdisjoint(columns)

    def needed(self, names: Sequence[str]) -> list[str]:
        """The columns of the rows that some of the layout's columns are made of."""
        return list(dict.fromkeys(self.sources[name] for name in names if name in self.sources))

    def apply(self, rows: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
        """Some of the layout's columns, in this order, of rows that have the columns needed for them."""
        if self.is_same:
            return rows.select(names)
        if not names:
            return without_columns(rows.num_rows)
        schema = pa.schema([self.layout.stored.field(name) for name in names])
        return pa.RecordBatch.from_arrays([self._column(rows, field) for field in schema], schema=schema)

    def _column(self, rows: pa.RecordBatch, field: pa.Field) -> pa.Array:
        if field.name not in self.sources:
            return self.layout.schema.column(field.name).in_older_rows(rows.num_rows)
        found = rows.column(self.sources[field.name])
        if (form := self.converted.get(field.name)) is None:
            return found
        return nested.reshaped(found, form, self.layout.schema.column(field.name).form)


def _fields_of(field: pa.Field, what: str) -> tuple[FieldId, ...]:
    try:
        return tuple(FieldId.from_json(one) for one in json.loads(field.metadata.get(_FIELDS, b"[]")))
    except (ValueError, TypeError, LookupError) as cause:
        raise _damaged(what, f"the ids of fields of column {field.name!r}", cause) from cause


def _id_of(field: pa.Field, what: str) -> int:
    text = field.metadata[_ID]
    if not text.isdigit():
        raise _damaged(what, "field ids", repr(text))
    return int(text)


def _damaged(what: str, expected: str, found: object) -> CorruptTableError:
    return CorruptTableError(f"{what} must have {expected}, got {found}; restore the file from a copy")
