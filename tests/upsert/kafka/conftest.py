"""What tests with a broker share: a connection to it, and topics of their own."""

import uuid
from collections.abc import Callable

import pytest

from upsert.kafka.client.admin import create_topic
from upsert.kafka.client.connection import Connection
from upsert.testing import LocalKafka


@pytest.fixture
def connection(kafka: LocalKafka) -> Connection:
    return Connection({"bootstrap.servers": kafka.bootstrap_servers}, patience_s=30)


@pytest.fixture
def new_topic(connection: Connection) -> Callable[..., str]:
    """Makes a topic with a name of its own: `new_topic(partitions=1, **{"cleanup.policy": "compact"})`."""

    def make(partitions: int = 1, **config: str) -> str:
        name = f"test-{uuid.uuid4().hex[:12]}"
        kept = {"retention.ms": "-1"}  # or records of 1970 would be deleted at once
        create_topic(connection, name, partitions, kept | config)
        return name

    return make
