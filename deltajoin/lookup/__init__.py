"""Lookups in stores that have no snapshots: sources, their clients, batches of keys, caches (FLIP-486)."""

from deltajoin.lookup.http import HttpLookup
from deltajoin.lookup.managed import TableLookup
from deltajoin.lookup.memory import MemoryLookup
from deltajoin.lookup.postgres import PostgresLookup
from deltajoin.lookup.protocol import Answer, LookupClient, LookupSource, RequestLimits

__all__ = [
    "Answer",
    "HttpLookup",
    "LookupClient",
    "LookupSource",
    "MemoryLookup",
    "PostgresLookup",
    "RequestLimits",
    "TableLookup",
]
