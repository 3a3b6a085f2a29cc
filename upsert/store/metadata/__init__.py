"""What a table's files say of it: definition, snapshots, manifests, and the history they make."""
