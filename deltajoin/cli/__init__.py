"""The command line, ``deltajoin``: tables, their maintenance, and SQL."""
