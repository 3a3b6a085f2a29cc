"""The changes of one side in a micro-batch, each key once: what it is now, or that it is gone (pure).

The result of a join is an upsert stream, of which a batch may carry one row a key, for a shuffle on the way
to the sink loses the order of rows. So the rows of an upsert key are folded to the newest before they are
joined; those in between would have been overwritten anyway. Which is newest is said by ``order_by``. Without
it the order of arrival counts, which is that of the stream only within one task of its source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltajoin.core.codes import Ints, codes_of_keys, codes_of_rows, have_values
from deltajoin.latest.spec import LatestJoin, LookupSide
from deltajoin.lookup.keys import distinct_keys
from upsert.arrays import Mask, one_array
from upsert.errors import ChangelogError
from upsert.rowkind import ROW_KIND_COLUMN, RowKind


@dataclass(frozen=True)
class TaskRows:
    """Rows that one task of a source sent, in the order in which it did, with ``_row_kind``."""

    task: int
    number: int
    rows: pa.Table


@dataclass(frozen=True)
class Drivers:
    """Newest changes, one for each upsert key.

    Attributes:
        rows: the side's columns and ``_row_kind``.
        is_value: False where the key is gone; such a row may hold NULL outside key columns.
    """

    rows: pa.Table
    is_value: Mask

    @classmethod
    def of(cls, rows: pa.Table) -> Drivers:
        """Rows that are folded already."""
        gone = pc.equal(rows.column(ROW_KIND_COLUMN), RowKind.DELETE.value)
        return cls(rows, ~gone.to_numpy())

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def take(self, which: Ints | Mask) -> Drivers:
        """Some of them: by position, or by mask."""
        chosen = np.flatnonzero(which) if which.dtype == np.bool_ else which
        return Drivers(self.rows.take(pa.array(chosen)), self.is_value[chosen])


def empty(side: LookupSide) -> Drivers:
    """No changes."""
    return Drivers.of(change_schema(side).empty_table())


def change_schema(side: LookupSide) -> pa.Schema:
    """The side's columns and ``_row_kind``."""
    return pa.schema([*side.columns, pa.field(ROW_KIND_COLUMN, pa.string())])


def fold(side: LookupSide, name: str, waiting: pa.Table | None, parts: Sequence[TaskRows]) -> Drivers:
    """The newest change of each upsert key.

    Args:
        side: what is known of the side.
        name: of the side, for messages.
        waiting: changes of earlier batches, folded.
        parts: those of this one, in any order.
    """
    ordered = sorted(parts, key=lambda part: (part.task, part.number))
    earlier = 0 if waiting is None else waiting.num_rows
    tables = [change_schema(side).empty_table() if waiting is None else waiting, *(p.rows for p in ordered)]
    rows = pa.concat_tables(tables).combine_chunks()
    if not rows.num_rows:
        return Drivers.of(rows)
    _check_kinds(side, name, rows)
    key = codes_of(rows, side.upsert_key)
    _check_present(rows, name, "upsert_key", side.upsert_key)
    _check_present(rows, name, "order_by", side.order_by)
    if not side.order_by:
        task = np.repeat([part.task for part in ordered], [part.rows.num_rows for part in ordered])
        _check_one_task(side, name, rows.slice(earlier), key[earlier:], task)
    return Drivers.of(rows.take(pa.array(newest(rows, key, side.order_by))))


def newest(rows: pa.Table, key: Ints, order_by: Sequence[str]) -> Ints:
    """For each key the position of its newest row; of rows of equal order the last one, ascending."""
    position = np.arange(rows.num_rows)
    if order_by:
        columns = {f"{n}": one_array(rows.column(name)) for n, name in enumerate(order_by)}
        by = pa.table({**columns, "position": position})
        ascending = [(name, "ascending") for name in by.column_names]
        position = pc.sort_indices(by, sort_keys=ascending).to_numpy().astype(np.int64)
    last = np.full(int(key.max()) + 1 if len(key) else 0, -1, dtype=np.int64)
    last[key[position]] = position  # numpy keeps the last of equal indexes
    return np.sort(last[last >= 0])


def codes_of(rows: pa.Table, names: Sequence[str]) -> Ints:
    """A number for each row that is equal where the columns are."""
    return codes_of_keys([one_array(rows.column(name)) for name in names])


def _check_kinds(side: LookupSide, name: str, rows: pa.Table) -> None:
    kinds = rows.column(ROW_KIND_COLUMN)
    known = pc.is_in(kinds, value_set=pa.array(side.kinds))
    if not pc.all(known).as_py():
        found = pc.filter(kinds, pc.invert(known))[0].as_py()
        raise ChangelogError(
            f"lookup join: the {name} side is declared to carry {', '.join(side.kinds)}, got {found!r}; "
            "declare it with with_lookup(…, kinds=…), or leave such rows out below"
        )


def _check_present(rows: pa.Table, name: str, what: str, columns: Sequence[str]) -> None:
    for column in columns:
        if rows.column(column).null_count:
            raise ChangelogError(
                f"lookup join: {what} column {column!r} of the {name} side must not be NULL, got NULL; "
                "filter such rows out below with_lookup"
            )


def _check_one_task(side: LookupSide, name: str, rows: pa.Table, key: Ints, task: Ints) -> None:
    """Refuse different rows of one key from two tasks: nothing says which came first."""
    if not len(task) or (task == task[0]).all():
        return
    order = np.argsort(key, kind="stable")
    is_same_key = key[order][1:] == key[order][:-1]
    is_other_task = task[order][1:] != task[order][:-1]
    code = codes_of_rows(rows)[order]
    for at in np.flatnonzero(is_same_key & is_other_task & (code[1:] != code[:-1]))[:1]:
        found = {column: rows.column(column)[int(order[at])].as_py() for column in side.upsert_key}
        raise ChangelogError(
            f"lookup join: which of two rows of {found!r} of the {name} side is newer must be known, and two "
            "tasks sent them; give with_lookup(…, order_by=…)"
        )


def join_keys(join: LatestJoin, side: int, rows: pa.Table) -> pa.Table:
    """The join keys of some rows of a side, with the columns ``0``, ``1`` …, in the order of ``join.on``."""
    return rows.select(list(join.keys(side))).rename_columns([str(n) for n in range(len(join.on))])


def each_once(keys: pa.Table) -> pa.Table:
    """The distinct keys without NULLs.

    >>> each_once(pa.table({"0": [7, None, 7, 5]})).to_pydict()
    {'0': [7, 5]}
    """
    return distinct_keys(keys, keys.schema).keys


def has_value(keys: pa.Table) -> Mask:
    """Which keys have no NULL."""
    return have_values(keys, keys.column_names)


def is_among(keys: pa.Table, others: pa.Table) -> Mask:
    """Which keys are among the others; one with a NULL is not.

    >>> is_among(pa.table({"0": [7, None, 5]}), pa.table({"0": [5, None]})).tolist()
    [False, False, True]
    """
    if not keys.num_rows or not others.num_rows:
        return np.zeros(keys.num_rows, np.bool_)
    codes = codes_of(pa.concat_tables([keys, others]), keys.column_names)
    found: Mask = np.isin(codes[: keys.num_rows], codes[keys.num_rows :]) & has_value(keys)
    return found
