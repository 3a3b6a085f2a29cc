"""The sidecar of a data file: for each lookup index, the rows' hashes in order and where the rows are.

One uncompressed Arrow IPC batch beside the data file, memory-mapped by readers: a search touches a few
pages of the hash column, whatever the file's size. A hit is a candidate, whose real values are compared.

Hashes are spread evenly, so the n rows of a file cut the range of hashes into n *slots* of about one row
each. The index knows where each slot begins, and which eighths of it have rows at all: most keys that a file
does not hold are passed over by one bit, and the others are found in a step or two, in a third of the time of
a binary search.

A single integer-like key is searched in the key column itself, which files are sorted by. Of its index the
sidecar has only where the rows are and which eighths have some: the hash of a row follows from its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upsert.arrays import Positions
from upsert.store.rows.hashing import Hashes, hash_columns
from upsert.store.rows.layout import Layout

_STEPS: Final = 8
"""Rows of a slot that are looked at one after the other; only hashes that are repeated fill one further."""


class HashIndex(NamedTuple):
    """Hashes of a file's rows in order, where the rows are, and where to look for a hash.

    Attributes:
        hashes: of all rows, ascending.
        rows: the row number of each hash.
        starts: for each slot the position of the first hash in it, or beyond it.
        filled: for each slot a byte; its bit i says whether eighth i of the slot has a hash.
    """

    hashes: Hashes
    rows: npt.NDArray[np.uint32]
    starts: npt.NDArray[np.uint32]
    filled: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, hashes: Hashes, rows: npt.NDArray[np.uint32]) -> Self:
        """The index of hashes that are in order."""
        eighths = _eighths(hashes, len(hashes))
        in_slot = np.bincount(eighths >> 3, minlength=len(hashes))
        starts = (np.cumsum(in_slot) - in_slot).astype(np.uint32)
        has_rows = np.zeros(8 * len(hashes), np.bool_)
        has_rows[eighths] = True
        return cls(hashes, rows, starts, np.packbits(has_rows, bitorder="little"))


class Hits(NamedTuple):
    """Pairs of a probe and a row of the file: ``rows[i]`` may be what ``probes[i]`` asks for."""

    probes: Positions
    rows: Positions


_PARTS: Final = {"hash": pa.uint64(), "row": pa.uint32(), "start": pa.uint32(), "filled": pa.uint8()}
_NAMES: Final = dict(zip(HashIndex._fields, _PARTS, strict=True))


_FOLLOW: Final = frozenset({"pk.hash", "pk.start"})
"""What follows from the rows of a file that is searched by its key."""


def sidecar_schema(layout: Layout, *, is_whole: bool = False) -> pa.Schema:
    """Arrow schema of a table's sidecars; ``is_whole`` of those of earlier releases."""
    parts = [(f"{index.name}.{part}", type_) for index in layout.indexes for part, type_ in _PARTS.items()]
    is_short = layout.is_searched_by_key and not is_whole
    return pa.schema([part for part in parts if not (is_short and part[0] in _FOLLOW)])


def build_sidecar(layout: Layout, rows: pa.RecordBatch) -> pa.RecordBatch:
    """The sidecar of a data file with these rows."""
    arrays: dict[str, pa.Array] = {}
    for index in layout.indexes:
        for part, values in build_index(rows, index.columns)._asdict().items():
            arrays[f"{index.name}.{_NAMES[part]}"] = pa.array(values)
    schema = sidecar_schema(layout)
    return pa.record_batch([arrays[name] for name in schema.names], schema=schema)


def build_index(rows: pa.RecordBatch, columns: Sequence[str]) -> HashIndex:
    """The index of some rows by these columns."""
    hashes = hash_columns([rows.column(name) for name in columns], rows.num_rows)
    order = np.argsort(hashes)  # rows of equal hashes in any order: a third of the time of a stable sort
    return HashIndex.of(hashes[order], order.astype(np.uint32))


def read_indexes(layout: Layout, sidecar: pa.RecordBatch) -> dict[str, HashIndex]:
    """The indexes of a table that a sidecar has, by name, as views of its memory."""
    there = set(sidecar.schema.names)
    return {
        index.name: HashIndex(
            *(sidecar.column(f"{index.name}.{part}").to_numpy(zero_copy_only=True) for part in _PARTS)
        )
        for index in layout.indexes
        if f"{index.name}.hash" in there
    }


class KeyIndex(NamedTuple):
    """What a sidecar has of the index of a key that is searched itself, as ``HashIndex`` has it."""

    rows: npt.NDArray[np.uint32]
    filled: npt.NDArray[np.uint8]


def read_key_index(sidecar: pa.RecordBatch) -> KeyIndex | None:
    """The short index of the primary key, as views of a sidecar's memory; None if it has the whole one."""
    if "pk.hash" in sidecar.schema.names:
        return None
    rows, filled = (sidecar.column(f"pk.{part}").to_numpy(zero_copy_only=True) for part in ("row", "filled"))
    return KeyIndex(rows, filled)


def may_hold(index: HashIndex | KeyIndex, probes: Hashes) -> Positions:
    """Positions, ascending, of all probes that the file has rows of, and of few others: about one in nine."""
    return _in_filled(index, _eighths(probes, len(index.filled)))


def search(index: HashIndex, probes: Hashes) -> Hits:
    """All rows of the file whose hash equals a probe's; ``probes`` in ascending order are found fastest."""
    eighths = _eighths(probes, len(index.hashes))
    asked = _in_filled(index, eighths)
    wanted = probes[asked]
    low = _first_not_below(index, wanted, index.starts[eighths[asked] >> 3].astype(np.int64))
    there = np.flatnonzero(index.hashes[low] == wanted)
    found, low = asked[there], low[there]
    if not len(found):
        return Hits(found, found)
    # rows are counted only where the next hash is the same too: keys have one row each
    following = np.minimum(low + 1, len(index.hashes) - 1)
    more = np.flatnonzero((index.hashes[following] == probes[found]) & (following > low))
    if not len(more):
        return Hits(found, index.rows[low].astype(np.int64))
    repeats = np.ones(len(found), dtype=np.int64)
    repeats[more] = np.searchsorted(index.hashes, probes[found[more]], side="right") - low[more]
    # the offsets within each probe's stretch: a running count that restarts at every probe
    within = np.arange(int(repeats.sum())) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    return Hits(np.repeat(found, repeats), index.rows[np.repeat(low, repeats) + within].astype(np.int64))


def _first_not_below(index: HashIndex, wanted: Hashes, low: Positions) -> Positions:
    """The position of the first hash that is not below each one, from its slot on; else that of the last."""
    last = len(index.hashes) - 1
    below = np.flatnonzero(index.hashes[low] < wanted)
    for _ in range(_STEPS):
        if not len(below):
            return low
        further = low[below] + 1
        low[below] = np.minimum(further, last)
        below = below[(further < last) & (index.hashes[low[below]] < wanted[below])]
    low[below] = np.minimum(np.searchsorted(index.hashes, wanted[below]), last)
    return low


def _eighths(hashes: Hashes, slots: int) -> Positions:
    """Number of the eighth of a slot in which each hash lies, of eight times so many: it ascends with it."""
    upper = hashes >> np.uint64(32)
    upper *= np.uint64(slots)
    upper >>= np.uint64(29)
    return upper.view(np.int64)


def _in_filled(index: HashIndex | KeyIndex, eighths: Positions) -> Positions:
    """Positions of the eighths that have rows."""
    bits = index.filled[eighths >> 3] >> (eighths.astype(np.uint8) & np.uint8(7))
    return np.flatnonzero(bits & np.uint8(1))
