"""The columns that a running query began with, found again whatever ALTER TABLE does meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from upsert import nested, types
from upsert.errors import SchemaError
from upsert.schema import Column, TableSchema
from upsert.store.metadata.definition import Definition
from upsert.store.predicate import Predicate, Where, parse_where

_T = TypeVar("_T")


class Alterable(Protocol):
    """A table whose definition may change at any time."""

    @property
    def definition(self) -> Definition:
        """What it is, as of the last look."""


def unaltered(table: Alterable, read: Callable[[TableSchema], _T]) -> _T:
    """What ``read`` gives for the present columns, again if they have changed meanwhile.

    Names that change while they are read may mean other columns.
    """
    while True:
        version = table.definition.version
        try:
            found = read(table.definition.schema)
        except SchemaError:
            if table.definition.version == version:
                raise
            continue
        if table.definition.version == version:
            return found


@dataclass(frozen=True)
class PinnedWhere:
    """A filter of columns as they were when a query began, under the schema of then; None for all rows."""

    where: Where | None
    schema: TableSchema
    of: str

    def now(self, schema: TableSchema) -> Where | None:
        """The filter under the columns' present names, for the same rows also where a column is wider now."""
        if self.where is None:
            return None
        filtered = parse_where(self.where, self.schema)
        names = PinnedColumns.named(self.schema, filtered.columns, self.of).names_in(schema)
        now = dict(zip(filtered.columns, names, strict=True))
        return [[(now[p.column], p.operator, _value(p)) for p in parts] for parts in filtered.alternatives]


def _value(predicate: Predicate) -> Any:
    """A value as the type of then has it: a FLOAT's 0.1 is another DOUBLE than 0.1."""
    match predicate.value:
        case None:
            return None
        case pa.Scalar() as value:
            return value.as_py()
        case values:
            return values.to_pylist()


@dataclass(frozen=True)
class PinnedColumns:
    """Some columns of a table, as they were when a query began. A renamed column is still the same one."""

    columns: tuple[Column, ...]
    of: str

    @classmethod
    def named(cls, schema: TableSchema, names: Sequence[str], of: str) -> Self:
        """These columns of a table."""
        return cls(tuple(schema.column(name) for name in names), of)

    def read(self, table: Alterable, read: Callable[[tuple[str, ...]], pa.Table]) -> pa.Table:
        """What ``read`` gives for the columns' present names, under the names and types of old.

        Columns that ``read`` adds come after them, as they are.
        """
        return unaltered(table, lambda schema: self.restored(read(self.names_in(schema)), schema))

    def restored(self, rows: pa.Table, schema: TableSchema) -> pa.Table:
        """Rows that begin with the columns as a schema has them, under the names and types of old."""
        own = len(self.columns)
        present = {column.id: column for column in schema.columns}
        columns = [
            self._cast(rows.column(n), present[column.id], column) for n, column in enumerate(self.columns)
        ]
        fields = [pa.field(c.name, c.type, nullable=c.may_be_null) for c in self.columns]
        fields += list(rows.schema)[own:]
        return pa.Table.from_arrays([*columns, *rows.columns[own:]], schema=pa.schema(fields))

    def are_in(self, schema: TableSchema) -> bool:
        """Whether a schema has the columns as they were: by name, type, NOT NULL and the fields in them."""
        present = {column.id: column for column in schema.columns}
        pairs = ((column, present.get(column.id)) for column in self.columns)
        return all(now == then and now.form == then.form for then, now in pairs if now is not None)

    def names_in(self, schema: TableSchema) -> tuple[str, ...]:
        """The columns' names by now; a `SchemaError` if one is gone."""
        names = {column.id: column.name for column in schema.columns}
        if gone := [column.name for column in self.columns if column.id not in names]:
            raise SchemaError(
                f"{self.of}: column {gone[0]!r}, which the query began with, must be there, but was dropped; "
                "start the query again without it"
            )
        return tuple(names[column.id] for column in self.columns)

    def _cast(self, values: pa.ChunkedArray, now: Column, column: Column) -> pa.ChunkedArray:
        """Values of a column as it is now, in the form that it had then."""
        if values.type != now.type:
            raise SchemaError(
                f"{self.of}: column {now.name!r} must be {types.sql_name(now.type)}, got {values.type}, for "
                "it was altered while it was read; read it again"
            )

        if values.null_count and not column.may_be_null:
            raise SchemaError(
                f"{self.of}: column {column.name!r} was NOT NULL when the query began, and now holds NULL; "
                "start the query again"
            )

        def narrowed(values: pa.Array, type_: pa.DataType) -> pa.Array:
            try:
                narrow = values.cast(type_)
            except pa.ArrowInvalid as cause:
                raise self._misfit(column, cause) from cause
            if pa.types.is_floating(type_):  # Arrow rounds without a word
                is_same = pc.or_(pc.equal(narrow.cast(values.type), values), pc.is_nan(values))
                if not pc.all(is_same).as_py() and (lost := values.filter(pc.invert(is_same))):
                    raise self._misfit(column, lost[0].as_py())
            return narrow

        try:
            return nested.reshaped_column(values, now.form, column.form, narrowed, may_lack=False)
        except nested.MissingFieldError as missing:
            name = ".".join((column.name, *missing.args[0]))
            raise SchemaError(
                f"{self.of}: field {name!r}, which the query began with, must be there, but was dropped; "
                "start the query again without it"
            ) from None

    def _misfit(self, column: Column, found: object) -> SchemaError:
        return SchemaError(
            f"{self.of}: column {column.name!r} was {types.sql_name(column.type)} when the query began, "
            f"and now holds a value that does not fit ({found}); start the query again"
        )
