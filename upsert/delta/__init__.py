"""Tables of Delta Lake: their change feed, and changes merged into them."""
