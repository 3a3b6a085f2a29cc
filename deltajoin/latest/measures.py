"""What a step of the operator cost, as numbers that Spark adds up over the shards of a micro-batch (pure)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Self

from deltajoin.lookup.cache_values import CacheCounts
from deltajoin.lookup.counts import LookupCounts


@dataclass(frozen=True)
class Measures:
    """Counts of one side in a step, a micro-batch, or several of them.

    Attributes:
        hits: join keys that the cache knew, those without rows among them.
        misses: join keys that it did not.
        evictions: entries that gave way to others.
        drops: times that a cache had not seen the batch before, and was emptied.
        cached_keys: entries after the step.
        cached_bytes: memory that they take, about.
        keys: distinct keys that the source was asked for.
        rows: rows that it gave.
        requests: requests to it, repeated ones included.
        retries: those of them that repeated one.
        failed_keys: keys that could not be looked up.
        most_in_flight: largest number of requests under way at a time in one process.
        lookup_us: microseconds that all requests took together.
        slowest_us: microseconds of the slowest one.
        waiting: rows of this side that wait for a lookup to succeed.

    >>> (Measures(hits=3, misses=1, slowest_us=5) + Measures(hits=1, slowest_us=4)).hit_rate
    0.8
    """

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    drops: int = 0
    cached_keys: int = 0
    cached_bytes: int = 0
    keys: int = 0
    rows: int = 0
    requests: int = 0
    retries: int = 0
    failed_keys: int = 0
    most_in_flight: int = 0
    lookup_us: int = 0
    slowest_us: int = 0
    waiting: int = 0

    @classmethod
    def of(cls, cache: CacheCounts, lookups: LookupCounts, waiting: int) -> Self:
        """Those of a side in one step."""
        return cls(
            cache.hits,
            cache.misses,
            cache.evictions,
            cache.drops,
            cache.keys,
            cache.bytes,
            lookups.keys,
            lookups.rows,
            lookups.requests,
            lookups.retries,
            lookups.failed_keys,
            lookups.most_in_flight,
            round(lookups.seconds * 1e6),
            round(lookups.slowest_s * 1e6),
            waiting,
        )

    @property
    def hit_rate(self) -> float | None:
        """Share of the join keys that the cache knew; None if it was not asked."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else None

    @property
    def mean_latency_us(self) -> float | None:
        """Mean time of a request in microseconds; None if there was none."""
        return self.lookup_us / self.requests if self.requests else None

    def __add__(self, other: Self) -> Measures:
        """Both: counts added, maxima compared, and of what is there now the later one's."""
        combined = {}
        for name in NAMES:
            one, two = getattr(self, name), getattr(other, name)
            combined[name] = max(one, two) if name in MAXIMA else two if name in LEVELS else one + two
        return Measures(**combined)


NAMES: Final = tuple(each.name for each in fields(Measures))
MAXIMA: Final = frozenset({"most_in_flight", "slowest_us"})
"""Measures of which several shards or batches have the largest, not the sum."""
LEVELS: Final = frozenset({"cached_keys", "cached_bytes", "waiting"})
"""Measures that tell what there is after a micro-batch; shards add up, micro-batches do not."""
