"""``python -m upsert.testing``: a Kafka broker in the foreground."""

from upsert.testing.local_kafka import main

main()
