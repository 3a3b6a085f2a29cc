"""The columns that a running query began with, found again whatever ALTER TABLE does meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import pyarrow as pa

from upsert import types
from upsert.errors import SchemaError
from upsert.schema import Column, TableSchema
from upsert.store.definition import Definition


class Alterable(Protocol):
    """A table whose definition may change at any time."""

    @property
    def definition(self) -> Definition:
        """What it is, as of the last look."""


@dataclass(frozen=True)
class PinnedColumns:
    """Some columns of a table, as they were when a query began. A renamed column is still the same one.

    Attributes:
        columns: the columns, in the query's order.
        of: the table, for messages.
    """

    columns: tuple[Column, ...]
    of: str

    @classmethod
    def named(cls, schema: TableSchema, names: Sequence[str], of: str) -> Self:
        """These columns of a table."""
        return cls(tuple(schema.column(name) for name in names), of)

    def read(self, table: Alterable, read: Callable[[tuple[str, ...]], pa.Table]) -> pa.Table:
        """What ``read`` gives for the columns' present names, under the names and types of old.

        Columns that ``read`` adds come after them, as they are.

        Raises:
            SchemaError: a column is gone, or has become wider and holds a value that its old type cannot.
        """
        while True:
            version = table.definition.version
            try:
                rows = read(self.names_in(table.definition.schema))
            except SchemaError:
                if table.definition.version == version:
                    raise
                continue
            # names that changed while they were read may have meant other columns
            if table.definition.version == version:
                return self._restored(rows)

    def names_in(self, schema: TableSchema) -> tuple[str, ...]:
        """The columns' names by now.

        Raises:
            SchemaError: one is gone.
        """
        names = {column.id: column.name for column in schema.columns}
        if gone := [column.name for column in self.columns if column.id not in names]:
            raise SchemaError(
                f"{self.of}: column {gone[0]!r}, which the query began with, must be there, but was dropped; "
                "start the query again without it"
            )
        return tuple(names[column.id] for column in self.columns)

    def _restored(self, rows: pa.Table) -> pa.Table:
        own = len(self.columns)
        columns = [self._cast(rows.column(n), column) for n, column in enumerate(self.columns)]
        fields = [pa.field(c.name, c.type, nullable=c.nullable) for c in self.columns]
        schema = pa.schema([*fields, *list(rows.schema)[own:]])
        return pa.Table.from_arrays([*columns, *rows.columns[own:]], schema=schema)

    def _cast(self, values: pa.ChunkedArray, column: Column) -> pa.ChunkedArray:
        if values.type == column.type:
            return values
        try:
            return values.cast(column.type)
        except pa.ArrowInvalid as cause:
            raise SchemaError(
                f"{self.of}: column {column.name!r} was {types.sql_name(column.type)} when the query began, "
                f"and now holds a value that does not fit ({cause}); start the query again"
            ) from cause
