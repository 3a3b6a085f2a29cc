"""Tables of PostgreSQL as sinks of changes."""
