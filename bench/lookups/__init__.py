"""Lookups over HTTP, many at a time: `python -m bench.lookups`."""
