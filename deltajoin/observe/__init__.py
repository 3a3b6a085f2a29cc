"""What there is to see of a warehouse and of the queries over it: as values and as metrics."""
