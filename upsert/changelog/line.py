"""Images and records of many keys in one line, so that what a record meets is what stands before it (pure).

Key after key, each key's image first, then its records, oldest first. Places of the line are numbers, so
every question about a record and its predecessor is an array shifted by one. Two orders are known. Without
``order_by`` the records are a log: the order is that of the rows. With it the highest value of these columns
is the newest, wherever it stands, rows of equal order as they come; a record that is older than its key's
image is *late* and not in the line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upsert.changelog.equality import equal_pairs
from upsert.changelog.rules import Expiry, Rules
from upsert.store.hashing import fixed_width, is_null, one_array
from upsert.store.row_keys import order_by

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Keyed(NamedTuple):
    """Rows, whether each is a value (else its key is deleted), and a number for the key of each."""

    rows: pa.Table
    is_value: Flags
    groups: Ints


@dataclass(frozen=True)
class Line:
    """Images, numbered from 0, and records, numbered after them.

    Attributes:
        rows: number of the image or record at each place of the line.
        is_first: whether a key begins there.
        is_value: whether the key has a row after this place.
        is_record: whether it is a record, rather than an image.
        is_expired: whether what stands before it counts as absent.
        refreshes: whether a record that equals the image replaces it.
    """

    rows: Ints
    is_first: Flags
    is_value: Flags
    is_record: Flags
    is_expired: Flags
    refreshes: bool

    @classmethod
    def of(cls, images: Keyed, records: Keyed, rules: Rules) -> Line:
        """The line of images and records; the images have the columns that ``rules`` remember."""
        groups = np.concatenate([images.groups, records.groups])
        if rules.order_by:
            rows = _by_order(images, records, groups, rules)
        else:
            rows = np.argsort(groups, kind="stable")
        group = groups[rows]
        is_first = np.ones(len(rows), np.bool_)
        is_first[1:] = group[1:] != group[:-1]
        return cls(
            rows,
            is_first,
            np.concatenate([images.is_value, records.is_value])[rows],
            rows >= len(images.groups),
            _is_expired(images, records, rows, rules.expiry),
            rules.expiry is not None,
        )

    @property
    def lasts(self) -> Ints:
        """Of each key its last place."""
        ends = np.ones(len(self.rows), np.bool_)
        ends[:-1] = self.is_first[1:]
        return np.flatnonzero(ends)


class Encounters(NamedTuple):
    """What each place of a line meets, and what it leaves behind.

    Attributes:
        before: number of the row that the key had until then, -1 for none.
        heads: the place whose row the key has from then on (or that deleted it).
        is_change: whether it is a record that changes anything.
    """

    before: Ints
    heads: Ints
    is_change: Flags


def encounters(line: Line, rows: pa.Table, compare: Sequence[str]) -> Encounters:
    """What every record meets.

    A stretch of equal values, or of deletes, is headed by its first place: the others change nothing.

    Args:
        line: the line.
        rows: images and records, by their numbers in the line.
        compare: columns in which values differ.
    """
    follows = ~line.is_first
    was = np.zeros(len(line.rows), np.bool_)
    was[1:] = line.is_value[:-1]
    is_same = follows & ~line.is_value & ~was
    was &= follows & ~line.is_expired
    if not line.refreshes:
        both = np.flatnonzero(was & line.is_value)
        is_same[both[equal_pairs(rows, line.rows[both - 1], line.rows[both], compare)]] = True
    heads = np.maximum.accumulate(np.where(is_same, 0, np.arange(len(line.rows))))
    before = np.full(len(line.rows), -1, np.int64)
    meeting = np.flatnonzero(was)
    before[meeting] = line.rows[heads[meeting - 1]]
    return Encounters(before, heads, ~is_same & line.is_record & (line.is_value | was))


def _by_order(images: Keyed, records: Keyed, groups: Ints, rules: Rules) -> Ints:
    """Row numbers by key and order, without late records."""
    orders = [
        pa.chunked_array([*images.rows.column(kept).chunks, *records.rows.column(name).chunks])
        for kept, name in zip(rules.orders, rules.order_by, strict=True)
    ]
    rows = order_by([pa.array(groups), *orders]).rows
    # the sort is stable and images come first, so a record of the image's own order stands behind it
    is_image = np.flatnonzero(rows < len(images.groups))
    of_key = np.full(int(groups.max(initial=-1)) + 1, -1, np.int64)
    of_key[groups[rows[is_image]]] = is_image
    found: Ints = rows[np.arange(len(rows)) >= of_key[groups[rows]]]
    return found


def _is_expired(images: Keyed, records: Keyed, rows: Ints, expiry: Expiry | None) -> Flags:
    """Where the place before is more than ``ttl_ms`` older."""
    expired = np.zeros(len(rows), np.bool_)
    if expiry is None:
        return expired
    columns = [ticks_of(part.rows.column(expiry.time)) for part in (images, records)]
    ticks = np.concatenate([found for found, _ in columns])[rows]
    is_known = np.concatenate([known for _, known in columns])[rows]
    ttl = expiry.ticks(records.rows.schema.field(expiry.time).type)
    expired[1:] = is_known[1:] & is_known[:-1] & (ticks[:-1] < earlier(ticks[1:], ttl))
    return expired


def ticks_of(times: pa.ChunkedArray) -> tuple[Ints, Flags]:
    """Times as integers of the column's own unit, and whether each is known."""
    column = one_array(times)
    return fixed_width(column), ~is_null(column)


def earlier(ticks: Ints | np.int64, by: int) -> Ints:
    """``ticks - by``, without wrapping round at the lowest integer."""
    lowest = np.iinfo(np.int64).min
    return np.where(ticks < lowest + by, lowest, ticks - by)
