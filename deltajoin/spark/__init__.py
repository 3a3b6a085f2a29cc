"""The format ``delta-join``: a join's tables, its offsets, and the physical forms in which Spark runs it."""
