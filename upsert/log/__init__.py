"""The log of a managed table: its changes in a Kafka topic, for readers that cannot wait (FLIP-188)."""
