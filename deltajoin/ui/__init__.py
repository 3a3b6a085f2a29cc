"""A page of a warehouse's tables and of the queries over them, read from its files alone."""
