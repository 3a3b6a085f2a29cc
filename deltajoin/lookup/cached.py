"""Lookups through a cache: what it has is not asked for, what is asked for is remembered."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from deltajoin.lookup.batch import Lookups, Pending
from deltajoin.lookup.cache import Cached, RowCache
from deltajoin.lookup.checks import key_fields
from deltajoin.lookup.counts import LookupCounts
from deltajoin.lookup.distinct import DistinctKeys, distinct_keys
from deltajoin.lookup.protocol import Answer


@dataclass(frozen=True, eq=False)
class CachedPending:
    """A batch of which a cache knows a part, and whose other lookups are under way."""

    _batch: DistinctKeys
    _cache: RowCache
    _cached: Cached
    _pending: Pending | None

    def result(self) -> tuple[Answer, LookupCounts]:
        """As `Pending.result`; the cache takes in what the source said.

        Raises:
            SchemaError: rows that were found have no upsert keys that tell them apart.
            Exception: a client raised something else than a ``LookupFailedError``, which is a bug in it.
        """
        if self._pending is None:
            answer = Answer(self._cached.positions, self._cached.rows)
            return self._batch.spread(answer), LookupCounts()
        missing = self._cached.missing
        asked, counts = self._pending.result()
        self._cache.put(self._batch.keys.take(pa.array(missing)), asked)
        answer = Answer(
            np.concatenate([self._cached.positions, missing[asked.positions]]),
            pa.concat_tables([self._cached.rows, asked.rows]),
            {int(missing[at]): failure for at, failure in asked.failures.items()},
        )
        return self._batch.spread(answer), counts


def start_lookups(lookups: Lookups, keys: pa.Table, cache: RowCache | None) -> Pending | CachedPending:
    """Send the lookups of a batch on their way, those that the cache cannot answer, and do not wait.

    Both sides of a join are started before the result of one is waited for; then their lookups are in flight
    together.

    Args:
        lookups: where to look up.
        keys: the source's key columns in their order and types; any number of rows, also equal ones and such
            that have a NULL.
        cache: the cache of this source; None: there is none.

    Raises:
        SchemaError: the keys have other columns or types.

    >>> from deltajoin.lookup.memory import MemoryLookup
    >>> source = MemoryLookup(pa.table({"id": [1, 2], "name": ["ann", "bob"]}), ["id"])
    >>> lookups, cache = Lookups(source), RowCache(source.schema, source.keys, ["id"])
    >>> for _ in range(2):
    ...     answer, counts = start_lookups(lookups, pa.table({"id": [1, 9, 1]}), cache).result()
    ...     print(answer.rows["name"].to_pylist(), counts.requests)
    ['ann', 'ann'] 1
    ['ann', 'ann'] 0
    >>> lookups.close()
    """
    if cache is None:
        return lookups.start(keys)
    batch = distinct_keys(keys, key_fields(lookups.source))
    cached = cache.get(batch.keys)
    pending = lookups.start(batch.keys.take(pa.array(cached.missing))) if len(cached.missing) else None
    return CachedPending(batch, cache, cached, pending)
