"""Which rows of a task become records, where those of a key come in no order: one row a key (pure).

It is the rule of every keyed table: equal rows of opposite sign cancel, a positive row that is left is the
new value, only negative ones left delete the key, and two values contradict each other unless
``sequence.field`` tells which is newer.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from upsert.errors import ChangelogError, ConfigurationError
from upsert.kafka.sink_order import Effects, Rows
from upsert.rowkind import signs
from upsert.store.fold import fold
from upsert.store.hashing import bucket_of, hash_columns
from upsert.store.layout import Layout


def one_row_per_key(chunks: Iterable[Rows], layout: Layout, sequence: str | None, of: str) -> Effects | None:
    """What all rows of a task do to each key, ascending by key; None without rows.

    Args:
        chunks: the rows of a task.
        layout: columns and key.
        sequence: the column that orders rows of a key, if any.
        of: the table, for messages.

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
