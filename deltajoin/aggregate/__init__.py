"""Aggregates that are computed anew for the groups that a change touches, by looking their rows up."""
