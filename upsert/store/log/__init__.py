"""What the store asks of a table's log, and tables that are made, altered and dropped with one."""
