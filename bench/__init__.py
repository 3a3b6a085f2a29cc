"""Measurements, each beside something to compare with: `python -m bench.store`, `python -m bench.join`."""
