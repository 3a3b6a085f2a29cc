"""Spark's own plans: read as the planner's nodes, and built of them."""
