"""Which rows of a task become records (pure).

Where the rows of a key come in order, each does, apart from a ``-U`` that its ``+U`` follows: readers of a
topic need none. With ``sink.buffer-flush.*`` only the last row of each key in a window does.

Where they come in no order, the rule is that of every keyed table: equal rows of opposite sign cancel, a
positive row that is left is the new value, only negative ones left delete the key, and two values contradict
each other unless ``sequence.field`` tells which is newer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert.arrays import Mask, Positions
from upsert.errors import ChangelogError, ConfigurationError
from upsert.rowkind import RowKind, signs
from upsert.store.rows.fold import fold
from upsert.store.rows.hashing import bucket_of, hash_columns
from upsert.store.rows.keys import KeyOrder, order_by
from upsert.store.rows.layout import Layout
from upsert.store.rows.merge import gather

_MOST_HELD: Final = 100_000
"""So many rows ``-U`` wait for their ``+U`` at most; older ones are taken for deletions."""


class KindedRows(NamedTuple):
    """Conforming rows and the kind of each; None if all are inserts or updates."""

    rows: pa.Table
    kinds: pa.Array | None


class Effects(NamedTuple):
    """Rows to write and which of them are deletions; None if none is."""

    rows: pa.Table
    is_deleted: Mask | None


def without_befores(chunks: Iterable[KindedRows], key: tuple[str, ...]) -> Iterator[Effects]:
    """Every row, but no ``-U`` whose key has a row of sign +1 next.

    A ``-U`` at the end of a chunk waits for the next chunk. Without such a row it is a deletion: a filter may
    have taken its ``+U`` away.

    Args:
        chunks: the rows of a task; of each key in order.
        key: the columns of the key.
    """
    held: pa.Table | None = None
    for chunk in chunks:
        is_deleted = _are(chunk.kinds, chunk.rows.num_rows, RowKind.UPDATE_BEFORE, RowKind.DELETE)
        is_before = _are(chunk.kinds, chunk.rows.num_rows, RowKind.UPDATE_BEFORE)
        if held is None and not is_before.any():
            yield Effects(chunk.rows, is_deleted if is_deleted.any() else None)
            continue
        rows = chunk.rows
        if held is not None:
            waiting = np.ones(held.num_rows, np.bool_)
            rows = pa.concat_tables([held, rows])
            is_deleted, is_before = np.append(waiting, is_deleted), np.append(waiting, is_before)
        successor = _next_of_key(order_by([rows.column(name) for name in key]))
        is_replaced = is_before & (successor >= 0) & ~is_deleted[successor]
        waits = np.flatnonzero(is_before & (successor < 0))[-_MOST_HELD:]
        held = gather(rows, waits) if len(waits) else None
        is_kept = ~is_replaced
        is_kept[waits] = False
        if is_kept.any():
            yield Effects(gather(rows, np.flatnonzero(is_kept)), is_deleted[is_kept])
    if held is not None:
        yield Effects(held, np.ones(held.num_rows, np.bool_))


def _are(kinds: pa.Array | None, count: int, *wanted: RowKind) -> Mask:
    """Which rows are of one of these kinds."""
    if kinds is None:
        return np.zeros(count, np.bool_)
    found: Mask = pc.is_in(kinds, pa.array([kind.value for kind in wanted])).to_numpy(zero_copy_only=False)
    return found


def _next_of_key(order: KeyOrder) -> Positions:
    """For each row the next row of its key; -1 for the last."""
    found = np.full(len(order.rows), -1, np.int64)
    has_next = np.append(~order.is_first[1:], False)
    found[order.rows[has_next]] = order.rows[np.flatnonzero(has_next) + 1]
    return found


def last_in_windows(
    effects: Iterable[Effects],
    key: tuple[str, ...],
    max_keys: int,
    max_seconds: float,
    now: Callable[[], float],
) -> Iterator[Effects]:
    """Of each key the last row in each window, in the rows' order.

    A window ends with the row that makes its keys ``max_keys``, with the chunk at whose end it is
    ``max_seconds`` old, and with the task.

    Args:
        effects: the rows of a task; of each key in order.
        key: the columns of the key.
        max_keys: distinct keys of a window at most.
        max_seconds: age of a window, looked at between chunks.
        now: seconds of a clock that never goes back.
    """
    pending: Effects | None = None
    since = now()
    for chunk in effects:
        joined = chunk if pending is None else _concat(pending, chunk)
        order = order_by([joined.rows.column(name) for name in key])
        winners, begin = _windows(order, max_keys)
        if now() - since >= max_seconds:
            winners, begin = np.append(winners, _lasts(order, begin)), joined.rows.num_rows
        if len(winners):
            since = now()
            yield _chosen(joined, winners)
        rest = _lasts(order, begin)
        pending = _chosen(joined, rest) if len(rest) else None
    if pending is not None:
        yield pending


def _windows(order: KeyOrder, max_keys: int) -> tuple[Positions, int]:
    """The last rows of each key of all windows that are full, and where the open one begins."""
    before = np.full(len(order.rows), -1, np.int64)
    has_before = np.flatnonzero(~order.is_first)
    before[order.rows[has_before]] = order.rows[has_before - 1]
    after = _next_of_key(order)
    winners: list[Positions] = [np.empty(0, np.int64)]
    begin = 0
    while (end := _end_of_window(before, begin, max_keys)) is not None:
        is_last = (after[begin:end] < 0) | (after[begin:end] >= end)
        winners.append(begin + np.flatnonzero(is_last))
        begin = end
    return np.concatenate(winners), begin


def _end_of_window(before: Positions, begin: int, max_keys: int) -> int | None:
    """Where the window from ``begin`` has so many keys; None if the rows end earlier."""
    width = 2 * max_keys
    while True:
        keys = np.cumsum(before[begin : begin + width] < begin)
        if len(keys) and keys[-1] >= max_keys:
            return begin + int(np.searchsorted(keys, max_keys)) + 1
        if begin + width >= len(before):
            return None
        width *= 2


def _lasts(order: KeyOrder, begin: int) -> Positions:
    """The last row of each key among those from ``begin`` on, in the rows' order."""
    lasts: Positions = np.sort(order.lasts)
    return lasts[lasts >= begin]


def _chosen(effects: Effects, positions: Positions) -> Effects:
    is_deleted = None if effects.is_deleted is None else effects.is_deleted[positions]
    return Effects(gather(effects.rows, positions), is_deleted)


def _concat(one: Effects, other: Effects) -> Effects:
    flags = [
        np.zeros(e.rows.num_rows, np.bool_) if e.is_deleted is None else e.is_deleted for e in (one, other)
    ]
    return Effects(pa.concat_tables([one.rows, other.rows]), np.concatenate(flags))


def one_row_per_key(
    chunks: Iterable[KindedRows], layout: Layout, sequence: str | None, of: str
) -> Effects | None:
    """What all rows of a task do to each key, ascending by key; None without rows.

    Raises:
        ChangelogError: two different values are left for a key.
    """
    found = list(chunks)
    if not found:
        return None
    rows = pa.concat_tables([chunk.rows for chunk in found])
    weights = None
    if any(chunk.kinds is not None for chunk in found):
        ones = [np.ones(c.rows.num_rows, np.int8) if c.kinds is None else signs(c.kinds) for c in found]
        weights = np.concatenate(ones)
    try:
        folded = fold(layout, rows, weights, "none", () if sequence is None else (sequence,))
    except ChangelogError as cause:
        raise ChangelogError(
            f"{of}: {cause}; a stream of changes may keep all rows of each key: 'sink.materialize' = 'force'"
        ) from None
    return Effects(folded.rows, None if folded.kinds is None else folded.kinds == 1)


def check_task(rows: pa.Table, key: tuple[str, ...], tasks: int, task: int, of: str) -> None:
    """Refuse rows whose key belongs to another task.

    A key has one task, ``pmod(xxhash64(key), tasks)``; so a replay finds each key where it was before.

    Raises:
        ConfigurationError: the rows were not distributed so.
    """
    owners = bucket_of(hash_columns([rows.column(name) for name in key]), tasks)
    if (strangers := np.flatnonzero(owners != task)).size:
        row = int(strangers[0])
        found = rows.select(list(key)).slice(row, 1).to_pylist()[0]
        raise ConfigurationError(
            f"{of}: the rows of a key must be in the task of its hash, got key {found!r} in task {task} "
            f"instead of {int(owners[row])} of {tasks}; let write_changes or write_upsert distribute them, "
            "and leave out 'sink.row-order'"
        )
