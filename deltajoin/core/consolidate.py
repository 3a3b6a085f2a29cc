"""What remains of signed rows when equal ones of opposite sign cancel, and which can cancel at all (pure).

A row of the output can come out of two paths with opposite signs only if, in each of the two, some lookup
asked a table that changed as well for a key that it changed: were the answers of all lookups the same at
both versions, the other table's path would not emit the row. So a lookup of a changed key leaves a mark on
the rows that asked, and only marked rows are held back until all paths have run. A mark too many costs
time, no row: hashes may collide.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from deltajoin.core.rows import Bundle, Changes, Marks, Signs, TablePart, concatenated
from upsert.arrays import Ints, Mask, one_array, stable_order
from upsert.rowkind import ROW_KIND_COLUMN, signs
from upsert.store.rows.codes import codes_of_rows, codes_of_values, combined, dense
from upsert.store.rows.hashing import Hashes, hash_columns


def weights(codes: Ints, sign: Signs, count: int) -> Ints:
    """Sum of the signs of each of ``count`` codes.

    >>> weights(np.array([0, 1, 0]), np.array([1, 1, -1], np.int8), 3).tolist()
    [0, 1, 0]
    """
    plus = np.bincount(codes[sign > 0], minlength=count)
    sums: Ints = plus - np.bincount(codes[sign < 0], minlength=count)
    return sums


def consolidate_changes(changes: Changes) -> Changes:
    """The changes without rows that cancel: equal images of opposite sign, as a projection leaves them.

    What remains of equal rows is as many of them as the signs sum up to, each with its own kind.

    >>> rows = pa.table({"k": [1, 1, 2], "_row_kind": ["-U", "+U", "+I"]})
    >>> consolidate_changes(Changes(rows)).rows.to_pylist()
    [{'k': 2, '_row_kind': '+I'}]
    """
    sign = changes.signs
    if not len(sign) or np.all(sign == sign[0]):
        return changes
    stays = remain_after_consolidating(codes_of_rows(changes.images), sign)
    return changes if stays.all() else changes.take(np.flatnonzero(stays))


def remain_after_consolidating(codes: Ints, sign: Signs) -> Mask:
    """Of each code with the weight w, the first |w| rows of w's own sign.

    >>> remain_after_consolidating(np.array([0, 0, 0, 1]), np.array([1, -1, 1, -1], np.int8)).tolist()
    [True, False, False, True]
    """
    weight = weights(codes, sign, int(codes.max()) + 1)
    stays: Mask = _rank_within(codes * 2 + (sign < 0)) < weight[codes] * sign
    return stays


def _rank_within(groups: Ints) -> Ints:
    """For each position, how many earlier positions have the same group."""
    order = stable_order(groups)
    grouped = groups[order]
    starts = np.flatnonzero(np.concatenate([[True], grouped[1:] != grouped[:-1]]))
    lengths = np.diff(np.append(starts, len(order)))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order)) - np.repeat(starts, lengths)
    return rank


PLUS: Final = 1
MINUS: Final = 2
"""Bits of a mark: the key was changed by a row that came, by one that went."""


class ChangedKeys:
    """Keys of the rows that changed in one table, by any of its columns.

    >>> changed = ChangedKeys(Changes(pa.table({"k": [7, 8], "_row_kind": ["+I", "-D"]})))
    >>> changed.marks(["k"], pa.table({"0": pa.array([8, 7, 6], pa.int32())})).tolist()
    [2, 1, 0]
    """

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._signs: Signs = changes.signs
        self._known: dict[tuple[str, ...], tuple[Hashes, Hashes]] = {}

    def marks(self, by: Sequence[str], keys: pa.Table) -> Marks:
        """For each key whether rows with it came and went; the columns of ``keys`` are in order of ``by``."""
        columns = tuple(by)
        if columns not in self._known:
            hashes = _hashes(self._changes.rows.select(list(by)))
            self._known[columns] = np.sort(hashes[self._signs > 0]), np.sort(hashes[self._signs < 0])
        (came, went), asked = self._known[columns], _hashes(keys)
        return _is_in(asked, came) * np.uint8(PLUS) | _is_in(asked, went) * np.uint8(MINUS)


def opposes(marks: Marks, sign: Signs) -> Mask:
    """Rows that hold a mark of the sign opposite to their own."""
    opposite: Mask = (marks & np.where(sign > 0, MINUS, PLUS)) != 0
    return opposite


def contested_keys(signs: Sequence[Signs], codes: Sequence[Ints], *, only_opposite: bool) -> Mask:
    """For each code of a key that all tables share, whether several tables changed rows with it.

    >>> one, other = np.array([1, 1], np.int8), np.array([-1], np.int8)
    >>> contested_keys([one, other], [np.array([0, 1]), np.array([1])], only_opposite=True).tolist()
    [False, True]
    """
    count = 1 + max(int(own.max(initial=-1)) for own in codes)
    came, went, contested = np.zeros((3, count), np.bool_)
    for sign, own in zip(signs, codes, strict=True):
        plus, minus = np.zeros((2, count), np.bool_)
        plus[own[sign > 0]] = True
        minus[own[sign < 0]] = True
        contested |= (plus & went) | (minus & came)
        if not only_opposite:
            contested |= (plus & came) | (minus & went)
        came, went = came | plus, went | minus
    return contested


def _hashes(keys: pa.Table) -> Hashes:
    """A hash for each row; integers of any width have the same one."""
    columns = [one_array(column) for column in keys.columns]
    wide = [c.cast(pa.int64()) if pa.types.is_integer(c.type) else c for c in columns]
    return hash_columns(wide, keys.num_rows)


def _is_in(asked: Hashes, known: Hashes) -> Mask:
    if not len(known):
        return np.zeros(len(asked), np.bool_)
    at = np.minimum(np.searchsorted(known, asked), len(known) - 1)
    found: Mask = known[at] == asked
    return found


def consolidate_bundles(bundles: Sequence[Bundle], tables: Sequence[int]) -> list[Bundle]:
    """What is left of the rows: of equal ones as many as their signs sum up to, each with its own kind.

    The parts of ``tables`` make up a row of the output.
    """
    bundles = [rows for rows in bundles if len(rows)]
    if not bundles:
        return []
    signs = np.concatenate([rows.signs for rows in bundles])
    if (signs == signs[0]).all():
        return list(bundles)
    whole = concatenated([rows.only(tables) for rows in bundles])
    codes = combined([_codes_of_part(whole.parts[table]) for table in tables])
    return [whole.where(remain_after_consolidating(codes, signs))]


def _codes_of_part(part: TablePart) -> Ints:
    """A code for each row's part, equal where the stored rows are; padded parts have one of their own."""
    codes = np.append(codes_of_rows(part.rows) + 1, 0)
    found: Ints = codes[part.at]  # PADDED is the last one
    return found


def consolidate_batches(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches without rows that cancel: equal ones of opposite sign."""
    if not batches:
        return
    rows = pa.Table.from_batches(batches)
    sign = signs(rows.column(ROW_KIND_COLUMN))
    at, codes = _with_both_signs(rows, sign)
    stays = np.ones(len(sign), np.bool_)
    if len(at):
        stays[at] = remain_after_consolidating(codes, sign[at])
    start = 0
    for batch in batches:
        own = stays[start : start + batch.num_rows]
        start += batch.num_rows
        if own.any():
            yield batch if own.all() else batch.filter(pa.array(own))


def _with_both_signs(rows: pa.Table, sign: Signs) -> tuple[Ints, Ints]:
    """Rows that have an equal one of the other sign: their positions, and a code for each row's value.

    Column by column, so that rows which one column tells apart are not looked at in the next.
    """
    at, codes = np.arange(len(sign)), np.zeros(len(sign), np.int64)
    names = [name for name in rows.column_names if name != ROW_KIND_COLUMN]
    for name in (None, *names):
        if name is not None:
            values = rows.column(name).take(pa.array(at)).combine_chunks()
            codes = combined([codes, codes_of_values([values])])
        both = _have_both_signs(codes, sign[at])
        at, codes = at[both], dense(codes[both])
        if not len(at):
            break
    return at, codes


def _have_both_signs(codes: Ints, sign: Signs) -> Mask:
    plus, minus = np.zeros((2, int(codes.max(initial=-1)) + 1), np.bool_)
    plus[codes[sign > 0]] = True
    minus[codes[sign < 0]] = True
    both: Mask = (plus & minus)[codes]
    return both
