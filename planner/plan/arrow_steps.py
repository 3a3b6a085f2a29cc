"""What Arrow does for the nodes of a plan that are of several inputs or of groups (pure).

`planner.plan.in_arrow` reads plans; `upsert.store.rows.computed` has the other nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltajoin.aggregate.evaluate import computed
from deltajoin.aggregate.spec import Measure
from deltajoin.core.keys import equal_pairs
from deltajoin.expressions import Condition
from upsert.arrays import Positions, is_null, one_array
from upsert.conditions.evaluate import as_mask
from upsert.errors import SchemaError
from upsert.store.rows.codes import codes_of_keys, first_of_each
from upsert.store.rows.computed import Hash, NotInArrowError, Rows, Step
from upsert.store.rows.measures import measured, result_type

_MOST_PAIRS: Final = 1_000_000
"""So many rows of two inputs are put beside each other at most."""

_MOST_BYTES: Final = 64 << 20
"""So many bytes these take at most, as far as their mean tells."""


@dataclass(frozen=True)
class Appended:
    """The rows of several steps, whose columns meet by position."""

    children: tuple[tuple[Step, tuple[str, ...]], ...]
    names: tuple[str, ...]

    def rows(self, inputs: Sequence[pa.Table]) -> Rows:
        """Those of some inputs."""
        found = [(child.rows(inputs), names) for child, names in self.children]
        columns = zip(*([rows.columns[name] for name in names] for rows, names in found), strict=True)
        count = sum(rows.count for rows, _ in found)
        return Rows(dict(zip(self.names, map(pa.concat_arrays, columns), strict=True)), count)


@dataclass(frozen=True)
class Joined:
    """Rows of two inputs that meet: by equal ``keys`` of both, or each with each, where ``condition`` holds.

    ``kind`` is "inner", "left outer", "left semi" or "left anti"; ``of_condition`` are the columns of both
    that the condition is about.
    """

    left: Step
    right: Step
    kind: str
    keys: tuple[tuple[Condition, Condition], ...]
    condition: Condition | None
    of_condition: tuple[tuple[str, ...], tuple[str, ...]]
    of_left: tuple[str, ...]
    of_right: tuple[str, ...]

    def rows(self, inputs: Sequence[pa.Table]) -> Rows:
        """Those of some inputs."""
        left, right = self.left.rows(inputs), self.right.rows(inputs)
        at, other = self._pairs(left, right)
        if self.condition is not None:
            both = Rows(_beside(left, at, right, pa.array(other), *self.of_condition), len(at))
            holds = as_mask(both.value(self.condition))
            at, other = at[holds], other[holds]
        if self.kind == "inner":
            return Rows(_beside(left, at, right, pa.array(other), self.of_left, self.of_right), len(at))
        has_met = np.zeros(left.count, np.bool_)
        has_met[at] = True
        if self.kind == "left outer":
            alone = np.flatnonzero(~has_met)
            is_missing = np.arange(len(at) + len(alone)) >= len(at)
            found = pa.array(np.concatenate([other, np.zeros(len(alone), np.int64)]), mask=is_missing)
            both_at = np.concatenate([at, alone])
            return Rows(_beside(left, both_at, right, found, self.of_left, self.of_right), len(both_at))
        return left.take(np.flatnonzero(has_met if self.kind == "left semi" else ~has_met), self.of_left)

    def _pairs(self, left: Rows, right: Rows) -> tuple[Positions, Positions]:
        """Positions of rows that may meet."""
        if not self.keys:
            if left.count * right.count > _MOST_PAIRS:
                raise NotInArrowError("a join of each row with each other one, of many")
            at = np.repeat(np.arange(left.count), right.count)
            return at, np.tile(np.arange(right.count), left.count)
        keys = [(left.value(one), right.value(other)) for one, other in self.keys]
        codes = codes_of_keys([pa.concat_arrays(pair) for pair in keys])
        known = [
            np.flatnonzero(np.logical_and.reduce([~is_null(key) for key in side]))
            for side in zip(*keys, strict=True)
        ]
        pieces = equal_pairs(codes[known[0]], codes[left.count :][known[1]], at_most=_MOST_PAIRS)
        found = list(islice(pieces, 2))
        if len(found) > 1:
            raise NotInArrowError("a join with many pairs")
        if not found:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        return known[0][found[0].left], known[1][found[0].right]


def _beside(
    left: Rows, at: Positions, right: Rows, other: pa.Array, of_left: Sequence[str], of_right: Sequence[str]
) -> dict[str, pa.Array]:
    """Some columns of two inputs, of some pairs of rows."""
    if len(at) * (_bytes_a_row(left, of_left) + _bytes_a_row(right, of_right)) > _MOST_BYTES:
        raise NotInArrowError("a join with pairs of many bytes")
    columns = left.take(at, of_left).columns
    return {**columns, **{name: right.columns[name].take(other) for name in of_right}}


def _bytes_a_row(rows: Rows, names: Sequence[str]) -> float:
    """How many bytes some columns take of a row, in the mean."""
    return float(sum(rows.columns[name].nbytes for name in names)) / max(rows.count, 1)


@dataclass(frozen=True)
class Grouped:
    """Groups of rows: ``keys`` by which, ``values`` that the measures are of, ``outputs`` over both."""

    child: Step
    keys: tuple[tuple[str, Condition], ...]
    values: tuple[tuple[str, Condition], ...]
    measures: tuple[tuple[str, Measure], ...]
    outputs: tuple[tuple[str, Condition | Hash], ...]

    def rows(self, inputs: Sequence[pa.Table]) -> Rows:
        """Those of some inputs."""
        rows = self.child.rows(inputs)
        keys = [rows.value(condition) for _, condition in self.keys]
        groups, first = np.zeros(rows.count, np.int64), np.zeros(1, np.int64)
        if keys:
            groups = codes_of_keys(keys)
            first = first_of_each(groups)
        values = pa.table({name: rows.value(condition) for name, condition in self.values})
        columns = {name: key.take(pa.array(first)) for (name, _), key in zip(self.keys, keys, strict=True)}
        for name, measure in self.measures:
            if measure.function in ("avg", "sum"):
                _check_sums(measure, values, groups, len(first))
            columns[name] = computed(measure, values, groups, len(first))
        found = Rows(columns, len(first))
        return Rows({name: found.value(condition) for name, condition in self.outputs}, found.count)


def _check_sums(measure: Measure, values: pa.Table, groups: Positions, count: int) -> None:
    """Refuse sums that may overflow on the way, by the order in which Spark comes to the rows.

    Raises:
        NotInArrowError: the sum of the absolute values of a group does not fit.
    """
    (name,) = measure.columns
    column = values.column(name)
    total = result_type("sum", [column.type])
    is_decimal = pa.types.is_decimal(total)
    bound = Decimal(10) ** (total.precision - total.scale) if is_decimal else 1 << 63
    ends = pc.min_max(column).as_py().values()
    most = max((abs(end) for end in ends if end is not None), default=0)
    if 2 * most * len(column) < bound:  # twice, for decimals are rounded here
        return
    absolute = pc.abs_checked(column if is_decimal else column.cast(total))
    try:
        measured("sum", [one_array(absolute)], groups, count)
    except SchemaError as cause:
        raise NotInArrowError(f"a sum that may overflow on the way: {cause}") from cause
