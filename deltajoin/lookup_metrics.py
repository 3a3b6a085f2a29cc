"""What the lookups of a query cost, out of Spark's own progress reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Any, Final, Self

from pyspark.sql.streaming.query import StreamingQuery

from deltajoin.latest.measures import NAMES, Measures
from deltajoin.latest.spec import SIDES
from upsert.errors import ConfigurationError

OBSERVED: Final = "deltajoin.lookups"
"""Name of the observed metrics in a query's progress: ``query.lastProgress["observedMetrics"]``."""


@dataclass(frozen=True)
class JoinMeasures:
    """What the lookups of both sides cost: ``left`` is what was looked up on the left side.

    Attributes:
        left: lookups of right changes on the left side, and left changes that wait.
        right: lookups of left changes on the right side, and right changes that wait.
    """

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
        total: of all micro-batches that the query remembers.
        last: of the last one that had rows.
        batches: how many are in ``total``.
    """

    total: JoinMeasures
    last: JoinMeasures
    batches: int


def metrics(query: StreamingQuery) -> LookupMetrics:
    """What the lookups of a query with a `lookup_delta_join` cost so far.

    Spark remembers the progress of the last 100 micro-batches
    (``spark.sql.streaming.numRecentProgressUpdates``); ``total`` is of these. A listener of one's own finds
    the same numbers as observed metrics ``deltajoin.lookups`` in each progress, as ``left_hits`` and so on.

    Args:
        query: a query that runs, or has run, in this process.

    Raises:
        ConfigurationError: micro-batches have been run, and none looked anything up.
    """
    observed = list(_observed(query.recentProgress))
    if query.recentProgress and not observed:
        raise ConfigurationError(
            "metrics needs a query with a lookup_delta_join, got one whose progress has no observed metrics "
            f"{OBSERVED!r}"
        )
    measured = [JoinMeasures.of(found) for found in observed]
    total = reduce(add, measured, JoinMeasures())
    return LookupMetrics(total, measured[-1] if measured else JoinMeasures(), len(measured))


def _observed(progress: Iterable[Any]) -> Iterable[Mapping[str, Any]]:
    for report in progress:
        found = report["observedMetrics"].get(OBSERVED)
        if found is not None:
            values = found.asDict()
            if any(value is not None for value in values.values()):
                yield values
