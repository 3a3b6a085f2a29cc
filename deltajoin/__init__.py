"""Exact delta joins: join the changes of managed tables by looking the others up, with no state."""

from deltajoin.checkpoint import reached
from deltajoin.errors import BrokenPayloadError, CheckpointMismatchError
from deltajoin.latest.api import lookup_delta_join, upsert_key_of
from deltajoin.latest.sides import with_lookup
from deltajoin.lookup_join import lookup_join
from deltajoin.metrics import LookupMetrics, metrics
from deltajoin.source import register
from deltajoin.spec import DeltaJoinSpec, Side
from deltajoin.stream import read_join

__all__ = [
    "BrokenPayloadError",
    "CheckpointMismatchError",
    "DeltaJoinSpec",
    "LookupMetrics",
    "Side",
    "lookup_delta_join",
    "lookup_join",
    "metrics",
    "reached",
    "read_join",
    "register",
    "upsert_key_of",
    "with_lookup",
]
