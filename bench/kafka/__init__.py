"""Kafka source, normalizer and sink beside a plain confluent-kafka loop: `python -m bench.kafka`."""
