"""What the clauses of a MERGE make of the rows of its target and its source, in Arrow (pure).

Two rules hold, which Spark checks where it computes the rows (docs/decisions/0044): at most one row of the
source changes a row of the target, and afterwards each key has one row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upsert.arrays import Mask, Positions, indices, one_array
from upsert.conditions.evaluate import as_mask, value
from upsert.conditions.expressions import Condition, Ref
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.schema import TableSchema
from upsert.sql.statements import MergeAction, MergeRows
from upsert.store.rows.computed import NotInArrowError, computing
from upsert.store.rows.keys import order_by
from upsert.store.rows.pairs import EqualRows

_MOST_PAIRS: Final = 10_000_000
"""Of rows that ON finds equal; they come by the product where many rows have one value."""

TARGET: Final = 0
SOURCE: Final = 1
"""Numbers of the two tables in conditions and values."""

SEVERAL: Final = "several rows of the source change the row of the target with the key "
TWICE: Final = "several rows are inserted with the key "
THERE: Final = "a row is inserted that ON has not found, but the target has one with the key "


class BrokenRuleError(Exception):
    """A row that would be written breaks a rule; the text says which one, and has the key as JSON."""


@dataclass(frozen=True)
class Clause:
    """``WHEN … THEN …``: what it does with those of its rows of which the condition is true.

    ``values`` are those of the columns that get one, of an INSERT all; of a DELETE none.
    """

    rows: MergeRows
    action: MergeAction
    condition: Condition | None
    values: Mapping[str, Condition]


@dataclass(frozen=True)
class Merged:
    """The changes of a target, at most one for each key, and how many rows are updated, deleted, inserted."""

    rows: pa.Table
    counts: tuple[int, int, int]


@dataclass(frozen=True)
class Clauses:
    """The clauses of a MERGE, and which rows of target and source meet.

    Attributes:
        schema: of the target, which has a primary key.
        equal: columns of the target with those of the source that they equal, of one type or integers; at
            least one pair.
        rest: what else ON says.
    """

    schema: TableSchema
    equal: Sequence[tuple[str, str]]
    rest: Condition | None
    clauses: Sequence[Clause]

    def merged(self, target: pa.Table, source: pa.Table, has: Callable[[pa.Table], Mask]) -> Merged:
        """What becomes of the target.

        Args:
            target: all rows that a clause may take, with the columns of the schema.
            source: the rows of the source.
            has: says of keys that are inserted whether the target has them, in rows that ON has not found.

        Raises:
            BrokenRuleError: a row would break one of the two rules.
            NotInArrowError: Spark has to compute it.
        """
        with computing():
            taken = list(self._taken(_Pairs(target, source)))
            rows = pa.concat_tables(rows for _, rows in taken)
        actions = np.repeat([str(action) for action, _ in taken], [rows.num_rows for _, rows in taken])
        return _changes(rows, actions, self.schema.primary_key, has)

    def _taken(self, pairs: _Pairs) -> Sequence[tuple[MergeAction, pa.Table]]:
        """What each clause makes of the rows that it is the first one to take."""
        left, found = pairs.met(self.equal, self.rest), []
        for clause in self.clauses:
            rows, kept = left[clause.rows], np.ones(len(left[clause.rows]), np.bool_)
            if clause.condition is not None:
                kept = as_mask(pairs.value(clause.condition, rows))
            left[clause.rows] = rows[~kept]
            found.append((clause.action, self._written(clause, pairs, rows[kept])))
        return found

    def _written(self, clause: Clause, pairs: _Pairs, rows: Positions) -> pa.Table:
        """The rows that a clause writes, or deletes."""
        columns = []
        for column in self.schema.columns:
            if (given := clause.values.get(column.name)) is None:
                columns.append(pairs.column(Ref(TARGET, column.name), rows))
            else:
                columns.append(fitted(pairs.value(given, rows), column.type))
        return pa.table(columns, names=list(self.schema.names))


@dataclass(frozen=True)
class _Pairs:
    """Two tables, and rows of both: two columns of positions, of which one is any where there is no row."""

    target: pa.Table
    source: pa.Table

    def met(self, equal: Sequence[tuple[str, str]], rest: Condition | None) -> dict[MergeRows, Positions]:
        """The rows that ON is true of, and those of either table of which there are none such."""
        columns, others = zip(*equal, strict=True)
        pairs = _equal_rows(self.target.select(list(columns)), self.source.select(list(others)))
        if rest is not None:
            pairs = pairs[as_mask(self.value(rest, pairs))]
        mine, theirs = (
            np.setdiff1d(np.arange(table.num_rows), pairs[:, number])
            for number, table in enumerate((self.target, self.source))
        )
        return {
            MergeRows.MATCHED: pairs,
            MergeRows.NOT_MATCHED: np.stack([np.zeros_like(theirs), theirs], 1),
            MergeRows.NOT_MATCHED_BY_SOURCE: np.stack([mine, np.zeros_like(mine)], 1),
        }

    def column(self, ref: Ref, rows: Positions) -> pa.Array:
        """A column of some rows."""
        table = self.source if ref.table else self.target
        return one_array(table.column(ref.column)).take(indices(rows[:, ref.table]))

    def value(self, condition: Condition, rows: Positions) -> pa.Array:
        """What a condition is of some rows."""
        return value(condition, cache(lambda ref: self.column(ref, rows)), len(rows), {})


def _equal_rows(mine: pa.Table, theirs: pa.Table) -> Positions:
    """The rows whose columns are equal, as pairs of positions; NULL equals nothing."""
    own, asked = list[pa.Array](), list[pa.Array]()
    for one, other in zip(mine.columns, theirs.columns, strict=True):
        common = one.type if one.type == other.type else pa.int64()
        own.append(one_array(one).cast(common))
        asked.append(one_array(other).cast(common))
    rows = EqualRows(own)
    met = rows.met(asked)
    if met.counts.sum() > _MOST_PAIRS:
        raise NotInArrowError("more pairs of rows than one process joins")
    pairs = rows.pairs(met, most=_MOST_PAIRS)
    return np.concatenate([np.empty((0, 2), np.int64), *(np.stack([to, of], 1) for of, to in pairs)])


def fitted(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """Values as those of a column, which has them as they are.

    Raises:
        NotInArrowError: Spark would change them, or refuse them.

    >>> fitted(pa.array([1, None], pa.int32()), pa.int8()).to_pylist()
    [1, None]
    >>> fitted(pa.array([300]), pa.int8())
    Traceback (most recent call last):
        ...
    upsert.store.rows.computed.NotInArrowError: ...
    """
    of = values.type
    if of == type_ or pa.types.is_null(of):
        return values.cast(type_)
    is_number = pa.types.is_integer(of) or pa.types.is_decimal(of)
    with computing():
        if is_number and pa.types.is_decimal(type_):
            whole = values.cast(pa.decimal128(20, 0)) if pa.types.is_integer(of) else values
            return whole.cast(type_)
        if pa.types.is_integer(of) and (pa.types.is_integer(type_) or pa.types.is_floating(type_)):
            return values.cast(type_)
        if pa.types.is_decimal(of) and type_ == pa.float64():
            # Arrow's own cast is not always the nearest number
            return pa.array([None if one is None else float(one) for one in values.to_pylist()], type_)
        if of == pa.float32() and type_ == pa.float64():
            return values.cast(type_)
    raise NotInArrowError(f"values of {of} in a column of {type_}")


def _changes(
    rows: pa.Table, actions: npt.NDArray[np.str_], key: Sequence[str], has: Callable[[pa.Table], Mask]
) -> Merged:
    """One change for each key, of what the clauses do."""
    keys = rows.select(list(key))
    is_deleted, is_inserted = actions == MergeAction.DELETE, actions == MergeAction.INSERT
    if any(column.null_count for column in keys.columns):
        return Merged(_of_kinds(rows, is_deleted), (0, 0, 0))  # for the store to refuse
    order = order_by(keys.columns)
    each = keys.take(indices(order.firsts))
    deleted, inserted, updated = (
        np.bincount(order.numbers[one], minlength=each.num_rows)
        for one in (is_deleted, is_inserted, ~(is_deleted | is_inserted))
    )
    _check((updated > 1) | ((updated > 0) & (deleted > 0)), SEVERAL, each)
    _check(inserted > 1, TWICE, each)
    _check((inserted > 0) & (updated > 0), THERE, each)
    new = (inserted > 0) & (deleted == 0)
    new[new] = has(each.filter(pa.array(new)))
    _check(new, THERE, each)
    chosen = np.empty(each.num_rows, np.int64)
    for some in (is_deleted, ~is_deleted):  # of a key that is deleted and inserted the new row is written
        chosen[order.numbers[some]] = np.flatnonzero(some)
    changes = _of_kinds(rows.take(indices(chosen)), is_deleted[chosen])
    return Merged(changes, (int(updated.sum()), int((deleted > 0).sum()), int(inserted.sum())))


def _of_kinds(rows: pa.Table, is_deleted: Mask) -> pa.Table:
    kinds = np.where(is_deleted, RowKind.DELETE.value, RowKind.INSERT.value)
    return rows.append_column(ROW_KIND_COLUMN, pa.array(kinds, pa.string()))


def _check(broken: Mask, why: str, keys: pa.Table) -> None:
    """Refuse what breaks a rule, with one of the keys.

    Raises:
        NotInArrowError: Spark has a text of its own for it.
    """
    if not broken.any():
        return
    (row,) = keys.slice(int(np.argmax(broken)), 1).to_pylist()
    if not all(isinstance(one, int | str) for one in row.values()):
        raise NotInArrowError("a key that Spark writes as JSON")
    raise BrokenRuleError(why + json.dumps(row, ensure_ascii=False, separators=(",", ":")))
