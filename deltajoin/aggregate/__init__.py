"""Aggregates: the groups that a change touches are computed again, by looking their rows up."""
