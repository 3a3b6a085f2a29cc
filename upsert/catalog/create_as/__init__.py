"""``CREATE TABLE … AS SELECT``: tables that are staged, filled and then made visible."""
