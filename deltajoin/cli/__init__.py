"""The command line, ``deltajoin``: tables to look at and look after, and SQL."""
