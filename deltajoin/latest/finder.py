"""The rows of one side by join key: from the cache where it has them, else from the side's source."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from deltajoin.errors import LookupFailedError
from deltajoin.latest.drivers import Drivers, codes_of, is_among, join_keys
from deltajoin.latest.spec import LatestJoin
from deltajoin.latest.step import Found
from deltajoin.lookup.batch import Lookups, Pending
from deltajoin.lookup.cache import CacheCounts, Cached, RowCache
from deltajoin.lookup.protocol import Answer
from deltajoin.lookup.requests import LookupCounts
from upsert.rowkind import ROW_KIND_COLUMN


class SideFinder:
    """Finds rows of one side for one step; a `deltajoin.latest.step.Finder`.

    The cache knows rows by whole join keys, whichever of their columns the source is asked by: all changes
    of a join key come to one shard, so an entry of this shard's cache misses none of them.

    Args:
        join: the join.
        side: the side's number.
        lookups: its source, opened.
        cache: what is remembered of it between steps; None: nothing.
    """

    def __init__(self, join: LatestJoin, side: int, lookups: Lookups, cache: RowCache | None) -> None:
        self._join, self._side = join, side
        self._lookups, self._cache = lookups, cache
        self._columns = join.sides[side].columns
        self._asked = self._empty_keys()
        self.lookup_counts = LookupCounts()

    def take_cache_counts(self) -> CacheCounts:
        """What the cache did since this was asked last."""
        return CacheCounts() if self._cache is None else self._cache.counts()

    def start(self, keys: pa.Table) -> _SidePending:
        """Begin to look up distinct join keys without NULLs, those that the cache does not know."""
        cached = None if self._cache is None else self._cache.get(keys)
        self._asked = keys if cached is None else keys.take(pa.array(cached.missing))
        return _SidePending(self, keys.num_rows, cached, self._lookups.start(self._in_source_order()))

    def learn(self, keys: pa.Table, rows: pa.Table, changes: Drivers) -> None:
        """Remember rows that were asked for, and apply changes to those that are known.

        FLIP-486 does it so: the other side's lookups make entries, the own side's changes only keep them up.
        """
        if self._cache is None:
            return
        own_keys = join_keys(self._join, self._side, rows)
        new = self._asked.filter(pa.array(is_among(self._asked, keys)))
        is_new = is_among(own_keys, new)
        fresh = rows.filter(pa.array(is_new))
        self._cache.put(new, Answer(_positions(new, own_keys.filter(pa.array(is_new))), fresh))
        known = changes.take(~is_among(join_keys(self._join, self._side, changes.rows), new))
        if len(known):
            self._cache.update(known.rows.drop_columns([ROW_KIND_COLUMN]), (~known.is_value).tolist())

    def _in_source_order(self) -> pa.Table:
        source = self._lookups.source
        at = [self._join.keys(self._side).index(name) for name in source.keys]
        return self._asked.select([str(n) for n in at]).rename_columns(list(source.keys))

    def _empty_keys(self) -> pa.Table:
        return join_keys(self._join, self._side, self._columns.empty_table())


@dataclass(frozen=True, eq=False)
class _SidePending:
    """Lookups of a side that are under way."""

    _finder: SideFinder
    _keys: int
    _cached: Cached | None
    _pending: Pending

    def result(self) -> Found:
        """Wait for them: rows from the cache and from the source, and failures by position of the key."""
        answer, counts = self._pending.result()
        self._finder.lookup_counts += counts
        names = self._finder._columns.names
        rows = pa.Table.from_arrays(answer.rows.select(names).columns, schema=self._finder._columns)
        if self._cached is None:
            return Found(rows, answer.failures)
        failures: dict[int, LookupFailedError] = {
            int(self._cached.missing[at]): failure for at, failure in answer.failures.items()
        }
        return Found(pa.concat_tables([self._cached.rows, rows]), failures)

    def cancel(self) -> None:
        """End what is still under way."""
        self._pending.cancel()


def _positions(keys: pa.Table, of_rows: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """For the key of each row its position among the distinct keys, all of which occur."""
    codes = codes_of(pa.concat_tables([keys, of_rows]), keys.column_names)
    return codes[keys.num_rows :]
