"""Rows that Arrow computes of others as a plan of Spark's says: what is of each row by itself (pure).

Each expression is a condition of `upsert.conditions.evaluate`, which gives what Spark gives. The planner
reads plans and makes these values; who has them needs no planner and no Spark. See docs/decisions/0092 and
0105.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from upsert.arrays import Positions, one_array
from upsert.conditions.evaluate import as_mask, value
from upsert.conditions.expressions import Condition
from upsert.errors import SchemaError
from upsert.store.rows.hashing import hash_columns


class NotInArrowError(ValueError):
    """Spark has to compute it; the text says what."""


@dataclass(frozen=True)
class Hash:
    """Spark's ``xxhash64`` of some expressions."""

    args: tuple[Condition, ...]


@dataclass(frozen=True)
class Rows:
    """Columns of some rows, by the names that they have here; ``known`` are values of expressions."""

    columns: Mapping[str, pa.Array]
    count: int
    known: dict[int, pa.Array] = field(default_factory=dict)

    def value(self, condition: Condition | Hash) -> pa.Array:
        """An expression's value for each row."""
        if isinstance(condition, Hash):
            hashes = hash_columns([self.value(arg) for arg in condition.args], self.count)
            return pa.array(hashes.view(np.int64))
        return value(condition, lambda ref: self.columns[ref.column], self.count, self.known)

    def take(self, at: Positions, names: Sequence[str]) -> Rows:
        """Some of the rows, with these columns."""
        taken = pa.array(at)
        return Rows({name: self.columns[name].take(taken) for name in names}, len(at))


class Step(Protocol):
    """A node of a plan."""

    def rows(self, inputs: Sequence[pa.Table]) -> Rows:
        """The rows of some inputs."""


@dataclass(frozen=True)
class Input:
    """The columns that are needed of an input: their names here and there, and their types."""

    number: int
    columns: tuple[tuple[str, str, pa.DataType], ...]

    def rows(self, inputs: Sequence[pa.Table]) -> Rows:
        """Those of some inputs."""
        given = inputs[self.number]
        found = {}
        for name, own, type_ in self.columns:
            column = one_array(given.column(own))
            found[name] = column if column.type == type_ else column.cast(type_)
        return Rows(found, given.num_rows)


@dataclass(frozen=True)
class Filtered:
    """The rows for which a condition is true, with the columns that are needed above."""

    child: Step
    condition: Condition
    names: tuple[str, ...]

    def rows(self, inputs: Sequence[pa.Table]) -> Rows:
        """Those of some inputs."""
        rows = self.child.rows(inputs)
        kept = as_mask(rows.value(self.condition))
        return rows if kept.all() else rows.take(np.flatnonzero(kept), self.names)


@dataclass(frozen=True)
class Projected:
    """Columns computed of each row."""

    child: Step
    outputs: tuple[tuple[str, Condition | Hash], ...]

    def rows(self, inputs: Sequence[pa.Table]) -> Rows:
        """Those of some inputs."""
        rows = self.child.rows(inputs)
        return Rows({name: rows.value(condition) for name, condition in self.outputs}, rows.count)


@dataclass(frozen=True)
class Chosen:
    """Some columns of the rows of one input, by their positions, under other names."""

    positions: tuple[int, ...]
    names: tuple[str, ...]

    def rows(self, inputs: Sequence[pa.Table]) -> pa.Table:
        """Those of some rows."""
        (given,) = inputs
        return given.select(list(self.positions)).rename_columns(list(self.names))


@dataclass(frozen=True)
class InArrow:
    """A plan that Arrow computes.

    Attributes:
        step: what gives its rows.
        names: their columns, by the names that these have here.
        schema: of the rows that come out.
    """

    step: Step
    names: tuple[str, ...]
    schema: pa.Schema

    def rows(self, inputs: Sequence[pa.Table]) -> pa.Table:
        """What it gives of some rows, for each input.

        Raises:
            NotInArrowError: Spark has to compute it, and may say that it cannot be computed.
        """
        try:
            found = self.step.rows(inputs)
            columns = [found.columns[name] for name in self.names]
            if [column.type for column in columns] != self.schema.types:  # a table would cast them
                raise NotInArrowError("columns of other types than Spark's")
            return pa.Table.from_arrays(columns, schema=self.schema)
        except (SchemaError, pa.ArrowException, MemoryError) as cause:  # also of types that a kernel lacks
            raise NotInArrowError(str(cause)) from cause
