"""What the demo needs to go through Kafka: topics, Debezium's records, four queries, a consumer's view."""
