"""Materialized views: queries over managed tables whose rows another managed table holds."""
