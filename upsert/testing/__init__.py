"""What tests of applications need: `LocalKafka`, a real Apache Kafka that ends with the test.

``python -m upsert.testing`` runs one in the foreground and prints its address.

Example:
    >>> from upsert.testing import LocalKafka
    >>> with LocalKafka() as broker:
    ...     broker.create_topic("orders-of-the-test")
    ...     broker.bootstrap_servers
    '...:...'
"""

from upsert.testing.local_kafka import LocalKafka

__all__ = ["LocalKafka"]
