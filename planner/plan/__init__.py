"""A Spark plan as frozen values: nodes, expressions, and what follows from them (pure)."""
