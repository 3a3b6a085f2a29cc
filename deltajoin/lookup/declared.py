"""Lookups in tables that CREATE TABLE has declared, and what a worker process keeps of them (FLIP-221)."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from deltajoin.lookup.batch import Lookups
from deltajoin.lookup.cache import Expiry, RowCache
from deltajoin.lookup.http import HttpLookup
from deltajoin.lookup.keys import distinct_keys
from deltajoin.lookup.postgres import PostgresLookup
from deltajoin.lookup.protocol import Answer, LookupSource, RequestLimits, key_fields
from upsert.lookups.http import HttpTable
from upsert.lookups.options import LookupOptions, LookupTable, PartialCache
from upsert.postgres.table import PostgresTable


def source_of(table: LookupTable, keys: Sequence[str], columns: Sequence[str]) -> LookupSource:
    """What gives these columns of a table's rows, asked by some of them."""
    schema = pa.schema([table.schema.arrow.field(name) for name in columns])
    if isinstance(table, HttpTable):
        return HttpLookup(
            table.url,
            schema,
            keys,
            headers=table.headers,
            limits=_limits(table.lookup, keys_per_request=100, requests=16),
            missing_is_null=table.missing_is_null,
            max_reply_bytes=table.max_reply_bytes,
            ca_file=table.ca_file,
        )
    if not isinstance(table, PostgresTable):
        raise AssertionError(f"a table that is looked up is one of two kinds, got {table!r}")
    return PostgresLookup(
        table.url,
        table.target,
        schema,
        keys,
        limits=_limits(table.lookup, keys_per_request=1_000, requests=4),
        user=table.user,
        password=table.password,
    )


def _limits(given: LookupOptions, *, keys_per_request: int, requests: int) -> RequestLimits:
    return RequestLimits(
        keys_per_request=given.keys_per_request or keys_per_request,
        requests=given.requests or requests,
        timeout_s=given.timeout_s,
        attempts=given.max_retries + 1,
    )


_caches: Final[WeakKeyDictionary[Lookups, RowCache]] = WeakKeyDictionary()


def with_cache(lookups: Lookups, cache: PartialCache | None) -> Callable[[pa.Table], Answer]:
    """What answers keys by lookups that are open, or by what this process keeps of earlier ones of them.

    What is kept goes when the lookups are closed. Belongs to one thread.

    >>> from deltajoin.lookup.memory import MemoryLookup
    >>> lookups = Lookups(MemoryLookup(pa.table({"id": [1], "name": ["ann"]}), ["id"]))
    >>> answer = with_cache(lookups, PartialCache(max_keys=10))
    >>> answer(pa.table({"id": [1, 2, 1]})).rows["name"].to_pylist()
    ['ann', 'ann']
    >>> lookups.close()
    >>> answer(pa.table({"id": [2, 1]})).positions.tolist()
    [1]
    """
    if cache is None:
        return lambda keys: lookups.answer(keys)[0]
    if (kept := _caches.get(lookups)) is None:
        kept = _caches[lookups] = _made(lookups.source, cache)
    return lambda keys: _answered(lookups, kept, cache, keys)


def _made(source: LookupSource, cache: PartialCache) -> RowCache:
    expiry = Expiry(cache.expire_after_write_s or math.inf, cache.expire_after_access_s or math.inf)
    max_keys = cache.max_keys or sys.maxsize
    return RowCache(source.schema, source.keys, None, max_keys=max_keys, expiry=expiry)


def _answered(lookups: Lookups, kept: RowCache, cache: PartialCache, keys: pa.Table) -> Answer:
    batch = distinct_keys(keys, key_fields(lookups.source))
    known = kept.get(batch.keys)
    if not len(known.missing):
        return batch.spread(Answer(known.positions, known.rows))
    asked = batch.keys.take(pa.array(known.missing))
    found, _ = lookups.answer(asked)
    _keep(kept, cache, asked, found)
    failures = {int(known.missing[at]): why for at, why in found.failures.items()}
    positions = np.concatenate([known.positions, known.missing[found.positions]])
    rows = pa.concat_tables([known.rows, found.rows])
    return batch.spread(Answer(positions, rows, failures))


def _keep(kept: RowCache, cache: PartialCache, asked: pa.Table, found: Answer) -> None:
    if cache.keeps_missing:
        kept.put(asked, found)
        return
    there = np.unique(found.positions)
    kept.put(asked.take(pa.array(there)), Answer(np.searchsorted(there, found.positions), found.rows))
