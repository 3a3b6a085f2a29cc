"""From upserts and deletes by key to a full changelog with UPDATE_BEFORE (pure)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Expiry:
    """An image older than ``ttl_ms`` at the time of the arriving record counts as absent.

    Attributes:
        time: column with a row's time, TIMESTAMP or BIGINT milliseconds; it is one of the log's columns.
        ttl_ms: milliseconds.
    """

    time: str
    ttl_ms: int
