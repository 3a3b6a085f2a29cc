"""From a change to its row in a query, by a table's files and by its log: `python -m bench.log_latency`."""
