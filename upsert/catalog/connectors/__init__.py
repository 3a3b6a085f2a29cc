"""Tables whose rows lie elsewhere: what their definition says, and a file for each connector."""
