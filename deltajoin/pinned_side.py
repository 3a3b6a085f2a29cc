"""A table of a join under the names and types that its columns had when the query began.

``ALTER TABLE`` may rename and widen columns while a query runs. Columns are found again by their field ids,
so the query goes on with those that it began with. Started again, it has the new names and types.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa

from deltajoin.deltas import Match
from deltajoin.row_codes import Ints
from upsert import types
from upsert.schema import Column, TableSchema
from upsert.store.pinned_columns import PinnedColumns, PinnedWhere
from upsert.store.table import Table
from upsert.store.version import Version

_POSITION: Final = "\0position"
_UNUSED: Final = "\0"
"""Begins the name of a column that the query does not use: no column of a table can have such a name."""


@dataclass(frozen=True)
class PinnedSide:
    """Some columns of a table as they were, for reads and lookups.

    Attributes:
        table: the table, whatever it is by now.
        columns: those that the query uses, as they were when it began.
    """

    table: Table
    columns: tuple[Column, ...]

    @cached_property
    def schema(self) -> TableSchema:
        """The columns of the query, without keys."""
        return TableSchema(self.columns)

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The table's primary key; a column that the query does not use has a name that no column has."""
        return tuple(map(self._name_then, self.table.schema.primary_key))

    @property
    def bucket_key(self) -> tuple[str, ...]:
        """The columns whose hash places a row, named as those of ``primary_key``."""
        return tuple(map(self._name_then, self.table.layout.bucket_key))

    def index_for(self, columns: Sequence[str]) -> str | None:
        """What serves a lookup by these columns; None for nothing."""
        index = self.table.layout.best_index(self.names_now(columns))
        return None if index is None else index.label

    def names_now(self, columns: Sequence[str]) -> tuple[str, ...]:
        """What some columns of the query are called by now.

        Raises:
            SchemaError: one has been dropped.
        """
        return self._pinned(columns).names_in(self.table.schema)

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
    ) -> pa.Table:
        """The net changes of one step, as ``Table.changes_between`` gives them.

        Raises:
            SchemaError: a column is gone, or holds a value that its type of then cannot.
        """
        return self._pinned(columns).read(
            self.table,
            lambda names: self.table.changes_between(
                start, end, columns=names, buckets=buckets, where=self._now(where)
            ),
        )

    def scan(self, version: Version, columns: Sequence[str], where: Any = None) -> pa.Table:
        """The rows at a version, as ``View.scan`` gives them.

        Raises:
            SchemaError: as `changes_between`.
        """
        pinned = self._pinned(columns)
        return pinned.read(self.table, lambda names: self.table.at(version).scan(names, self._now(where)))

    def lookup(self, version: Version, by: Sequence[str], keys: pa.Table, columns: Sequence[str]) -> pa.Table:
        """Each row that equals any of the keys once, as ``View.lookup`` gives them.

        Raises:
            SchemaError: as `changes_between`.
        """

        def read(names: tuple[str, ...]) -> pa.Table:
            view = self.table.at(version)
            return view.lookup(self.names_now(by), self._keys_now(by, keys), select=names)

        return self._pinned(columns).read(self.table, read)

    def match(self, version: Version, where: Any, images: pa.Schema) -> Match:
        """Lookups at a version, of the rows of which ``where`` is true, with the types of ``images``."""

        def match(by: Sequence[str], keys: pa.Table, select: Sequence[str]) -> tuple[Ints, pa.Table]:
            def read(names: tuple[str, ...]) -> pa.Table:
                positions, rows = self.table.at(version).match(
                    self.names_now(by), self._keys_now(by, keys), select=names, where=self._now(where)
                )
                return rows.append_column(_POSITION, pa.array(positions, pa.int64()))

            rows = self._pinned(select or by).read(self.table, read)
            positions = rows.column(_POSITION).to_numpy().astype(np.int64, copy=False)
            return positions, rows.select(list(select)).cast(pa.schema([images.field(n) for n in select]))

        return match

    def _pinned(self, columns: Sequence[str]) -> PinnedColumns:
        return PinnedColumns.named(self.schema, columns, f"table {self.table.name!r}")

    def _now(self, where: Any) -> Any:
        """Filters with the present names of their columns."""
        return PinnedWhere(where, self.schema, f"table {self.table.name!r}").now(self.table.schema)

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
