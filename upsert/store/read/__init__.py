"""Reading a table: scans and lookups of a snapshot, and the changes between two versions."""
