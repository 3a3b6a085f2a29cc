"""Lookups, writes and memory of the managed store: `python -m bench.store`."""
