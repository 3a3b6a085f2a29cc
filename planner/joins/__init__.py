"""Joins of a query as the tree of one delta join (pure)."""
