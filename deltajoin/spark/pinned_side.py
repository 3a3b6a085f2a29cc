"""A table of a join, whose columns keep the names and types that they had when the query began."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa

from deltajoin.core.codes import Ints
from deltajoin.core.deltas import Match
from upsert import types
from upsert.schema import Column, TableSchema
from upsert.store.read.pinned_columns import PinnedColumns, PinnedWhere
from upsert.store.read.shares import KeyShare
from upsert.store.read.snapshot import AtVersion
from upsert.store.table import Table
from upsert.store.version import Version

_POSITION: Final = "\0position"
_UNUSED: Final = "\0"
"""Begins the name of a column that the query does not use: no column of a table can have such a name."""


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
    def _named(self) -> dict[tuple[int, tuple[str, ...]], tuple[str, ...]]:
        """What columns are called, by the version of the table's definition."""
        return {}

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The table's primary key; a column that the query does not use has a name that no column has."""
        return tuple(map(self._name_then, self.table.schema.primary_key))

    @property
    def bucket_key(self) -> tuple[str, ...]:
        """The columns whose hash decides a row's bucket, named as those of ``primary_key``."""
        return tuple(map(self._name_then, self.table.layout.bucket_key))

    def index_for(self, columns: Sequence[str]) -> str | None:
        """What serves a lookup by these columns; None for nothing."""
        index = self.table.layout.best_index(self.names_now(columns))
        return None if index is None else index.label

    def names_now(self, columns: Sequence[str]) -> tuple[str, ...]:
        """What some columns of the query are called by now."""
        definition = self.table.definition
        known_by = definition.version, tuple(columns)
        if (found := self._named.get(known_by)) is None:
            found = self._named[known_by] = self._pinned(columns).names_in(definition.schema)
        return found

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
        return self._pinned(columns).read(
            self.table,
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
        pinned = self._pinned(columns)
        return pinned.read(
            self.table, lambda names: self.table.at(version).scan(names, self.where_now(where))
        )

    def match(self, version: Version, where: Any, images: pa.Schema) -> Match:
        """Lookups at a version, among the rows for which ``where`` is true, with the types of ``images``."""
        # one look at the table for all of them, as long as it stays what it is
        known: dict[int, AtVersion] = {}

        def at_version() -> AtVersion:
            if (found := known.get(self.table.definition.version)) is None:
                found = self.table.at(version)
                known[self.table.definition.version] = found
            return found

        def match(by: Sequence[str], keys: pa.Table, select: Sequence[str]) -> tuple[Ints, pa.Table]:
            def read(names: tuple[str, ...]) -> pa.Table:
                positions, rows = at_version().match(
                    self.names_now(by), self._keys_now(by, keys), select=names, where=self.where_now(where)
                )
                return rows.append_column(_POSITION, pa.array(positions, pa.int64()))

            rows = self._pinned(select or by).read(self.table, read)
            positions = rows.column(_POSITION).to_numpy().astype(np.int64, copy=False)
            return positions, rows.select(list(select)).cast(pa.schema([images.field(n) for n in select]))

        return match

    def _pinned(self, columns: Sequence[str]) -> PinnedColumns:
        return PinnedColumns.named(self.schema, columns, f"table {self.table.name!r}")

    def _keys_now(self, by: Sequence[str], keys: pa.Table) -> pa.Table:
        """Keys under the present names of their columns; those of a column that has become wider are cast."""
        arrays = []
        for name, now in zip(by, self.names_now(by), strict=True):
            type_, values = self.table.schema.type_of(now), keys.column(name)
            is_cast = values.type != type_ and types.widens(values.type, type_)
            arrays.append(values.cast(type_) if is_cast else values)
        return pa.table(arrays, names=list(self.names_now(by)))

    def _name_then(self, now: str) -> str:
        number = self.table.schema.column(now).id
        return next((c.name for c in self.columns if c.id == number), f"{_UNUSED}{number}")
