"""Signed rows of one table, and rows of a join before they are put together (pure).

A row of a join of several tables is a row of positions, one for each table, so that attaching one more table,
filtering and consolidating move eight bytes a table, and columns are taken once, when they come out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from deltajoin.core.keys import common_key_type
from deltajoin.core.plans import Equal, Source
from deltajoin.expressions import Ref
from upsert.arrays import Ints, Mask, one_array, taken, taken_rows
from upsert.rowkind import ROW_KIND_COLUMN, SIGNS, places
from upsert.store.rows.codes import codes_of_keys

Kinds = npt.NDArray[np.int8]
"""Positions in ``upsert.rowkind.every_kind()``."""

Signs = npt.NDArray[np.int8]


@dataclass(frozen=True)
class Changes:
    """Changes of one table: its selected columns with ``_row_kind`` last."""

    rows: pa.Table

    @property
    def images(self) -> pa.Table:
        """The rows without their kinds."""
        return self.rows.drop_columns([ROW_KIND_COLUMN])

    @cached_property
    def kinds(self) -> Kinds:
        """Kind of each row."""
        return places(self.rows.column(ROW_KIND_COLUMN))

    @cached_property
    def signs(self) -> Signs:
        """Sign of each row."""
        return SIGNS[self.kinds]

    def take(self, positions: Ints) -> Changes:
        """The rows at these positions."""
        return Changes(taken_rows(self.rows, positions))

    def where(self, mask: Mask) -> Changes:
        """The rows for which the mask is true."""
        return self if mask.all() else self.take(np.flatnonzero(mask))


PROBE: Final = -1
"""Number of the pseudo-table of the keys of a lookup; its columns are named 0, 1, …."""

PADDED: Final = -1
"""Position of a missing part: the row has NULLs instead."""

Marks = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class TablePart:
    """What one table has in the rows: ``rows`` and, for each row, a position in them or ``PADDED``.

    ``is_whole`` says that it has each of them once, in their order.
    """

    rows: pa.Table
    at: Ints
    may_be_padded: bool = False
    is_whole: bool = False

    @classmethod
    def all_of(cls, rows: pa.Table) -> TablePart:
        """Each row once."""
        return cls(rows, np.arange(rows.num_rows), is_whole=True)

    def take(self, positions: Ints) -> TablePart:
        """The part of some of the rows."""
        return TablePart(self.rows, self.at[positions], self.may_be_padded)

    def compact(self) -> TablePart:
        """The same part, without holding many other rows in memory."""
        if self.rows.num_rows <= 4 * len(self.at):
            return self
        used, at = np.unique(self.at, return_inverse=True)
        missing = int(len(used) and used[0] < 0)
        return TablePart(taken_rows(self.rows, used[missing:]), at - missing, self.may_be_padded)

    @property
    def values(self) -> pa.Table:
        """The rows' own columns; NULL where the part is padded."""
        return self.rows.take(self.positions) if self.may_be_padded else taken_rows(self.rows, self.at)

    @property
    def positions(self) -> pa.Array:
        """Positions as Arrow takes them: NULL where the part is padded."""
        return pa.array(self.at, mask=self.at < 0) if self.may_be_padded else pa.array(self.at)


@dataclass(frozen=True)
class Bundle:
    """Rows of a join of some tables, their parts by table; kinds mean nothing in looked up rows.

    Marks say for each row whether another table's changes may play a part: `deltajoin.core.consolidate`.
    """

    parts: Mapping[int, TablePart]
    kinds: Kinds
    marks: Marks

    @classmethod
    def of(cls, parts: Mapping[int, TablePart], kinds: Kinds | None = None) -> Bundle:
        """Rows without marks."""
        count = len(next(iter(parts.values())).at)
        return cls(parts, np.zeros(count, np.int8) if kinds is None else kinds, np.zeros(count, np.uint8))

    def __len__(self) -> int:
        return len(self.kinds)

    @property
    def signs(self) -> Signs:
        """Sign of each row."""
        return SIGNS[self.kinds]

    def take(self, positions: Ints) -> Bundle:
        """Some of the rows."""
        parts = {table: part.take(positions) for table, part in self.parts.items()}
        return Bundle(parts, self.kinds[positions], self.marks[positions])

    def where(self, mask: Mask) -> Bundle:
        """The rows for which the mask is true."""
        return self if mask.all() else self.take(np.flatnonzero(mask))

    def only(self, tables: Iterable[int]) -> Bundle:
        """The rows with the parts of these tables alone."""
        return replace(self, parts={table: self.parts[table] for table in tables})

    def beside(self, other: Bundle, at: Ints) -> Bundle:
        """These rows with the parts of as many others, at these positions; kinds and marks are their own."""
        parts = {table: part.take(at) for table, part in other.parts.items() if table != PROBE}
        return replace(self, parts={**self.parts, **parts})

    def padded(self, tables: Iterable[int], schemas: Mapping[int, pa.Schema]) -> Bundle:
        """The rows with NULLs in place of these tables' parts."""
        nothing = np.full(len(self), PADDED)
        pads = {
            table: TablePart(schemas[table].empty_table(), nothing, may_be_padded=True) for table in tables
        }
        return replace(self, parts={**self.parts, **pads})

    def compact(self) -> Bundle:
        """The same rows, without holding many others in memory."""
        parts = {table: part.compact() for table, part in self.parts.items() if table != PROBE}
        return replace(self, parts=parts)

    def column(self, source: Source) -> pa.Array:
        """Values of a column, or of the n-th key of a probe."""
        table, name = (PROBE, str(source)) if isinstance(source, int) else (source.table, source.column)
        part = self.parts[table]
        values = one_array(part.rows.column(name))
        if part.is_whole:
            return values
        return values.take(part.positions) if part.may_be_padded else taken(values, part.at)


def concatenated(bundles: Sequence[Bundle]) -> Bundle:
    """All rows of at least one bundle, of the same tables each."""
    if len(bundles) == 1:
        return bundles[0]
    parts = {table: _joined([bundle.parts[table] for bundle in bundles]) for table in bundles[0].parts}
    kinds = np.concatenate([bundle.kinds for bundle in bundles])
    return Bundle(parts, kinds, np.concatenate([bundle.marks for bundle in bundles]))


def _joined(parts: Sequence[TablePart]) -> TablePart:
    tables = {id(part.rows): part.rows for part in parts}
    starts = dict(zip(tables, np.cumsum([0, *(rows.num_rows for rows in tables.values())]), strict=False))
    at = [np.where(part.at < 0, PADDED, part.at + starts[id(part.rows)]) for part in parts]
    # A padded part has all columns, others may have been looked up with those alone that are needed.
    names = min((rows.column_names for rows in tables.values()), key=len)
    rows = pa.concat_tables([rows.select(names) for rows in tables.values()]).combine_chunks()
    return TablePart(rows, np.concatenate(at), any(part.may_be_padded for part in parts))


def equal_keys(rows: Bundle, equal: Equal) -> Mask:
    """Rows whose values are equal in all these pairs, as join keys are: NULL is equal to nothing."""
    masks = [_are_equal(rows.column(one), rows.column(other)) for one, other in equal]
    return reduce(np.logical_and, masks, np.ones(len(rows), np.bool_))


def _are_equal(one: pa.Array, other: pa.Array) -> Mask:
    common = common_key_type(one.type, other.type)
    codes = codes_of_keys([pa.concat_arrays([one.cast(common), other.cast(common)])])
    both: Mask = pc.and_(one.is_valid(), other.is_valid()).to_numpy(zero_copy_only=False)
    is_equal: Mask = both & (codes[: len(one)] == codes[len(one) :])
    return is_equal


def keys_of(rows: Bundle, sources: Sequence[Ref | int]) -> pa.Table:
    """Values of the sources as a table of keys, columns named 0, 1, …."""
    return pa.table({str(number): rows.column(source) for number, source in enumerate(sources)})
