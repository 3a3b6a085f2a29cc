"""Names and DDL: statements, and the tables in a folder that they make."""
