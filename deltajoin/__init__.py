"""Exact delta joins: join the changes of managed tables by looking the others up, with no state."""

from typing import TYPE_CHECKING

from deltajoin import expressions, tree
from deltajoin.errors import BrokenPayloadError, CheckpointMismatchError
from deltajoin.joined_table import JoinedTable, Side
from deltajoin.spec import DeltaJoinSpec
from upsert.lazy_names import imported_on_use as _imported_on_use

if TYPE_CHECKING:
    from deltajoin.checkpoint import reached
    from deltajoin.latest.api import lookup_delta_join, upsert_key_of
    from deltajoin.latest.sides import with_lookup
    from deltajoin.lookup_metrics import LookupMetrics, metrics
    from deltajoin.processing_time_join import lookup_join
    from deltajoin.source import register
    from deltajoin.stream import read_join

__all__ = [
    "BrokenPayloadError",
    "CheckpointMismatchError",
    "DeltaJoinSpec",
    "JoinedTable",
    "LookupMetrics",
    "Side",
    "expressions",
    "lookup_delta_join",
    "lookup_join",
    "metrics",
    "reached",
    "read_join",
    "register",
    "tree",
    "upsert_key_of",
    "with_lookup",
]

__getattr__, __dir__ = _imported_on_use(
    __name__,
    {
        "LookupMetrics": "deltajoin.lookup_metrics",
        "lookup_delta_join": "deltajoin.latest.api",
        "lookup_join": "deltajoin.processing_time_join",
        "metrics": "deltajoin.lookup_metrics",
        "reached": "deltajoin.checkpoint",
        "read_join": "deltajoin.stream",
        "register": "deltajoin.source",
        "upsert_key_of": "deltajoin.latest.api",
        "with_lookup": "deltajoin.latest.sides",
    },
    globals(),
)
