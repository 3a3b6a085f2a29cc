"""The delta join beside Spark's own stream-stream join while both sides grow: `python -m bench.join`."""
