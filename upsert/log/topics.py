"""The topic of a table's log: created with the table, dropped with it.

A partition for each bucket, also where the table has partitions of its own: a bucket's number means the same
in all of them. Records are removed by age, never by key, for a reader of changes needs all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final
from uuid import uuid4

from upsert.errors import ConfigurationError, TableExistsError, TableNotFoundError
from upsert.kafka.client import admin, offsets
from upsert.kafka.client.admin import change_settings
from upsert.kafka.client.connection import PATIENCE_SECONDS, Connection
from upsert.kafka.client.records import TopicPartition
from upsert.store.log_options import TOPIC, LogOptions

_LONGEST_NAME: Final = 200
_RANDOM_SIGNS: Final = 12


@dataclass(frozen=True)
class LogTopic:
    """The topic of one table.

    Attributes:
        connection: its cluster.
        name: its name.
        buckets: how many buckets the table has, and partitions the topic.
    """

    connection: Connection
    name: str
    buckets: int

    @classmethod
    def of(cls, log: LogOptions, buckets: int, owner: str, patience_s: float = PATIENCE_SECONDS) -> LogTopic:
        """The topic of an existing table's log.

        Raises:
            ConfigurationError: the table has no log.
        """
        if not log.is_kafka or log.topic is None:
            raise ConfigurationError(
                f"{owner}: a table with a log is needed, got 'log.system' = {log.system!r}; "
                "ALTER TABLE … SET ('log.system' = 'kafka') gives it one"
            )
        return cls(Connection(log.properties, patience_s), log.topic, buckets)

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """Its partitions, that of bucket 0 first."""
        return tuple(TopicPartition(self.name, bucket) for bucket in range(self.buckets))

    def ends(self) -> dict[int, int]:
        """Of each partition the offset behind the last committed record."""
        found = offsets.latest_offsets(self.connection, self.partitions)
        return {one.partition: offset for one, offset in found.items()}

    def id(self) -> str | None:
        """What tells the topic from another one of its name; None where the brokers have no ids."""
        return admin.existing_topic(self.connection, self.name).id

    def ends_of_all(self) -> dict[int, int]:
        """The same of all records, also those of transactions that are open; errors as for ``ends``."""
        properties = {**self.connection.properties, "isolation.level": "read_uncommitted"}
        return replace(self, connection=replace(self.connection, properties=properties)).ends()


def new_name(table: str) -> str:
    """The name of a new table's topic, which no other topic has.

    >>> new_name("orders") != new_name("orders"), new_name("orders")[:7]
    (True, 'orders-')
    """
    readable = re.sub(r"[^A-Za-z0-9._-]", "-", table)[:_LONGEST_NAME]
    return f"{readable}-{uuid4().hex[:_RANDOM_SIGNS]}"


def with_topic(given: Mapping[str, str], table: str) -> dict[str, str]:
    """The options of a new table, with the name of its topic."""
    named = any(key.lower() == TOPIC for key in given)
    return dict(given) if named else {**given, TOPIC: new_name(table)}


def create(topic: LogTopic, retention_ms: int | None, owner: str, *, may_be_there: bool = False) -> None:
    """Create the topic. A crash leaves it or not; nothing else knows of it yet.

    Args:
        topic: what to create.
        retention_ms: how long it keeps records; None: as the brokers are set up.
        owner: the table, for messages.
        may_be_there: whether one without records is the table's own, of an attempt that died.

    Raises:
        ConfigurationError: there is a topic of this name: it may be another table's.
        KafkaUnavailableError: the brokers did not answer.
    """
    kept = {} if retention_ms is None else {"retention.ms": str(retention_ms)}
    try:
        admin.create_topic(topic.connection, topic.name, topic.buckets, {"cleanup.policy": "delete", **kept})
    except TableExistsError as cause:
        if not may_be_there or not is_empty(topic):
            raise _taken(topic, owner) from cause
        change_retention(topic, retention_ms)


def check_is_free(topic: LogTopic, owner: str) -> None:
    """Make sure that there is no such topic.

    Raises:
        ConfigurationError: there is.
        KafkaUnavailableError: the brokers did not answer.
    """
    if admin.topics(topic.connection, [topic.name]):
        raise _taken(topic, owner)


def is_empty(topic: LogTopic) -> bool:
    """Whether there is a topic of this form in which nothing has been written that can be read."""
    found = admin.topics(topic.connection, [topic.name]).get(topic.name)
    return found is not None and found.partitions == topic.buckets and not any(topic.ends().values())


def _taken(topic: LogTopic, owner: str) -> ConfigurationError:
    return ConfigurationError(
        f"{owner}: its log needs a topic of its own, {topic.name!r} is there already; delete it, or "
        f"leave {TOPIC!r} out, which gives a new name"
    )


def change_retention(topic: LogTopic, retention_ms: int | None) -> None:
    """Another time for which the topic keeps records; None for the brokers' own."""
    value = None if retention_ms is None else str(retention_ms)
    change_settings(topic.connection, topic.name, {"retention.ms": value})


def drop(topic: LogTopic) -> bool:
    """Delete the topic with its records; False if it is not there."""
    try:
        admin.delete_topic(topic.connection, topic.name)
    except TableNotFoundError:
        return False
    return True
