"""Changing the settings of a topic that is there."""

from __future__ import annotations

from collections.abc import Mapping

from upsert.kafka.client.admin import existing_topic
from upsert.kafka.client.connection import Connection, admin_library
from upsert.kafka.client.requests import answers, request_seconds


def change_settings(connection: Connection, name: str, changed: Mapping[str, str | None]) -> None:
    """Change some settings of a topic; the others stay. The brokers show the new values a moment later.

    Args:
        connection: the cluster.
        name: of the topic.
        changed: settings and their values, such as ``{"retention.ms": "60000"}``; None for the brokers' own.

    Raises:
        TableNotFoundError: there is no such topic.
        ConfigurationError: Kafka refuses a setting.
        KafkaUnavailableError: the cluster did not answer.

    Example:
        >>> from upsert.kafka.client.admin import create_topic
        >>> connection = Connection({"bootstrap.servers": kafka.bootstrap_servers})
        >>> create_topic(connection, "settings-example", partitions=1)
        >>> change_settings(connection, "settings-example", {"retention.ms": "60000"})
        >>> while settings(connection, "settings-example")["retention.ms"] != "60000":
        ...     pass  # not every broker knows it yet
    """
    existing_topic(connection, name)  # Kafka says something else of one that is not there
    kafka = admin_library()
    entries = [
        kafka.ConfigEntry(
            key,
            value,
            incremental_operation=kafka.AlterConfigOpType.DELETE
            if value is None
            else kafka.AlterConfigOpType.SET,
        )
        for key, value in changed.items()
    ]
    asked = [kafka.ConfigResource(kafka.ConfigResource.Type.TOPIC, name, incremental_configs=entries)]
    answers(
        connection,
        f"changing the settings of topic {name!r}",
        lambda admin: admin.incremental_alter_configs(asked, request_timeout=request_seconds(connection)),
    )


def settings(connection: Connection, name: str) -> dict[str, str | None]:
    """All settings of a topic, those of the brokers where it has none of its own.

    Raises:
        TableNotFoundError: there is no such topic.
        KafkaUnavailableError: the cluster did not answer.
    """
    kafka = admin_library()
    found = answers(
        connection,
        f"settings of topic {name!r}",
        lambda admin: admin.describe_configs(
            [kafka.ConfigResource(kafka.ConfigResource.Type.TOPIC, name)],
            request_timeout=request_seconds(connection),
        ),
    )
    [entries] = found.values()
    return {key: entry.value for key, entry in entries.items()}
