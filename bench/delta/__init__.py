"""The managed table beside Delta Lake on the same upserts: `python -m bench.delta`."""
