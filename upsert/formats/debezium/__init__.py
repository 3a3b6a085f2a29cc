"""Debezium: its envelopes, the values that it writes in JSON, and the two formats."""
