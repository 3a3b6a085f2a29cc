"""The rows that a query reads, a piece at a time: of a table, some of them, and more columns of each."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from upsert.catalog.run.without_spark.source import Source
from upsert.conditions.expressions import Condition, Field, Ref, refs_of
from upsert.store.predicate import Where
from upsert.store.rows.computed import Filtered, InArrow, Input, NotInArrowError, Projected

Among = Mapping[str, pa.Array]
"""Different values of columns: rows with others, or NULL, may be left out."""


class Rows(Protocol):
    """Rows that are read when they are asked for."""

    @property
    def types(self) -> Mapping[str, pa.DataType]:
        """Of their columns."""

    def size(self, among: Among) -> int:
        """About how many bytes of files a read takes."""

    def pieces(self, names: Sequence[str], among: Among, *, ends_soon: bool) -> Iterator[pa.Table]:
        """Some columns, at least one, a piece at a time; with ``ends_soon`` only first ones are wanted.

        Raises:
            NotInArrowError: they are too many for one process, or Spark has to find them.
        """


def schema_of(rows: Rows, names: Sequence[str]) -> pa.Schema:
    """Of some columns."""
    return pa.schema([(name, rows.types[name]) for name in names])


def in_memory(
    rows: Rows,
    names: Sequence[str],
    most_bytes: int,
    among: Among | None = None,
    *,
    most: int = sys.maxsize,
) -> pa.Table:
    """Some columns of so many first rows, which take no more than so many bytes.

    Raises:
        NotInArrowError: they are too many for one process, or Spark has to find them.
    """
    parts, count, size = [schema_of(rows, names).empty_table()], 0, 0
    for piece in rows.pieces(names, among or {}, ends_soon=most < sys.maxsize):
        parts.append(piece.slice(0, most - count))
        count += parts[-1].num_rows
        size += parts[-1].nbytes
        if size > most_bytes:
            raise NotInArrowError("more rows than one process keeps")
        if count >= most:
            break
    return pa.concat_tables(parts)


@dataclass(frozen=True)
class Stored:
    """The rows of a table of which a condition of the store's is true.

    Attributes:
        columns: what they are called here, with the names that they have in the table.
        where: a list of comparisons, or several of which one must hold.
    """

    source: Source
    columns: Mapping[str, str]
    where: Where

    @property
    def types(self) -> Mapping[str, pa.DataType]:
        """Of the columns."""
        return {name: self.source.types[own] for name, own in self.columns.items()}

    def size(self, among: Among) -> int:
        """Of files that may have such rows."""
        return self.source.size(self._where(among))

    def counted(self) -> int | None:
        """How many there are; None where they must be read for it."""
        return None if self.where else self.source.counted()

    def pieces(self, names: Sequence[str], among: Among, *, ends_soon: bool) -> Iterator[pa.Table]:
        """The rows, see `Rows`."""
        needed = [self.columns[name] for name in names]
        given = Input(0, tuple((name, self.columns[name], self.types[name]) for name in names))
        step = InArrow(given, (*names,), schema_of(self, names))
        for piece in self.source.read(needed, self._where(among), ends_soon):
            yield step.rows([piece])

    def _where(self, among: Among) -> Where:
        """The condition, and that the row has one of the values."""
        more = [
            (self.columns[name], "in", values.to_pylist())
            for name, values in among.items()
            if name in self.columns and _is_looked_for(values)
        ]
        if self.source.schema is None or not more:
            return self.where
        parts = self.where if self.where and isinstance(self.where[0], list) else [self.where]
        return [[*part, *more] for part in parts]


_MOST_VALUES: Final = 10_000
_LOOKED_FOR: Final = (
    *(pa.types.is_integer, pa.types.is_string, pa.types.is_binary, pa.types.is_decimal),
    pa.types.is_boolean,
)


def _is_looked_for(values: pa.Array) -> bool:
    """Whether a reader is given values: they are few, and equal to it as they are to Spark."""
    return len(values) <= _MOST_VALUES and any(is_one(values.type) for is_one in _LOOKED_FOR)


@dataclass(frozen=True)
class Kept:
    """Those of some rows of which a condition is true."""

    rows: Rows
    condition: Condition

    @property
    def types(self) -> Mapping[str, pa.DataType]:
        """Of the columns."""
        return self.rows.types

    def size(self, among: Among) -> int:
        """Of files that are read."""
        return self.rows.size(among)

    def pieces(self, names: Sequence[str], among: Among, *, ends_soon: bool) -> Iterator[pa.Table]:
        """The rows, see `Rows`."""
        asked = sorted(ref.column for ref in refs_of(self.condition))
        needed = [*dict.fromkeys([*names, *asked])]
        given = Input(0, tuple((name, name, self.types[name]) for name in needed))
        step = InArrow(Filtered(given, self.condition, (*names,)), (*names,), schema_of(self, names))
        for piece in self.rows.pieces(needed, among, ends_soon=ends_soon):
            yield step.rows([piece])


@dataclass(frozen=True)
class Computed:
    """Rows with columns that are computed of each: their names, what they are, and the types of that."""

    rows: Rows
    columns: tuple[tuple[str, Condition, pa.DataType], ...]

    @property
    def types(self) -> Mapping[str, pa.DataType]:
        """Of all columns."""
        return {**self.rows.types, **{name: type_ for name, _, type_ in self.columns}}

    def size(self, among: Among) -> int:
        """Of files that are read."""
        return self.rows.size(among)

    def pieces(self, names: Sequence[str], among: Among, *, ends_soon: bool) -> Iterator[pa.Table]:
        """The rows, see `Rows`."""
        made = {name: value for name, value, _ in self.columns if name in names}
        asked = sorted({ref.column for value in made.values() for ref in refs_of(value)})
        own = [name for name in names if name not in made]
        needed = [*dict.fromkeys([*own, *asked])] or [*self.rows.types][:1]
        given = Input(0, tuple((name, name, self.types[name]) for name in needed))
        outputs = tuple((name, made.get(name, Field(Ref(0, name)))) for name in names)
        step = InArrow(Projected(given, outputs), (*names,), schema_of(self, names))
        for piece in self.rows.pieces(needed, among, ends_soon=ends_soon):
            yield step.rows([piece])
