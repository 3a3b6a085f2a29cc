"""Which looked-up keys other tables' changes may have to do with (pure).

A row of the output can come out of two paths with opposite signs only if, in each of the two, some lookup
asked a table that changed as well for a key that it changed: were the answers of all lookups the same at
both versions, the other table's path would not emit the row. So a lookup of a changed key leaves a mark on
the rows that asked, and only marked rows are held back until all paths have run. A mark too many costs
time, no row: hashes may collide.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from deltajoin.bundles import Marks
from deltajoin.changes import Changes, Signs
from deltajoin.row_codes import Ints
from upsert.store.hashing import Hashes, hash_columns, one_array

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
        came, went = self._of(tuple(by))
        asked = _hashes(keys)
        return _is_in(asked, came) * np.uint8(PLUS) | _is_in(asked, went) * np.uint8(MINUS)

    def _of(self, by: tuple[str, ...]) -> tuple[Hashes, Hashes]:
        if by not in self._known:
            hashes = _hashes(self._changes.rows.select(list(by)))
            self._known[by] = np.sort(hashes[self._signs > 0]), np.sort(hashes[self._signs < 0])
        return self._known[by]


def opposes(marks: Marks, sign: Signs) -> npt.NDArray[np.bool_]:
    """Rows that hold a mark of the sign opposite to their own."""
    opposite: npt.NDArray[np.bool_] = (marks & np.where(sign > 0, MINUS, PLUS)) != 0
    return opposite


def contested_keys(
    signs: Sequence[Signs], codes: Sequence[Ints], *, only_opposite: bool
) -> npt.NDArray[np.bool_]:
    """For each code of a key that all tables share, whether several tables changed rows with it.

    Args:
        signs: of each table's changes.
        codes: of their keys.
        only_opposite: whether only changes of opposite sign count.

    >>> one, other = np.array([1, 1], np.int8), np.array([-1], np.int8)
    >>> contested_keys([one, other], [np.array([0, 1]), np.array([1])], only_opposite=True).tolist()
    [False, True]
    """
    count = 1 + max(int(own.max(initial=-1)) for own in codes)
    came, went, either = np.zeros((3, count), np.int64)
    contested = np.zeros(count, np.bool_)
    for sign, own in zip(signs, codes, strict=True):
        plus, minus = np.zeros((2, count), np.bool_)
        plus[own[sign > 0]] = True
        minus[own[sign < 0]] = True
        contested |= (
            (plus & (went > 0)) | (minus & (came > 0)) if only_opposite else (plus | minus) & (either > 0)
        )
        came, went, either = came + plus, went + minus, either + (plus | minus)
    return contested


def _hashes(keys: pa.Table) -> Hashes:
    """A hash for each row; integers of any width have the same one."""
    columns = [one_array(column) for column in keys.columns]
    wide = [c.cast(pa.int64()) if pa.types.is_integer(c.type) else c for c in columns]
    return hash_columns(wide, keys.num_rows)


def _is_in(asked: Hashes, known: Hashes) -> npt.NDArray[np.bool_]:
    if not len(known):
        return np.zeros(len(asked), np.bool_)
    at = np.minimum(np.searchsorted(known, asked), len(known) - 1)
    found: npt.NDArray[np.bool_] = known[at] == asked
    return found
