"""Data files of a bucket, immutable and sorted, large ones with a sidecar of indexes; in several formats."""
