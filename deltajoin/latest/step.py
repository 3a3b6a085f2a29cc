"""One step of one shard: what waited and what arrived, in; what is emitted and what waits, out (pure).

The result of a join is an upsert stream, of which a batch may carry one row a key, for a shuffle on the way
to the sink loses the order of rows. So the rows of an upsert key are folded to the newest before they are
joined; those in between would have been overwritten anyway. Which is newest is said by ``order_by``. Without
it the order of arrival counts, which is that of the stream only within one task of its source.

Nothing of a join key is emitted before all that came earlier for it: when a lookup of a key fails, all rows
of the key wait, on both sides, and what comes later is folded into them. Other keys go on.

Each side's changes meet all that is known of the other side: its rows as looked up, with the batch's own
changes on top. A pair whose two rows both changed is emitted once, by the left one. Rows of the left side
become pairs of its kind; a delete becomes a delete of every pair by key. A row that is kept without a match
comes out padded with NULLs; where its pair has another key, the padded row is deleted when a match comes,
whether or not it was there: a delete by key of nothing does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltajoin.core.keys import equal_pairs, have_values
from deltajoin.errors import LookupFailedError
from deltajoin.expressions import Ref
from deltajoin.latest.spec import SIDES, LatestJoin, LookupSide
from deltajoin.lookup.keys import distinct_keys
from upsert.arrays import Ints, Mask, one_array
from upsert.conditions.evaluate import mask
from upsert.errors import ChangelogError
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.store.rows.codes import codes_of_keys, codes_of_rows

PAIRS_AT_A_TIME: Final = 100_000
"""Rows of one piece of the output."""
_NONE: Final = -1


class TaskRows(NamedTuple):
    """Rows that one task of a source sent, in the order in which it did, with ``_row_kind``."""

    task: int
    number: int
    rows: pa.Table


@dataclass(frozen=True)
class Drivers:
    """Newest changes, one for each upsert key: the side's columns and ``_row_kind``.

    ``is_value`` is False where the key is gone; such a row may hold NULL outside key columns.
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

    def where(self, mask: Mask) -> Drivers:
        """Those for which the mask is true."""
        return Drivers(self.rows.filter(pa.array(mask)), self.is_value[mask])


def change_schema(side: LookupSide) -> pa.Schema:
    """The side's columns and ``_row_kind``."""
    return pa.schema([*side.columns, pa.field(ROW_KIND_COLUMN, pa.string())])


def fold(side: LookupSide, name: str, waiting: pa.Table | None, parts: Sequence[TaskRows]) -> Drivers:
    """The newest change of each upsert key, of folded changes that wait and of parts in any order."""
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
            f"lookup join: two tasks sent rows of {found!r} of the {name} side, and which one is newer must "
            "be known; give with_lookup(…, order_by=…)"
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


class Emission:
    """One emission: what to join, prepared.

    ``known`` are all rows of the left side under the join keys that the right side's changes have, and of the
    right side under those of the left's; the batch's own changes are among them.
    """

    def __init__(
        self, join: LatestJoin, drivers: tuple[Drivers, Drivers], known: tuple[pa.Table, pa.Table]
    ) -> None:
        self.join, self.drivers, self.known = join, drivers, known
        self._driver_keys, self._known_keys = _key_codes(join, drivers, known)
        self._matched = [np.zeros(len(own), np.bool_) for own in drivers]
        self._met = [np.zeros(rows.num_rows, np.bool_) for rows in known]

    def tables(self) -> Iterator[pa.Table]:
        """The rows that are emitted, in pieces: columns as ``join.output``; one row a key of the result."""
        for side in (0, 1):
            yield from self._pairs(side)
        for side in (0, 1):
            if self.join.keeps(side):
                yield self._padded(side)
                if self.join.pads_are_keys:
                    yield self._pads_replaced(side)

    def _pairs(self, side: int) -> Iterator[pa.Table]:
        other, own = 1 - side, self.drivers[side]
        asked = np.flatnonzero(self._driver_keys[side] >= 0)
        is_changed = self._changed_values(other) if side == 1 else None
        pieces = equal_pairs(self._driver_keys[side][asked], self._known_keys[other], at_most=PAIRS_AT_A_TIME)
        for piece in pieces:
            driver, found = asked[piece.left], piece.right
            is_value = own.is_value[driver]
            holds = self._holds(side, driver, found) | ~is_value
            driver, found, is_value = driver[holds], found[holds], is_value[holds]
            self._matched[side][driver] = True
            self._met[other][found[is_value]] = True
            if is_changed is not None:
                fresh = ~(is_value & is_changed[found])
                driver, found = driver[fresh], found[fresh]
            yield self._output(side, driver, found, _kinds(own, driver))

    def _changed_values(self, side: int) -> Mask:
        """Of the known rows of a side, those that are changes of this batch."""
        own, names = self.drivers[side], list(self.join.sides[side].upsert_key)
        values = own.rows.filter(pa.array(own.is_value)).select(names)
        codes = codes_of(pa.concat_tables([values, self.known[side].select(names)]), names)
        found: Mask = np.isin(codes[values.num_rows :], codes[: values.num_rows])
        return found

    def _padded(self, side: int) -> pa.Table:
        """Rows without a match, and deletes of such."""
        own = self.drivers[side]
        alone = ~self._matched[side]
        if self.join.pads_are_keys:
            alone = alone | ~own.is_value
        chosen = np.flatnonzero(alone)
        return self._output(side, chosen, np.full(len(chosen), _NONE), _kinds(own, chosen))

    def _pads_replaced(self, side: int) -> pa.Table:
        """Deletes of padded rows whose row has met a change of the other side."""
        chosen = np.flatnonzero(self._met[side])
        columns = self.known[side].take(pa.array(chosen)).columns
        nulls = [pa.nulls(len(chosen), column.type) for column in self.join.sides[1 - side].columns]
        both = [*columns, *nulls] if side == 0 else [*nulls, *columns]
        gone = pa.repeat(pa.scalar(RowKind.DELETE.value), len(chosen))
        return pa.Table.from_arrays([*both, gone], schema=self.join.output)

    def _output(self, side: int, driver: Ints, found: Ints, kinds: pa.Array) -> pa.Table:
        own = self.drivers[side].rows.drop_columns([ROW_KIND_COLUMN]).take(pa.array(driver)).columns
        met = self.known[1 - side].take(pa.array(found, mask=found == _NONE)).columns
        both = [*own, *met] if side == 0 else [*met, *own]
        return pa.Table.from_arrays([*both, kinds], schema=self.join.output)

    def _holds(self, side: int, driver: Ints, found: Ints) -> Mask:
        """Which pairs meet the rest of the join's condition."""
        if self.join.where is None:
            return np.ones(len(driver), np.bool_)

        def column(ref: Ref) -> pa.Array:
            of, at = (
                (self.drivers[side].rows, driver) if ref.table == side else (self.known[ref.table], found)
            )
            return one_array(of.column(ref.column)).take(pa.array(at))

        return mask(self.join.where, column, len(driver))


def _kinds(own: Drivers, which: Ints) -> pa.Array:
    return one_array(own.rows.column(ROW_KIND_COLUMN)).take(pa.array(which))


def _key_codes(
    join: LatestJoin, drivers: tuple[Drivers, Drivers], known: tuple[pa.Table, pa.Table]
) -> tuple[list[Ints], list[Ints]]:
    """Numbers of join keys, equal on both sides where the keys are; -1 for a key with a NULL."""
    tables = [rows for side in (0, 1) for rows in (drivers[side].rows, known[side])]
    keys = pa.concat_tables([join_keys(join, n // 2, rows) for n, rows in enumerate(tables)])
    codes = np.where(has_value(keys), codes_of(keys, keys.column_names), _NONE)
    pieces = np.split(codes, np.cumsum([table.num_rows for table in tables])[:-1])
    return [pieces[0], pieces[2]], [pieces[1], pieces[3]]


Waiting = tuple[pa.Table | None, pa.Table | None]
"""Folded changes of the left and of the right side whose lookups have not succeeded yet."""

ArrivedChanges = tuple[Sequence[TaskRows], Sequence[TaskRows]]
"""Changes of both sides that have arrived, in any order."""


@dataclass(frozen=True, eq=False)
class Found:
    """Rows of the side that was asked for distinct join keys.

    ``failures`` says by position of the key why it could not be looked up; such a key has no rows.
    """

    rows: pa.Table
    failures: Mapping[int, LookupFailedError]


class Pending(Protocol):
    """Lookups that are under way."""

    def result(self) -> Found:
        """Wait for them."""

    def cancel(self) -> None:
        """End them; there will be no result."""


class Finder(Protocol):
    """Finds the newest rows of one side by join key; keys are those of `join_keys`."""

    def start(self, keys: pa.Table) -> Pending:
        """Begin to look up distinct join keys without NULLs."""

    def learn(self, keys: pa.Table, rows: pa.Table, changes: Drivers) -> None:
        """Take in what the step has shown.

        ``keys`` were asked for and answered, ``rows`` are all rows under them, the step's own changes on top;
        ``changes`` are the side's that were joined, under these keys and others.
        """


@dataclass(frozen=True, eq=False)
class StepResult:
    """What a step comes to.

    ``output`` is made as it is read; its columns are ``join.output``. ``failures`` say why changes wait for
    the next step, one for each join key and side.
    """

    output: Iterator[pa.Table]
    waiting: Waiting
    failures: tuple[LookupFailedError, ...]


def step(
    join: LatestJoin, waiting: Waiting, arrived: ArrivedChanges, finders: tuple[Finder, Finder]
) -> StepResult:
    """Join the changes of a shard with what is newest on the other side."""
    left, right = (fold(join.sides[n], SIDES[n], waiting[n], arrived[n]) for n in (0, 1))
    _check_deletes(join, 0, left)
    _check_deletes(join, 1, right)
    # the changes of one side are looked up on the other one
    asked_right = each_once(join_keys(join, 0, left.rows))
    asked_left = each_once(join_keys(join, 1, right.rows))
    found_left, found_right = _look_up(finders, (asked_left, asked_right))
    failed = pa.concat_tables([_failed(asked_right, found_right), _failed(asked_left, found_left)])
    left, late_left = _split(join, 0, left, failed)
    right, late_right = _split(join, 1, right, failed)
    known_left = _learn(join, 0, _without(asked_left, failed), found_left, left, finders[0])
    known_right = _learn(join, 1, _without(asked_right, failed), found_right, right, finders[1])
    return StepResult(
        Emission(join, (left, right), (known_left, known_right)).tables(),
        (late_left, late_right),
        (*found_left.failures.values(), *found_right.failures.values()),
    )


def _look_up(finders: tuple[Finder, Finder], asked: tuple[pa.Table, pa.Table]) -> list[Found]:
    """What is known of both sides, asked at the same time; when one fails, the other one is asked no more."""
    started: list[Pending] = []
    try:
        for finder, keys in zip(finders, asked, strict=True):
            started.append(finder.start(keys))
        return [pending.result() for pending in started]
    except BaseException:
        for pending in started:
            pending.cancel()
        raise


def all_wait(join: LatestJoin, waiting: Waiting, arrived: ArrivedChanges) -> Waiting:
    """What waits when nothing is looked up: all that waited and arrived."""
    left, right = (fold(join.sides[n], SIDES[n], waiting[n], arrived[n]).rows for n in (0, 1))
    return (left if left.num_rows else None, right if right.num_rows else None)


def _check_deletes(join: LatestJoin, side: int, own: Drivers) -> None:
    """Refuse a delete without its join key: nothing would be found, and its pairs would stay."""
    outside = [name for name in join.keys(side) if name not in join.sides[side].upsert_key]
    if not outside or own.is_value.all():
        return
    deletes = own.where(~own.is_value).rows
    if not has_value(join_keys(join, side, deletes)).all():
        raise ChangelogError(
            f"lookup join: deletes of the {SIDES[side]} side must carry the join column(s) "
            f"{', '.join(outside)}, which are not in its upsert key, got NULL; take the changes from a "
            "source whose deletes have all columns, such as upsert.normalize"
        )


def _failed(asked: pa.Table, found: Found) -> pa.Table:
    return asked.take(pa.array(list(found.failures), pa.int64()))


def _without(asked: pa.Table, failed: pa.Table) -> pa.Table:
    return asked.filter(pa.array(~is_among(asked, failed)))


def _split(join: LatestJoin, side: int, own: Drivers, failed: pa.Table) -> tuple[Drivers, pa.Table | None]:
    """The changes whose join keys can go on, and those that wait."""
    is_late = is_among(join_keys(join, side, own.rows), failed)
    return own.where(~is_late), own.rows.filter(pa.array(is_late)) if is_late.any() else None


def _learn(
    join: LatestJoin, side: int, answered: pa.Table, found: Found, own: Drivers, finder: Finder
) -> pa.Table:
    """All rows of a side under the keys that were answered; its finder may remember them."""
    names = join.sides[side].columns.names
    looked_up = found.rows.select(names)
    looked_up = looked_up.filter(pa.array(is_among(join_keys(join, side, looked_up), answered)))
    changes = own.where(is_among(join_keys(join, side, own.rows), answered))
    rows = _on_top(join, side, looked_up, changes)
    finder.learn(answered, rows, own)
    return rows


def _on_top(join: LatestJoin, side: int, looked_up: pa.Table, changes: Drivers) -> pa.Table:
    """Looked up rows with changes applied: the newest row of each upsert key, unless that is gone.

    What was looked up may be older than a change (a source that lags) or newer (one that is ahead of the
    stream). The order tells which; without one the change wins, and what was newer comes by itself. A delete
    always wins: it is being forwarded, and the row that came after it comes by itself too.
    """
    of = join.sides[side]
    parts = looked_up, changes.rows.drop_columns([ROW_KIND_COLUMN])
    of_side = [pa.Table.from_arrays(part.columns, schema=of.columns) for part in parts]
    both = pa.concat_tables(of_side).combine_chunks()
    key = codes_of(both, of.upsert_key)
    is_gone = np.isin(key, key[looked_up.num_rows :][~changes.is_value])
    chosen = newest(both, key, of.order_by)
    return both.take(pa.array(chosen[~is_gone[chosen]]))
