"""Rows as a table stores them: layout, keys, hashes, partitions, and how rows of one key become one."""
