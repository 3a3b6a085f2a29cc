"""Exact delta joins: join the changes of managed tables by looking the others up, with no state."""

from typing import TYPE_CHECKING

from deltajoin import aliases as _aliases

_aliases.install()  # before anything of `upsert` is imported, which may be another package

from deltajoin import expressions, tree
from deltajoin.errors import BrokenPayloadError, CheckpointMismatchError
from deltajoin.spec import DeltaJoinSpec, JoinedTable, Side
from upsert.lazy_names import imported_on_use as _imported_on_use

__version__ = "0.1.0"

if TYPE_CHECKING:
    from deltajoin import planner, upsert
    from deltajoin.api import reached, read_join
    from deltajoin.enrichment import lookup_join
    from deltajoin.latest.api import lookup_delta_join, upsert_key_of, with_lookup
    from deltajoin.latest.metrics import LookupMetrics
    from deltajoin.observe.query_metrics import QueryMetrics, metrics
    from deltajoin.observe.telemetry import export_metrics
    from deltajoin.spark.source import register
    from deltajoin.temporal import temporal_join
    from upsert.spark.settings import configure

__all__ = [
    "BrokenPayloadError",
    "CheckpointMismatchError",
    "DeltaJoinSpec",
    "JoinedTable",
    "LookupMetrics",
    "QueryMetrics",
    "Side",
    "configure",
    "export_metrics",
    "expressions",
    "lookup_delta_join",
    "lookup_join",
    "metrics",
    "planner",
    "reached",
    "read_join",
    "register",
    "temporal_join",
    "tree",
    "upsert",
    "upsert_key_of",
    "with_lookup",
]

__getattr__, __dir__ = _imported_on_use(
    __name__,
    {
        "LookupMetrics": "deltajoin.latest.metrics",
        "QueryMetrics": "deltajoin.observe.query_metrics",
        "configure": "upsert.spark.settings",
        "export_metrics": "deltajoin.observe.telemetry",
        "lookup_delta_join": "deltajoin.latest.api",
        "lookup_join": "deltajoin.enrichment",
        "metrics": "deltajoin.observe.query_metrics",
        "planner": "deltajoin",
        "reached": "deltajoin.api",
        "read_join": "deltajoin.api",
        "register": "deltajoin.spark.source",
        "temporal_join": "deltajoin.temporal",
        "upsert": "deltajoin",
        "upsert_key_of": "deltajoin.latest.api",
        "with_lookup": "deltajoin.latest.api",
    },
    globals(),
)
