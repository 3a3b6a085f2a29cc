"""Maintaining a table: compaction, removal of files that nothing names, and a check of every rule."""
