"""The only folder that knows how Kafka is reached: everything above it speaks Arrow and our own errors."""
