"""What notebooks and terminals show of rows."""
