"""Kafka topics as tables: sources and sinks for Spark, and a broker to try them with."""
