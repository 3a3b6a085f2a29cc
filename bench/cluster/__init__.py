"""A join and upserts on a Spark standalone cluster over an S3 server: `python -m bench.cluster`."""
