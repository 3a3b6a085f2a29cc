"""Signed rows of one side of a join, and what is left of them when equal rows cancel (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from deltajoin.row_codes import Ints, codes_of_rows, key_columns, numbers_of_keys, stable_order
from upsert.rowkind import ROW_KIND_COLUMN, signs

Signs = npt.NDArray[np.int8]


@dataclass(frozen=True)
class Changes:
    """Changes of one side: its selected columns with ``_row_kind`` last, and the join keys among them."""

    rows: pa.Table
    keys: tuple[str, ...] = ()

    @property
    def images(self) -> pa.Table:
        """The rows without their kinds."""
        return self.rows.drop_columns([ROW_KIND_COLUMN])

    @property
    def kinds(self) -> pa.ChunkedArray:
        """Kind of each row."""
        return self.rows.column(ROW_KIND_COLUMN)

    @cached_property
    def signs(self) -> Signs:
        """Sign of each row."""
        return signs(self.kinds)

    def key_table(self, positions: Ints) -> pa.Table:
        """Keys of the rows at these positions."""
        return self.rows.select(list(self.keys)).take(pa.array(positions))

    def key_codes(self, as_types: Sequence[pa.DataType]) -> Ints:
        """A code for each row's key, compared in these types; dense from 0."""
        return numbers_of_keys(key_columns(self.rows, self.keys, as_types))

    def take(self, positions: Ints) -> Changes:
        """The rows at these positions."""
        return Changes(self.rows.take(pa.array(positions)).combine_chunks(), self.keys)

    def where(self, mask: npt.NDArray[np.bool_]) -> Changes:
        """The rows for which the mask is true."""
        return self if mask.all() else self.take(np.flatnonzero(mask))


def shared_key_codes(left: Changes, right: Changes, as_types: Sequence[pa.DataType]) -> tuple[Ints, Ints]:
    """Codes of both sides' keys, equal where the keys are; dense over both sides together."""
    of_left, of_right = (key_columns(side.rows, side.keys, as_types) for side in (left, right))
    codes = numbers_of_keys([pa.concat_arrays(pair) for pair in zip(of_left, of_right, strict=True)])
    return codes[: left.rows.num_rows], codes[left.rows.num_rows :]


def weights(codes: Ints, sign: Signs, count: int) -> Ints:
    """Sum of the signs of each of ``count`` codes.

    >>> weights(np.array([0, 1, 0]), np.array([1, 1, -1], np.int8), 3).tolist()
    [0, 1, 0]
    """
    plus = np.bincount(codes[sign > 0], minlength=count)
    net: Ints = plus - np.bincount(codes[sign < 0], minlength=count)
    return net


def consolidated(changes: Changes) -> Changes:
    """The changes without rows that cancel: equal images of opposite sign, as a projection leaves them.

    What remains of equal rows is as many of them as the signs sum up to, each with its own kind.

    >>> rows = pa.table({"k": [1, 1, 2], "_row_kind": ["-U", "+U", "+I"]})
    >>> consolidated(Changes(rows, ("k",))).rows.to_pylist()
    [{'k': 2, '_row_kind': '+I'}]
    """
    sign = changes.signs
    if not len(sign) or np.all(sign == sign[0]):
        return changes
    stays = stay_after_netting(codes_of_rows(changes.images), sign)
    return changes if stays.all() else changes.take(np.flatnonzero(stays))


def stay_after_netting(codes: Ints, sign: Signs) -> npt.NDArray[np.bool_]:
    """Of each code, the first |net| rows of the net's own sign.

    >>> stay_after_netting(np.array([0, 0, 0, 1]), np.array([1, -1, 1, -1], np.int8)).tolist()
    [True, False, False, True]
    """
    net = weights(codes, sign, int(codes.max()) + 1)
    stays: npt.NDArray[np.bool_] = _rank_within(codes * 2 + (sign < 0)) < net[codes] * sign
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
