"""Physical forms of a delta join: where its one semantics runs."""
