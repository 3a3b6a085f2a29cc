"""Materialized views refreshed by what has changed: what a query aggregates is kept in its stages."""
