"""The join itself on Arrow and numpy, without Spark and without storage (pure)."""
