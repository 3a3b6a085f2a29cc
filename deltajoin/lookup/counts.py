"""What the lookups of a batch cost, as numbers that can be added up (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class LookupCounts:
    """Requests of one batch, or of several added up.

    Attributes:
        keys: distinct keys without NULL that were asked for.
        rows: rows that the source gave for them.
        requests: calls of a client's ``lookup``, repeated ones included.
        retries: those of them that repeated one.
        failed_keys: keys that could not be looked up.
        most_in_flight: largest number of requests that were under way at a time in this process.
        seconds: time that all requests took together; divided by ``requests``, the mean latency.
        slowest_s: time of the slowest one.

    >>> one = LookupCounts(keys=3, requests=2, seconds=0.5, slowest_s=0.3)
    >>> (one + one).requests, (one + one).slowest_s
    (4, 0.3)
    """

    keys: int = 0
    rows: int = 0
    requests: int = 0
    retries: int = 0
    failed_keys: int = 0
    most_in_flight: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0

    def __add__(self, other: Self) -> LookupCounts:
        return LookupCounts(
            self.keys + other.keys,
            self.rows + other.rows,
            self.requests + other.requests,
            self.retries + other.retries,
            self.failed_keys + other.failed_keys,
            max(self.most_in_flight, other.most_in_flight),
            self.seconds + other.seconds,
            max(self.slowest_s, other.slowest_s),
        )
