"""A catalog: names, the tables that they refer to, and what SQL statements do with them."""
