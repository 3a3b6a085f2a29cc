"""A table of a join, whose columns keep the names and types that they had when the query began."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import pyarrow as pa

from deltajoin.core.deltas import Match
from upsert import types
from upsert.arrays import Ints
from upsert.schema import Column, TableSchema
from upsert.store.read.pinned_columns import PinnedColumns, PinnedWhere, unaltered
from upsert.store.read.shares import KeyShare
from upsert.store.read.snapshot import AtVersion
from upsert.store.table import Table
from upsert.store.version import Version

_UNUSED: Final = "\0"
"""Begins the name of a column that the query does not use: no column of a table can have such a name."""


class ColumnsNow(NamedTuple):
    """Some columns of the query as one definition of their table has them.

    Attributes:
        pinned: as they were when the query began.
        names: what they are called by now.
        are_same: whether they have the names and types of then.
    """

    pinned: PinnedColumns
    names: tuple[str, ...]
    are_same: bool

    def restored(self, rows: pa.Table, schema: TableSchema) -> pa.Table:
        """Rows of the columns as the definition with this schema has them, in the form that they had then."""
        return rows if self.are_same else self.pinned.restored(rows, schema)


@dataclass(frozen=True)
class PinnedSide:
    """The columns of a table that a query uses as they were when it began, whatever the table is by now."""

    table: Table
    columns: tuple[Column, ...]

    @cached_property
    def schema(self) -> TableSchema:
        """The columns of the query, without keys."""
        return TableSchema(self.columns)

    @cached_property
    def _known(self) -> dict[tuple[int, tuple[str, ...]], ColumnsNow]:
        """What was found of columns, by the version of the table's definition."""
        return {}

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The table's primary key; a column that the query does not use has a name that no column has."""
        schema = self.table.definition.schema
        return self._names_then(schema, schema.primary_key)

    @property
    def bucket_key(self) -> tuple[str, ...]:
        """The columns whose hash decides a row's bucket, named as those of ``primary_key``."""
        definition = self.table.definition
        return self._names_then(definition.schema, definition.layout.bucket_key)

    def index_for(self, columns: Sequence[str]) -> str | None:
        """What serves a lookup by these columns; None for nothing."""
        index = self.table.layout.best_index(self.names_now(columns))
        return None if index is None else index.label

    def names_now(self, columns: Sequence[str]) -> tuple[str, ...]:
        """What some columns of the query are called by now."""
        return self._now(columns).names

    def _now(self, columns: Sequence[str]) -> ColumnsNow:
        definition = self.table.definition
        known_by = definition.version, tuple(columns)
        if (found := self._known.get(known_by)) is None:
            pinned = PinnedColumns.named(self.schema, columns, f"table {self.table.name!r}")
            names, are_same = pinned.names_in(definition.schema), pinned.are_in(definition.schema)
            found = self._known[known_by] = ColumnsNow(pinned, names, are_same)
        return found

    def _read(self, columns: Sequence[str], read: Callable[[tuple[str, ...]], pa.Table]) -> pa.Table:
        """What ``read`` gives for the columns' present names, under the names and types of old."""

        def restored(schema: TableSchema) -> pa.Table:
            now = self._now(columns)
            return now.restored(read(now.names), schema)

        return unaltered(self.table, restored)

    def where_now(self, where: Any) -> Any:
        """Filters with the present names of their columns."""
        return PinnedWhere(where, self.schema, f"table {self.table.name!r}").now(self.table.schema)

    def id_of(self, column: str) -> str:
        """The field id of a column of the query."""
        return str(self.schema.column(column).id)

    def forms(self) -> list[dict[str, Column]]:
        """The columns by their names in the query, as each definition of the table has them."""
        found: list[dict[str, Column]] = []
        for version in range(self.table.definition.version, -1, -1):
            schema = self.table.published.definition_at(version).schema
            there = {column.id: column for column in schema.columns}
            if all(column.id in there for column in self.columns):
                form = {column.name: there[column.id] for column in self.columns}
                found += [] if form in found else [form]
        return found

    def changes_between(
        self,
        start: Version,
        end: Version,
        columns: Sequence[str],
        buckets: Collection[int] | None = None,
        where: Any = None,
        share: KeyShare | None = None,
    ) -> pa.Table:
        """The consolidated changes of one step, as ``Table.changes_between`` gives them.

        Those of other keys than the ``share``'s may be among them.
        """
        return self._read(
            columns,
            lambda names: self.table.changes_between(
                start,
                end,
                columns=names,
                buckets=buckets,
                where=self.where_now(where),
                share=self.share_now(share),
            ),
        )

    def share_now(self, share: KeyShare | None) -> KeyShare | None:
        """A share of keys, unless its columns have another name or type by now."""
        now = {column.id: column for column in self.table.schema.columns}
        then = [self.schema.column(name) for name in share.columns] if share is not None else []
        are_same = all((one := now.get(c.id)) and (one.name, one.type) == (c.name, c.type) for c in then)
        return share if are_same else None

    def scan(self, version: Version, columns: Sequence[str], where: Any = None) -> pa.Table:
        """The rows at a version, as ``AtVersion.scan`` gives them."""
        return self._read(columns, lambda names: self.table.at(version).scan(names, self.where_now(where)))

    def match(self, version: Version, where: Any, images: pa.Schema) -> Match:
        """Lookups at a version, among the rows for which ``where`` is true, with the types of ``images``."""
        # one look at the table for all of them, as long as it stays what it is
        known: dict[int, AtVersion] = {}

        def at_version() -> AtVersion:
            # the number comes first: an ALTER TABLE of another thread gives it to none that has older columns
            number = self.table.definition.version
            if (found := known.get(number)) is None:
                found = known[number] = self.table.at(version)
            return found

        def match(by: Sequence[str], keys: pa.Table, select: Sequence[str]) -> tuple[Ints, pa.Table]:
            def read(schema: TableSchema) -> tuple[Ints, pa.Table]:
                now = self._now(select or by)
                positions, rows = at_version().match(
                    self.names_now(by),
                    self._keys_now(by, keys),
                    select=now.names,
                    where=self.where_now(where),
                )
                return positions, now.restored(rows, schema)

            positions, rows = unaltered(self.table, read)
            chosen = rows.columns[: len(select)]
            return positions, pa.Table.from_arrays(chosen, schema=_some(images, select))

        return match

    def _keys_now(self, by: Sequence[str], keys: pa.Table) -> pa.Table:
        """Keys under the present names of their columns; those of a column that has become wider are cast."""
        now = self._now(by)
        if now.are_same:
            return keys
        arrays = []
        for name, name_now in zip(by, now.names, strict=True):
            type_, values = self.table.schema.type_of(name_now), keys.column(name)
            is_cast = values.type != type_ and types.widens(values.type, type_)
            arrays.append(values.cast(type_) if is_cast else values)
        return pa.table(arrays, names=list(now.names))

    def _names_then(self, schema: TableSchema, names: Sequence[str]) -> tuple[str, ...]:
        """What the query calls columns of a schema, which another thread may have altered since.

        One that only the store knows, as the hash of a row without key, has a name that no column has too.
        """
        numbers: dict[str, int | str] = {column.name: column.id for column in schema.columns}
        then: dict[int | str, str] = {column.id: column.name for column in self.columns}
        ids = (numbers.get(name, name) for name in names)
        return tuple(then.get(id, f"{_UNUSED}{id}") for id in ids)


def _some(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    return schema if schema.names == list(names) else pa.schema([schema.field(name) for name in names])
