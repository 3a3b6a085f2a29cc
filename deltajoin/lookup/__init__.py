"""Lookups in places that have no snapshots: sources, their clients, batches of keys, caches (FLIP-486)."""

from deltajoin.lookup.protocol import Answer, LookupClient, LookupSource, RequestLimits

__all__ = ["Answer", "LookupClient", "LookupSource", "RequestLimits"]
