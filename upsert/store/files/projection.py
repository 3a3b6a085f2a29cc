"""Rows that were stored under an older definition of a table, as rows of the present one (pure).

Columns are found by their field ids, which files keep beside the names: one that the file lacks is NULL, one
that the table lacks is not seen, a widened one is cast, and a name means nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

import pyarrow as pa

from upsert import types
from upsert.errors import CorruptTableError
from upsert.store.rows.layout import COUNT_COLUMN, KIND_COLUMN, ROW_HASH_COLUMN, Layout

_ID: Final = b"id"
_INTERNAL: Final = frozenset({ROW_HASH_COLUMN, COUNT_COLUMN})


def with_ids(layout: Layout) -> pa.Schema:
    """``layout.stored`` with the field id of each column of the table, as files have it."""
    ids = {column.name: column.id for column in layout.schema.columns}
    fields = [f.with_metadata({_ID: str(ids[f.name])}) if f.name in ids else f for f in layout.stored]
    return pa.schema(fields)


@dataclass(frozen=True)
class Projection:
    """Which column of some stored rows each column of a layout is.

    Attributes:
        layout: the form that rows are wanted in.
        sources: column of the layout -> column of the rows; without one it is NULL.
        converted: columns whose values are of a narrower type in the rows.
        is_same: whether the rows have the layout's form already.
    """

    layout: Layout
    sources: Mapping[str, str]
    converted: frozenset[str] = frozenset()
    is_same: bool = False

    @classmethod
    def same(cls, layout: Layout) -> Self:
        """The projection of rows that have the layout's form."""
        return cls(layout, {name: name for name in layout.stored.names}, is_same=True)

    @classmethod
    def of(cls, found: pa.Schema, layout: Layout, what: str) -> Self:
        """The projection of rows with this schema, which has field ids.

        Args:
            found: schema of the rows; columns without an id count if the layout needs their names itself.
            layout: the form that is wanted.
            what: what the rows belong to, for messages.

        Raises:
            CorruptTableError: ids repeat, a key is missing, or a column's values cannot be the layout's.
        """
        by_id = {_id_of(field, what): field for field in found if _ID in (field.metadata or {})}
        sources = {name: name for name in layout.stored.names if name in _INTERNAL and name in found.names}
        converted = set()
        for column in layout.schema.physical:
            if (field := by_id.get(column.id)) is None:
                continue
            sources[column.name] = field.name
            if field.type != column.type:
                if not types.widens(field.type, column.type):
                    raise _damaged(what, f"column {column.name!r} in a type within {column.type}", field.type)
                converted.add(column.name)
        unknown = [f.name for f in found if _ID not in (f.metadata or {}) and f.name not in _OWN]
        if len(by_id) + sum(f.name in _OWN for f in found) != len(found) or unknown:
            raise _damaged(what, "columns with different field ids", ", ".join(found.names))
        if missing := [name for name in layout.key if name not in sources or name in converted]:
            raise _damaged(what, f"key column {missing[0]!r}", ", ".join(found.names))
        return cls(layout, sources, frozenset(converted))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all stored columns of the layout."""
        return tuple(self.layout.stored.names)

    def converts(self, columns: Collection[str]) -> bool:
        """Whether values of some of these columns are cast."""
        return not self.converted.isdisjoint(columns)

    def needed(self, names: Sequence[str]) -> list[str]:
        """The columns of the rows that some of the layout's columns are made of."""
        return list(dict.fromkeys(self.sources[name] for name in names if name in self.sources))

    def apply(self, rows: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
        """Some of the layout's columns, in this order, of rows that have the columns needed for them."""
        if self.is_same:
            return rows.select(names)
        return self._from([(name, self._column(rows, name)) for name in names], rows.num_rows)

    def _column(self, rows: pa.RecordBatch, name: str) -> pa.Array:
        type_ = self.layout.stored.field(name).type
        if name not in self.sources:
            return pa.nulls(rows.num_rows, type_)
        found = rows.column(self.sources[name])
        return found.cast(type_) if name in self.converted else found

    def _from(self, columns: Sequence[tuple[str, pa.Array]], length: int) -> pa.RecordBatch:
        schema = pa.schema([self.layout.stored.field(name) for name, _ in columns])
        if not columns:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * length, pa.struct([])))
        return pa.RecordBatch.from_arrays([array for _, array in columns], schema=schema)


_OWN: Final = _INTERNAL | {KIND_COLUMN}


def _id_of(field: pa.Field, what: str) -> int:
    text = field.metadata[_ID]
    if not text.isdigit():
        raise _damaged(what, "field ids", repr(text))
    return int(text)


def _damaged(what: str, expected: str, found: object) -> CorruptTableError:
    return CorruptTableError(f"{what} must have {expected}, got {found}; restore the file from a copy")
