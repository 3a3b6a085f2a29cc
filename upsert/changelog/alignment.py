"""The step from the images that a replay ends with to those that were committed for the same batch.

Mostly there is none. It is needed where the log has lost records between two attempts: Kafka's compaction
removes a record once the key has a newer one, which may lie in a later batch, and a tombstone after a while.
The committed images know them, and later batches go on from these images, so what is emitted must lead there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert.changelog.line import Flags, Keyed, earlier, ticks_of
from upsert.changelog.newest import NewestImages
from upsert.changelog.normalizer import group_by_key, images_of, normalize_keyed, split_kinds
from upsert.changelog.rules import Expiry, Rules
from upsert.errors import MissingStateError
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.store.row_keys import order_by
from upsert.store.snapshot import Snapshot


def alignment(
    base: Snapshot, own: NewestImages, committed: pa.Table, rules: Rules, schema: pa.Schema
) -> pa.Table:
    """Changes that lead from a replay's images to the committed ones.

    Args:
        base: the images at the start of the batch.
        own: the images that the replay ends with.
        committed: net changes of the images by the attempt that has committed, with ``_row_kind``.
        rules: how rows are told apart.
        schema: the rows' own columns.

    Returns:
        The rows' columns and ``_row_kind``; mostly no row.

    Raises:
        MissingStateError: rows have an order, and the replay has seen newer ones than were committed, so it
            is no replay of that batch.
    """
    is_after = pc.not_equal(committed.column(ROW_KIND_COLUMN), RowKind.UPDATE_BEFORE.value)
    rows, is_there = split_kinds(committed.filter(is_after))
    count = rows.num_rows
    keys = pa.concat_tables([_columns(part, rules.key) for part in (rows, own.changed)])
    groups = group_by_key(keys, rules.key)
    undone = own.changed.take(pa.array(groups.firsts[groups.firsts >= count] - count))
    before, numbers = NewestImages.above(base, rules.key).meet(undone)
    if rules.order_by:
        _check_not_newer(own.changed, [rows, before.rows], rules)
    if rules.expiry is not None:
        is_touched = np.isin(groups.of[:count], groups.of[count:])
        kept = is_there | is_touched | ~_is_expired(rows, rules.expiry, is_there)
        rows, is_there = rows.filter(pa.array(kept)), is_there[kept]
    is_gone = ~np.isin(numbers, before.groups)
    gone = undone.filter(pa.array(is_gone))
    goals = [
        _deletes_told(Keyed(rows, is_there, np.arange(rows.num_rows))),
        _deletes_told(before),
        Keyed(gone, np.zeros(gone.num_rows, np.bool_), numbers[is_gone]),
    ]
    names = schema.names
    aims = pa.concat_tables([_columns(goal.rows, names) for goal in goals])
    images, numbers = own.meet(aims)
    records = Keyed(
        pa.Table.from_arrays(aims.columns, schema=schema),
        np.concatenate([goal.is_value for goal in goals]),
        numbers,
    )
    return normalize_keyed(images, records, Rules(rules.key, tuple(names))).changes


def _columns(rows: pa.Table, names: list[str] | tuple[str, ...]) -> pa.Table:
    """Some columns, all declared nullable, so that tables can be put together."""
    return pa.table(rows.select(list(names)).columns, names=list(names))


def _deletes_told(images: Keyed) -> Keyed:
    """Images of which those that only remember an order count as none."""
    return images._replace(is_value=images.is_value & images_of(images.rows, images.groups).is_value)


def _is_expired(rows: pa.Table, expiry: Expiry, is_there: Flags) -> Flags:
    """Deleted images that were dropped for their age, with nothing to tell."""
    ticks, is_known = ticks_of(rows.column(expiry.time))
    if not (is_known & is_there).any():
        return np.zeros(rows.num_rows, np.bool_)
    newest = ticks[is_known & is_there].max()
    limit = earlier(newest, expiry.ticks(rows.schema.field(expiry.time).type))
    return is_known & (ticks < limit)


def _check_not_newer(changed: pa.Table, ends: Sequence[pa.Table], rules: Rules) -> None:
    """Refuse a replay that knows newer rows than the images it should end with: later batches lack them."""
    own = changed.filter(pc.equal(changed.column(ROW_KIND_COLUMN), RowKind.UPDATE_AFTER.value))
    columns = (*rules.key, *rules.orders)
    together = pa.concat_tables([_columns(part, columns) for part in (own, *ends)])
    groups = group_by_key(together, rules.key).of
    order = order_by([pa.array(groups), *(together.column(name) for name in rules.orders)]).rows
    # of equal order the own row stands first: it must, and one of the others must follow
    group, is_own = groups[order], order < own.num_rows
    is_last = np.append(group[1:] != group[:-1], True)[: len(order)]
    if (is_own & is_last).any():
        row = own.select(rules.key).slice(int(order[is_own & is_last][0]), 1)
        raise MissingStateError(
            "normalize: a batch that is run again must have no newer rows than at first, got one of key "
            f"{row.to_pylist()[0]!r}; the checkpoint is older than the images: restore both together, or "
            "start the query with a new checkpoint"
        )
