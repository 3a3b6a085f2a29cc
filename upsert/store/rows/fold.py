"""The rows of one write, folded to at most one row per key (pure).

There are two rules: rows with an order, where the last row of a key wins; and rows without
one, as they arrive after a shuffle, where equal rows of opposite sign cancel and what is left must agree.
Tables without primary key need no order: each row adds its sign to the count of equal rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upsert.arrays import Positions, one_array
from upsert.errors import ChangelogError
from upsert.store.rows.conform import Signs
from upsert.store.rows.hashing import row_hashes
from upsert.store.rows.keys import KeyOrder, as_values, in_sequence, last_of_each, order_by, sequence_codes
from upsert.store.rows.layout import COUNT_COLUMN, Layout
from upsert.store.rows.merge import SortedRows, gather

Order = Literal["rows", "none"]


def fold(
    layout: Layout, rows: pa.Table, weights: Signs | None, order: Order, sequence: Sequence[str] = ()
) -> SortedRows:
    """What the rows of one write do to the table, one row per key, ascending by key.

    With ``order="rows"`` the last row of a key in input order wins; a negative one deletes. With
    ``order="none"`` equal rows of opposite sign cancel; then a remaining positive row is the new value,
    only negative rows mean that the key is deleted, whatever their other columns, and nothing left means no
    change. With a ``sequence`` the row with its highest value decides, among those that are left without an
    order; of several such rows the last one.

    Rows and ``weights`` are those of ``rows.conform``.

    Raises:
        ChangelogError: without an order or a sequence, two different positive rows of one key are left; it
            names the key.
    """
    if layout.is_counted:
        return _fold_counts(layout, rows, weights)
    keys = order_by([rows.column(name) for name in layout.key])
    if order == "rows" and sequence:
        group_of = keys.numbers
        ordered = in_sequence(rows, sequence, group_of)
        winners = ordered[last_of_each(group_of[ordered])]
    elif order == "rows":
        winners = keys.lasts
    else:
        winners = _unordered_winners(layout, rows, weights, keys, sequence)
    return SortedRows(gather(rows, winners), _kinds(weights, winners))


@contextmanager
def naming(owner: str) -> Iterator[None]:
    """A block that folds rows which go into a table: its errors name the table, and what else it can do."""
    try:
        yield
    except ChangelogError as cause:
        raise ChangelogError(
            f"{owner}: {cause}, or into a table whose PRIMARY KEY tells them apart; a stream of changes may "
            "keep all rows of each key: 'sink.materialize' = 'force'"
        ) from None


def _kinds(weights: Signs | None, winners: Positions) -> npt.NDArray[np.int8] | None:
    if weights is None:
        return None
    kinds: npt.NDArray[np.int8] = (weights[winners] < 0).astype(np.int8)
    return kinds if kinds.any() else None


def _fold_counts(layout: Layout, rows: pa.Table, weights: Signs | None) -> SortedRows:
    keys = order_by([rows.column(name) for name in layout.key])
    weight = np.ones(rows.num_rows, np.int64) if weights is None else weights.astype(np.int64)
    sums = np.add.reduceat(weight[keys.rows], keys.starts) if rows.num_rows else weight
    kept = np.flatnonzero(sums)
    found = gather(rows, keys.firsts[kept])
    return SortedRows(found.append_column(layout.stored.field(COUNT_COLUMN), pa.array(sums[kept])), None)


def _unordered_winners(
    layout: Layout, rows: pa.Table, weights: Signs | None, keys: KeyOrder, sequence: Sequence[str]
) -> Positions:
    """Of each changed key the row to store, in key order."""
    starts = keys.starts
    lengths = np.diff(np.append(starts, len(keys.rows)))
    if (lengths <= 1).all():
        return keys.rows
    alone = keys.rows[starts[lengths == 1]]
    key_of = np.cumsum(keys.is_first) - 1
    among = lengths[key_of] > 1
    agreed = _agreed(layout, rows, weights, keys.rows[among], key_of[among], sequence)
    winners = np.concatenate([alone, agreed])
    rank = np.empty(len(keys.rows), dtype=np.int64)
    rank[keys.rows] = np.arange(len(keys.rows))
    return winners[np.argsort(rank[winners])]


def _agreed(
    layout: Layout,
    rows: pa.Table,
    weights: Signs | None,
    positions: Positions,
    key_of: Positions,
    sequence: Sequence[str],
) -> Positions:
    """Of each key with several rows the one that is left when equal rows of opposite sign have cancelled.

    ``key_of`` is a number for the key of each of ``positions``, the rows to look at.
    """
    some = gather(rows, positions)
    identity = row_hashes([as_values(one_array(column)) for column in some.columns], some.num_rows)
    same = order_by([pa.array(key_of), identity])
    weight = np.ones(len(positions), np.int64) if weights is None else weights[positions].astype(np.int64)
    sums = np.add.reduceat(weight[same.rows], same.starts)
    distinct, key = same.firsts, key_of[same.firsts]
    if sequence:
        left = np.flatnonzero(sums)
        newest = left[_highest(gather(some, distinct[left]), sequence, key[left], sums[left], distinct[left])]
        sums[np.setdiff1d(left, newest)] = 0
    has_value = np.flatnonzero(sums > 0)
    _check_one_value(layout, some, distinct[has_value], key[has_value])
    # a key with a new value is not deleted, though old images of it may be left over
    deleted = np.flatnonzero((sums < 0) & ~np.isin(key, key[has_value]))
    _, first = np.unique(key[deleted], return_index=True)
    values = _row_of_sign(same, weight, has_value, 1)
    deletions = _row_of_sign(same, weight, deleted[first], -1)
    agreed: Positions = positions[np.concatenate([values, deletions])]
    return agreed


def _highest(
    rows: pa.Table, sequence: Sequence[str], key_of: Positions, sums: Positions, arrival: Positions
) -> Positions:
    """Of each key the row of the highest sequence; a deletion is below an equal value, then by arrival."""
    ties = [pa.array((sums > 0).astype(np.int8)), pa.array(arrival)]
    order = order_by([pa.array(key_of), *sequence_codes(rows, sequence), *ties]).rows
    return order[last_of_each(key_of[order])]


def _row_of_sign(same: KeyOrder, weight: Positions, groups: Positions, sign: int) -> Positions:
    """Of each group of equal rows one whose sign is ``sign``, so that its kind says what is left."""
    group_of: Positions = np.cumsum(same.is_first) - 1
    candidates = np.flatnonzero(weight[same.rows] == sign)
    of_group, first = np.unique(group_of[candidates], return_index=True)
    found: Positions = same.rows[candidates[first[np.searchsorted(of_group, groups)]]]
    return found


def _check_one_value(layout: Layout, rows: pa.Table, values: Positions, key_of: Positions) -> None:
    ordered = np.sort(key_of)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(repeated):
        clashing = values[key_of == repeated[0]]
        key = rows.select(list(layout.key)).slice(int(clashing[0]), 1).to_pylist()[0]
        raise ChangelogError(
            f"key {key!r}: rows without an order must leave one value per key, got {len(clashing)} different "
            "ones; fold the stream to one row per key, declare 'sequence.field', or write them in order"
        )
