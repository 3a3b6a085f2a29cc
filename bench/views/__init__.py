"""Materialized views of TPC-H's queries beside the queries computed again: `python -m bench.views`."""
