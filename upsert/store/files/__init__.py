"""Data files of a bucket: immutable, sorted, with a sidecar of lookup indexes; in several formats."""
