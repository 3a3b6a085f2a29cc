"""Ways to run an Apache Kafka for tests and demos; users see them as `upsert.kafka.testing.LocalKafka`."""
