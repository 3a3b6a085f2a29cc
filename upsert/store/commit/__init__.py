"""Changing a table: rows to staged files, staged files to a Change, and its commit by put-if-absent."""
