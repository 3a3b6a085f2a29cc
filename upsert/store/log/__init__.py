"""What the store knows of a table's log, where changes go besides the files: its life, when it is asked."""
