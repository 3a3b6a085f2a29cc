"""Conditions on rows as values, and what they mean: of joins, and of CHECK constraints (pure)."""
