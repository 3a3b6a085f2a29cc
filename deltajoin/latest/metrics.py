"""What the lookups of a query cost: counted in each step, added up by Spark, read from its progress."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from functools import reduce
from operator import add
from typing import Any, Final, Self

from deltajoin.latest.spec import SIDES
from deltajoin.lookup.batch import LookupCounts
from deltajoin.lookup.cache import CacheCounts


@dataclass(frozen=True)
class Measures:
    """Counts of one side in a step, a micro-batch, or several of them.

    Attributes:
        hits: join keys that the cache knew, those without rows among them.
        misses: join keys that it did not.
        evictions: entries removed to make room for others.
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
        *counts, seconds, slowest_s = astuple(lookups)  # the fields of all three are in one order
        us = round(seconds * 1e6), round(slowest_s * 1e6)
        return cls(*(*astuple(cache), *counts, *us, waiting))

    @property
    def hit_rate(self) -> float | None:
        """Share of the join keys that the cache knew; None if it was not asked."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else None

    def __add__(self, other: Self) -> Measures:
        """Both: counts added, maxima compared, and levels as they were later."""
        combined = {}
        for name in NAMES:
            one, two = getattr(self, name), getattr(other, name)
            combined[name] = max(one, two) if name in MAXIMA else two if name in LEVELS else one + two
        return Measures(**combined)


NAMES: Final = tuple(each.name for each in fields(Measures))
MAXIMA: Final = frozenset({"most_in_flight", "slowest_us"})
"""Measures that several shards or batches do not add up: they have the largest."""
LEVELS: Final = frozenset({"cached_keys", "cached_bytes", "waiting"})
"""Measures at the end of a micro-batch; shards add up, micro-batches do not."""

OBSERVED: Final = "deltajoin.lookups"
"""Name of the observed metrics in a query's progress: ``query.lastProgress["observedMetrics"]``."""


@dataclass(frozen=True)
class JoinMeasures:
    """What the lookups on each side cost, and how many of its own changes wait."""

    left: Measures = field(default_factory=Measures)
    right: Measures = field(default_factory=Measures)

    @classmethod
    def of(cls, observed: Mapping[str, Any]) -> Self:
        """Those that a progress report holds; what was not measured is 0."""
        return cls(*(Measures(*(observed.get(f"{side}_{name}") or 0 for name in NAMES)) for side in SIDES))

    def __add__(self, other: Self) -> JoinMeasures:
        return JoinMeasures(self.left + other.left, self.right + other.right)


@dataclass(frozen=True)
class LookupMetrics:
    """What the lookups of a query cost.

    Attributes:
        total: of all micro-batches that Spark remembers.
        last: of the last one that had rows.
        batches: how many are in ``total``.
    """

    total: JoinMeasures
    last: JoinMeasures
    batches: int


def lookups_of(progress: Sequence[Any]) -> LookupMetrics | None:
    """What the lookups cost in the micro-batches that these reports are of; None if none looked anything up.

    A listener of one's own finds the same numbers as observed metrics ``deltajoin.lookups`` in each report,
    as ``left_hits`` and so on.
    """
    measured = [JoinMeasures.of(found) for found in _observed(progress)]
    if not measured:
        return None
    return LookupMetrics(reduce(add, measured, JoinMeasures()), measured[-1], len(measured))


def _observed(progress: Iterable[Any]) -> Iterable[Mapping[str, Any]]:
    for report in progress:
        found = report["observedMetrics"].get(OBSERVED)
        if found is not None:
            values = found.asDict()
            if any(value is not None for value in values.values()):
                yield values
