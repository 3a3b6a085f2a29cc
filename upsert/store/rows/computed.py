"""Rows that Arrow computes of others as Spark does: of each by itself, and the first in an order (pure).

Each expression is a condition of `upsert.conditions.evaluate`, which gives what Spark gives. The planner
reads plans and makes these values; who has them needs no planner and no Spark. See docs/decisions/0092 and
0105. The catalog makes them of texts that need no Spark, see `upsert.catalog.run.without_spark`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert.arrays import Positions, is_null, one_array
from upsert.conditions.evaluate import as_mask, value
from upsert.conditions.expressions import Condition
from upsert.errors import SchemaError
from upsert.store.rows.hashing import hash_columns
from upsert.store.rows.keys import as_key, orderable


class NotInArrowError(ValueError):
    """Spark has to compute it; the text says what."""


@contextmanager
def computing() -> Iterator[None]:
    """A block of which an error is no answer, also one of types that a kernel of Arrow's lacks."""
    try:
        yield
    except (SchemaError, pa.ArrowException, MemoryError) as cause:
        raise NotInArrowError(str(cause)) from cause


@dataclass(frozen=True)
class Hash:
    """Spark's ``xxhash64`` of some expressions."""

    args: tuple[Condition, ...]


@dataclass(frozen=True)
class Rows:
    """Columns of some rows, by the names that they have here; ``known`` are values of expressions.

    ``told`` are figures of these rows, or of those that they come from, by their names.
    """

    columns: Mapping[str, pa.Array]
    count: int
    known: dict[int, pa.Array] = field(default_factory=dict)
    told: Mapping[str, pa.Array] = field(default_factory=dict)

    def value(self, condition: Condition | Hash) -> pa.Array:
        """An expression's value for each row."""
        if isinstance(condition, Hash):
            hashes = hash_columns([self.value(arg) for arg in condition.args], self.count)
            return pa.array(hashes.view(np.int64))
        return value(condition, lambda ref: self.columns[ref.column], self.count, self.known)

    def take(self, at: Positions, names: Sequence[str]) -> Rows:
        """Some of the rows, with these columns."""
        taken = pa.array(at)
        return Rows({name: self.columns[name].take(taken) for name in names}, len(at), told=self.told)


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
        columns = {name: rows.value(condition) for name, condition in self.outputs}
        return Rows(columns, rows.count, told=rows.told)


@dataclass(frozen=True)
class First:
    """The first rows by an order; all of them, in it, for None."""

    child: Step
    orders: tuple[tuple[Condition, bool, bool], ...]
    count: int | None
    names: tuple[str, ...]

    def rows(self, inputs: Sequence[pa.Table]) -> Rows:
        """Those of some inputs."""
        rows = self.child.rows(inputs)
        return rows.take(self._order(rows)[: self.count], self.names)

    def _order(self, rows: Rows) -> Positions:
        if not self.orders:
            return np.arange(rows.count)
        columns: dict[str, pa.Array] = {}
        directions: list[tuple[str, str]] = []
        for number, (condition, is_ascending, are_nulls_first) in enumerate(self.orders):
            values = as_key(rows.value(condition))  # -0.0 and 0.0 are equal here: what comes next decides
            columns[f"known_{number}"] = values.is_valid().cast(pa.int8())
            columns[f"value_{number}"] = orderable(values)
            directions += [
                (f"known_{number}", "ascending" if are_nulls_first else "descending"),
                (f"value_{number}", "ascending" if is_ascending else "descending"),
            ]
        order: Positions = pc.sort_indices(pa.table(columns), directions).to_numpy().astype(np.int64)
        return order


_MOST: Final = (1 << 63) - 1


@dataclass(frozen=True)
class Figure:
    """A figure of some rows, the same in whichever order Spark comes to them.

    Attributes:
        function: "count", of rows whose values are all known, or "sum", "min" or "max" of one value; "sum at
            most" is what a sum may come to on the way.
    """

    function: str
    values: tuple[Condition, ...]

    def of(self, rows: Rows) -> pa.Array:
        """The figure, NULL for none."""
        values = [rows.value(one) for one in self.values]
        if self.function == "count":
            known = [~is_null(one) for one in values if one.null_count]
            count = int(np.logical_and.reduce(known).sum()) if known else rows.count
            return pa.array([count], pa.int64())
        (column,) = values
        if self.function == "sum at most":
            ends = pc.min_max(column).as_py().values()
            most = max((abs(end) for end in ends if end is not None), default=0)
            return self.merged(pa.array([min(most * len(column), _MOST)]))
        return self.merged(column)

    def merged(self, parts: pa.Array) -> pa.Array:
        """The figure of all rows from the figures of parts of them.

        Raises:
            NotInArrowError: a sum may overflow on the way, by the order in which Spark comes to the rows.
        """
        if self.function in ("min", "max"):
            return pa.repeat(pc.min_max(parts)[self.function], 1)
        if self.function == "sum at most" and sum(parts.to_pylist()) >= _MOST:
            raise NotInArrowError("a sum that may overflow on the way")
        return pa.repeat(pc.sum(parts.cast(pa.int64())), 1)


@dataclass(frozen=True)
class Observed:
    """The rows of another step; their figures are told by name."""

    child: Step
    figures: tuple[tuple[str, Figure], ...]

    def rows(self, inputs: Sequence[pa.Table]) -> Rows:
        """Those of some inputs."""
        rows = self.child.rows(inputs)
        return replace(rows, told={**rows.told, **{name: figure.of(rows) for name, figure in self.figures}})


@dataclass(frozen=True)
class Observation:
    """What Spark tells of rows that are observed, computed of figures."""

    figures: tuple[tuple[str, Figure], ...]
    outputs: tuple[tuple[str, Condition | Hash], ...]
    schema: pa.Schema

    def row(self, told: pa.Table) -> pa.Table:
        """The one row of it."""
        rows = Rows({name: one_array(told.column(name)) for name, _ in self.figures}, 1)
        return pa.Table.from_arrays([rows.value(one) for _, one in self.outputs], schema=self.schema)


class Made(NamedTuple):
    """Rows, and figures of the rows that they are made of; None where nothing is observed."""

    rows: pa.Table
    told: pa.Table | None = None


@dataclass(frozen=True)
class Chosen:
    """Some columns of the rows of one input, by their positions, under other names."""

    positions: tuple[int, ...]
    names: tuple[str, ...]

    def made(self, inputs: Sequence[pa.Table]) -> Made:
        """Those of some rows."""
        (given,) = inputs
        return Made(given.select(list(self.positions)).rename_columns(list(self.names)))

    def merged(self, told: Sequence[pa.Table]) -> None:
        """No figures, for nothing is observed."""

    def observed(self, told: pa.Table | None) -> list[pa.Table]:  # noqa: ARG002
        """Nothing."""
        return []


@dataclass(frozen=True)
class InArrow:
    """A plan that Arrow computes.

    Attributes:
        step: what gives its rows.
        names: their columns, by the names that these have here.
        schema: of the rows that come out.
        observations: of rows on the way, the outermost first.
    """

    step: Step
    names: tuple[str, ...]
    schema: pa.Schema
    observations: tuple[Observation, ...] = ()

    def rows(self, inputs: Sequence[pa.Table]) -> pa.Table:
        """What it gives of some rows, for each input.

        Raises:
            NotInArrowError: Spark has to compute it, and may say that it cannot be computed.
        """
        return self.made(inputs).rows

    def made(self, inputs: Sequence[pa.Table]) -> Made:
        """The same, with the figures of what is observed, in one row."""
        with computing():
            found = self.step.rows(inputs)
            columns = [found.columns[name] for name in self.names]
            if [column.type for column in columns] != self.schema.types:  # a table would cast them
                raise NotInArrowError("columns of other types than Spark's")
            told = (
                pa.table({name: found.told[name] for name, _ in self._figures}) if self.observations else None
            )
            return Made(pa.Table.from_arrays(columns, schema=self.schema), told)

    @property
    def _figures(self) -> list[tuple[str, Figure]]:
        return [pair for one in self.observations for pair in one.figures]

    def merged(self, told: Sequence[pa.Table]) -> pa.Table | None:
        """The figures of all rows from those of parts of them; None for no parts.

        Raises:
            NotInArrowError: a sum may overflow on the way.
        """
        if len(told) < 2:
            return told[0] if told else None
        with computing():
            parts = pa.concat_tables(told)
            merged = {name: figure.merged(one_array(parts.column(name))) for name, figure in self._figures}
            return pa.table(merged)

    def observed(self, told: pa.Table | None) -> list[pa.Table]:
        """What is told of each observation, a row each; nothing for no rows.

        Raises:
            NotInArrowError: Spark has to compute it.
        """
        with computing():
            return [] if told is None else [one.row(told) for one in self.observations]
