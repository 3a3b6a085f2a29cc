"""Keys searched through the runs of one bucket, newest first: one search and one take a file for all of them.

By primary key the first hit decides, also if it is a deletion: older runs no longer matter for that key. By
any other index a hit is a candidate. It is still true at this snapshot only if no newer run holds its primary
key, for there the row may have changed its indexed columns or be gone. In a table without primary key all
runs count: equal rows add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise, takewhile
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upsert import types
from upsert.arrays import Kinds, Mask, Positions, combinations, is_null, taken
from upsert.errors import SchemaError
from upsert.store.files.data_file import DataFile
from upsert.store.files.lookup_index import Hits, search
from upsert.store.metadata.file_entry import Run
from upsert.store.metadata.file_set import FileSet
from upsert.store.metadata.partition_order import Ends, any_between
from upsert.store.paths import BucketId, Partition
from upsert.store.rows.conform import (
    ArrowStream,
    check_is_table,
    equal_values,
    may_look_up,
    read_stream,
)
from upsert.store.rows.hashing import Hashes, bucket_of, fixed_width, hash_columns, normalised_floats
from upsert.store.rows.keys import equal_at, order_by
from upsert.store.rows.layout import Layout, LookupIndex
from upsert.store.rows.partitions import partition_codes


@dataclass(frozen=True)
class Probe:
    """Keys to look up: one array a column, in the table's types, no NULL in any.

    ``origin`` is of each key its row in what the caller gave; those that can match nothing are gone.
    """

    columns: tuple[str, ...]
    values: tuple[pa.Array, ...]
    origin: Positions
    _hashes: dict[tuple[str, ...], Hashes] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.origin)

    def column(self, name: str) -> pa.Array:
        """The keys' values of one column."""
        return self.values[self.columns.index(name)]

    def hashes(self, columns: tuple[str, ...]) -> Hashes:
        """Hash of the keys' values of some columns; computed once."""
        if columns not in self._hashes:
            self._hashes[columns] = hash_columns([self.column(name) for name in columns], len(self))
        return self._hashes[columns]

    def take(self, positions: Positions) -> Probe:
        """Some of the keys."""
        hashes = {columns: found[positions] for columns, found in self._hashes.items()}
        values = tuple(taken(column, positions) for column in self.values)
        return Probe(self.columns, values, self.origin[positions], hashes)

    def where(self, mask: Mask) -> Probe:
        """The keys for which a mask is true."""
        return self if mask.all() else self.take(np.flatnonzero(mask))

    def slice(self, start: int, stop: int) -> Probe:
        """Keys that follow each other; they are not copied."""
        if stop - start == len(self):
            return self
        hashes = {columns: found[start:stop] for columns, found in self._hashes.items()}
        values = tuple(column[start:stop] for column in self.values)
        return Probe(self.columns, values, self.origin[start:stop], hashes)

    def distinct(self, by: tuple[str, ...]) -> Probe:
        """Each key once; ``by`` are columns whose hashes will be needed anyway."""
        ordered = np.sort(self.hashes(by))
        if (ordered[1:] != ordered[:-1]).all():
            return self
        order = order_by(self.values)
        return self if order.is_first.all() else self.take(order.firsts)


def prepare(layout: Layout, columns: Sequence[str], keys: pa.Table | ArrowStream) -> Probe:
    """The keys of a lookup by ``columns``.

    Integers of another width are cast; keys that do not fit the column's type, or have a NULL, match nothing.
    """
    if not isinstance(keys, pa.Table) and isinstance(keys, ArrowStream):
        keys = read_stream(keys).read_all()
    check_is_table(keys, "lookup: keys")
    names = tuple(columns)
    if not names or len(set(names)) < len(names):
        raise SchemaError(f"lookup: columns must be at least one and each once, got {list(names)!r}")
    arrays = [_values(layout, name, keys) for name in names]
    origin = np.arange(keys.num_rows)
    if any(array.null_count for array in arrays):
        origin = np.flatnonzero(reduce(np.logical_and, (~is_null(array) for array in arrays)))
        arrays = [array.take(pa.array(origin)) for array in arrays]
    values = (pa.array(normalised_floats(a)) if pa.types.is_floating(a.type) else a for a in arrays)
    return Probe(names, tuple(values), origin)


def _values(layout: Layout, name: str, keys: pa.Table) -> pa.Array:
    if name not in layout.fields:
        raise SchemaError(f"lookup: unknown column {name!r}; columns are {', '.join(layout.schema.names)}")
    type_ = layout.fields[name].type
    if name not in keys.column_names:
        raise SchemaError(f"lookup: keys must have column {name!r}, got {', '.join(keys.column_names)}")
    given = keys.column(name)
    if not may_look_up(given.type, type_):
        raise SchemaError(
            f"lookup: keys of column {name!r} must be {types.sql_name(type_)}, got Arrow type {given.type}; "
            "cast them"
        )
    return equal_values(given, type_)


def buckets_for(layout: Layout, files: FileSet, probe: Probe) -> Iterator[tuple[Sequence[Run], Probe]]:
    """The runs of each bucket that may hold matches, with the keys that may match there.

    Keys that contain the bucket key go to one bucket, those with partition columns to one partition; others
    go everywhere.
    """
    every = [(0, len(probe))] * layout.buckets
    if layout.buckets > 1 and set(layout.bucket_key) <= set(probe.columns):
        probe, every = _by_bucket(layout, probe)
    names = layout.schema.partitioned_by
    buckets = files.buckets(lambda ends: _may_have_any(probe, names, ends))
    partitions = {partition for partition, _ in buckets}
    by_partition = [
        _partition_codes(position, partitions, probe.column(name))
        for position, name in enumerate(names)
        if name in probe.columns
    ]
    asked: dict[BucketId, Probe] = {}
    for bucket_id in buckets:
        partition, bucket = bucket_id
        start, stop = every[bucket]
        wanted = [(codes[start:stop], of_partition[partition]) for codes, of_partition in by_partition]
        if start == stop or any(code < 0 for _, code in wanted):
            continue
        part = probe.slice(start, stop)
        if wanted:
            part = part.where(reduce(np.logical_and, (codes == code for codes, code in wanted)))
        if len(part):
            asked[bucket_id] = part
    groups = files.within(asked).groups
    yield from ((groups[bucket_id], part) for bucket_id, part in asked.items())


def _by_bucket(layout: Layout, probe: Probe) -> tuple[Probe, list[tuple[int, int]]]:
    """The keys bucket by bucket, each of which has them in their order; where those of each begin and end."""
    numbers = bucket_of(probe.hashes(layout.bucket_key), layout.buckets)
    counts = np.bincount(numbers, minlength=layout.buckets)
    ends = np.cumsum(counts).tolist()
    if len(probe) in counts:  # keys that a bucket's changes touch
        return probe, list(pairwise([0, *ends]))
    # numpy sorts numbers of two bytes by their digits
    order = np.argsort(numbers.astype(np.min_scalar_type(layout.buckets)), kind="stable")
    return probe.take(order), list(pairwise([0, *ends]))


def _may_have_any(probe: Probe, names: Sequence[str], ends: Sequence[Ends]) -> Mask:
    """For each two ends, whether a partition between them may have a key."""
    columns = [partition_codes(probe.column(name)) for name in takewhile(probe.columns.__contains__, names)]
    if not columns:
        return np.ones(len(ends), np.bool_)
    ones, _ = combinations([codes for codes, _ in columns])
    beginnings = [tuple(texts[codes[row]] for codes, texts in columns) for row in ones.tolist()]
    return np.array(any_between(beginnings, ends), np.bool_)


def _partition_codes(
    position: int, partitions: Iterable[Partition], keys: pa.Array
) -> tuple[Positions, Mapping[Partition, int]]:
    """A number for each key's value of a partition column, and for each partition's; -1 if no key has it."""
    codes, texts = partition_codes(keys)
    code_of = {text: code for code, text in enumerate(texts)}
    return codes, {partition: code_of.get(partition[position][1], -1) for partition in partitions}


Runs = Sequence[Sequence[DataFile]]
"""Open files of a bucket's runs, newest run first."""


Columns = Mapping[str, pa.Array]
"""Some columns of some rows by name."""


def table_of(found: Sequence[Columns], schema: pa.Schema) -> pa.Table:
    """The rows of some, at least one, one after the other; of the columns of a schema."""
    chunks = (pa.chunked_array([columns[name] for columns in found]) for name in schema.names)
    return pa.Table.from_arrays(list(chunks), schema=schema)


class Matches(NamedTuple):
    """Stored rows that a key matches: row i belongs to key ``probes[i]`` of the probe."""

    probes: Positions
    rows: Columns


def in_search_order(layout: Layout, index: LookupIndex, probe: Probe) -> Probe:
    """The keys in the order in which a search of a file touches its pages one after the other."""
    codes = _searched(layout, index, probe)
    # keys of a run are in order already
    return probe if (codes[1:] >= codes[:-1]).all() else probe.take(np.argsort(codes))


def _searched(layout: Layout, index: LookupIndex, probe: Probe) -> npt.NDArray[Any]:
    """What an index is searched for: the values of the keys, or their hashes."""
    if _is_direct(layout, index.columns):
        return fixed_width(probe.column(index.columns[0]))
    return probe.hashes(index.columns)


def columns_to_compare(layout: Layout, index: LookupIndex, runs: int, probe: Probe) -> tuple[str, ...]:
    """Columns that must be read to tell whether a hit is a match.

    The keys' own, to rule out collisions of hashes, and the primary key where newer runs may hide the row.
    """
    if index.columns == layout.key and _is_direct(layout, layout.key):
        return tuple(name for name in probe.columns if name not in layout.key)
    return (*probe.columns, *layout.key) if runs > 1 or layout.is_counted else probe.columns


def matches_by_key(layout: Layout, runs: Runs, probe: Probe, needed: Sequence[str]) -> list[Matches]:
    """Current rows of a keyed table that equal a key, where the keys contain the whole primary key.

    The keys are in search order; ``needed`` are the columns to return, see ``columns_to_compare``.
    """
    beyond = tuple(name for name in probe.columns if name not in layout.key)
    found: list[Matches] = []
    for newest in newest_by_key(layout, runs, probe, needed):
        kept = None if newest.kinds is None else newest.kinds == 0
        if beyond:
            same = _equals(newest.rows, beyond, probe, newest.probes)
            kept = same if kept is None else kept & same
        found.append(_kept(newest.probes, newest.rows, kept))
    return found


class Newest(NamedTuple):
    """What a bucket says last about some keys: row i of key ``probes[i]``, deleted if its kind is 1.

    The rows are those of these ``numbers`` in one ``file``.
    """

    probes: Positions
    rows: Columns
    kinds: Kinds | None
    file: DataFile
    numbers: Positions


def newest_by_key(layout: Layout, runs: Runs, probe: Probe, needed: Sequence[str]) -> Iterator[Newest]:
    """The newest row of each key that a bucket of a keyed table has, also where it is a deletion."""
    searched = _Searched.of(layout, probe)
    pending: Positions | None = None
    for run in runs:
        for file in run:
            hits = searched.find(file, pending)
            if not len(hits.probes):
                continue
            rows: Columns = file.columns(needed, hits.rows)
            kinds = None if file.kinds is None else file.kinds[hits.rows]
            matched, numbers = hits.probes, hits.rows
            # by hash a hit may be a collision
            if not searched.is_exact and not (same := _equals(rows, layout.key, probe, matched)).all():
                matched, numbers, rows = matched[same], numbers[same], _some(rows, same)
                kinds = None if kinds is None else kinds[same]
            yield Newest(matched, rows, kinds, file, numbers)
            pending = _without(pending, matched, len(probe))
            if not len(pending):
                return


def matches_by_index(
    layout: Layout, index: LookupIndex, runs: Runs, probe: Probe, needed: Sequence[str]
) -> list[Matches]:
    """Current rows of a keyed table that equal a key, found by a key prefix or a secondary index.

    A key of a unique index is looked for no further than to the newest run that has a current row of it.
    """
    found: list[Matches] = []
    pending: Positions | None = None
    for age, run in enumerate(runs):
        newer = [hiding for younger in runs[:age] for hiding in younger]
        for file in run:
            matches = current_candidates(layout, index, file, newer, probe, needed, pending)
            if not len(matches.probes):
                continue
            found.append(matches)
            if index.is_unique:
                pending = _without(pending, matches.probes, len(probe))
                if not len(pending):
                    return found
    return found


def current_candidates(
    layout: Layout,
    index: LookupIndex,
    file: DataFile,
    newer: Sequence[DataFile],
    probe: Probe,
    needed: Sequence[str],
    pending: Positions | None = None,
) -> Matches:
    """Rows of one file of a keyed table that equal a key, and whose primary key no newer file holds.

    With ``pending``, ascending, only these keys are looked for.
    """
    matches = _candidates(file, index, probe, needed, pending)
    if not newer or not len(matches.probes):
        return matches
    return _kept(matches.probes, matches.rows, ~_are_hidden(layout, newer, matches.rows))


def signed_matches(index: LookupIndex, runs: Runs, probe: Probe, needed: Sequence[str]) -> list[Matches]:
    """Rows of a table without primary key that equal a key, in every run, with the counts of each."""
    every = [_candidates(file, index, probe, needed) for run in runs for file in run]
    return [matches for matches in every if len(matches.probes)]


def _candidates(
    file: DataFile,
    index: LookupIndex,
    probe: Probe,
    needed: Sequence[str],
    pending: Positions | None = None,
) -> Matches:
    """Rows of one file that equal a key in all of the probe's columns, deletions left out."""
    hashes = probe.hashes(index.columns)
    if pending is None:
        hits = search(file.index(index.name), hashes)
    else:
        hits = search(file.index(index.name), hashes[pending])
        hits = Hits(pending[hits.probes], hits.rows)
    if file.kinds is not None:
        alive = file.kinds[hits.rows] == 0
        hits = Hits(hits.probes[alive], hits.rows[alive])
    rows = file.columns(needed, hits.rows)
    return _kept(hits.probes, rows, _equals(rows, probe.columns, probe, hits.probes))


def _are_hidden(layout: Layout, newer: Sequence[DataFile], rows: Columns) -> Mask:
    """Which rows have a primary key that a newer file holds."""
    columns = tuple(rows[name] for name in layout.key)
    keys = Probe(layout.key, columns, np.arange(len(columns[0])))
    searched = _Searched.of(layout, keys)
    hidden, left = np.zeros(len(keys), np.bool_), keys.origin
    for file in newer:
        # most keys are in one file only, so there is little left to be put in order
        asked = left[file.keys_that_may_be_there(searched.hashes[left])]
        if not len(asked):
            continue
        hits = searched.find(file, asked[np.argsort(searched.codes[asked])])
        stale = hits.probes
        if not searched.is_exact and len(stale):
            stale = stale[_equals(file.columns(layout.key, hits.rows), layout.key, keys, stale)]
        if len(stale):
            hidden[stale] = True
            left = np.flatnonzero(~hidden)
    return hidden


def _is_direct(layout: Layout, columns: tuple[str, ...]) -> bool:
    """Whether files are sorted by this one integer-like column, so that it can be searched itself."""
    return columns == layout.key and layout.is_searched_by_key


@dataclass(frozen=True)
class _Searched:
    """What files are searched for to find primary keys: integers themselves, which is exact, or hashes.

    ``codes`` are the one or the other.
    """

    key: str
    hashes: Hashes
    codes: npt.NDArray[Any]
    is_exact: bool

    @classmethod
    def of(cls, layout: Layout, probe: Probe) -> Self:
        """Of the keys of a probe."""
        hashes = probe.hashes(layout.key)
        if not _is_direct(layout, layout.key):
            return cls("", hashes, hashes, is_exact=False)
        return cls(layout.key[0], hashes, fixed_width(probe.column(layout.key[0])), is_exact=True)

    def find(self, file: DataFile, asked: Positions | None) -> Hits:
        """Rows whose primary key may be one of those at some positions, which are in search order.

        None for all of them: those of new keys are asked of each file, and need no copies of their hashes.
        """
        hashes = self.hashes if asked is None else self.hashes[asked]
        if not self.is_exact:
            hits = search(file.index("pk"), hashes)
            return hits if asked is None else Hits(asked[hits.probes], hits.rows)
        keys = fixed_width(file.column(self.key))
        there = file.keys_that_may_be_there(hashes)
        asked = there if asked is None else asked[there]
        wanted = self.codes[asked]
        # those outside of the file's range need no search
        first = int(np.searchsorted(wanted, keys[0]))
        stop = int(np.searchsorted(wanted, keys[-1], side="right"))
        at = np.searchsorted(keys, wanted[first:stop])
        found = np.flatnonzero(keys[at] == wanted[first:stop])
        return Hits(asked[found + first], at[found])


def _equals(rows: Columns, columns: Sequence[str], probe: Probe, probes: Positions) -> Mask:
    """Which hits equal their keys in some columns, at least one."""
    first, *others = (equal_at(rows[name], probe.column(name), probes) for name in columns)
    return reduce(np.logical_and, others, first)


def _kept(probes: Positions, rows: Columns, kept: Mask | None) -> Matches:
    if kept is None or kept.all():
        return Matches(probes, rows)
    return Matches(probes[kept], _some(rows, kept))


def _some(rows: Columns, kept: Mask) -> Columns:
    """The rows for which a mask is true."""
    positions = np.flatnonzero(kept)
    return {name: taken(column, positions) for name, column in rows.items()}


def _without(pending: Positions | None, matched: Positions, total: int) -> Positions:
    """``pending`` without ``matched``, both ascending; None for all of so many."""
    if len(matched) == (total if pending is None else len(pending)):
        return matched[:0]
    left = np.full(total, pending is None)
    if pending is not None:
        left[pending] = True
    left[matched] = False
    return np.flatnonzero(left)
