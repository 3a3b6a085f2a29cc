"""The topics of a table: found or created before a record is written, deleted, and their clean-up policy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from upsert.errors import ConfigurationError, TableExistsError
from upsert.kafka.client import admin
from upsert.kafka.client.connection import Connection
from upsert.kafka.table import KafkaTable
from upsert.rowkind import ROW_KIND_COLUMN


def partitions_of(table: KafkaTable) -> Mapping[str, int]:
    """The topics of the table and how many partitions each has, asked of the brokers.

    A missing topic is created where ``topic.partitions`` is given: compacted for ``upsert-kafka``. Several
    queries may do so at once.

    Raises:
        ConfigurationError: a topic is missing, or no topic matches the pattern.
    """
    connection = table.connection
    pattern = table.values["topic-pattern"]
    found = {name: info.partitions for name, info in admin.topics(connection, table.topics, pattern).items()}
    for name in table.topics or ():
        if name not in found:
            _create(connection, table, name)
            found[name] = admin.existing_topic(connection, name).partitions
    if not found:
        raise ConfigurationError(
            f"{table.name}: option 'topic-pattern' must match a topic to write to, got {pattern!r}; create "
            "one, or correct the pattern"
        )
    return found


def create_missing(table: KafkaTable) -> tuple[str, ...]:
    """Create the table's topics that are not there; the names of those that this call has created."""
    connection = table.connection
    found = admin.topics(connection, table.topics) if table.topics else {}
    missing = [name for name in table.topics or () if name not in found]
    return tuple(name for name in missing if _create(connection, table, name))


def delete(table: KafkaTable, names: Iterable[str]) -> None:
    """Delete topics; those that do not exist are passed over."""
    for name in admin.topics(table.connection, tuple(names)):
        admin.delete_topic(table.connection, name)


def _create(connection: Connection, table: KafkaTable, name: str) -> bool:
    """Create a topic; False if another query was faster."""
    partitions = table.values["topic.partitions"]
    if partitions is None:
        raise ConfigurationError(
            f"{table.name}: topic {name!r} must exist to be written to, and the brokers do not know it; "
            "create it, or let the query do so with option 'topic.partitions'"
        )
    config = {"cleanup.policy": "compact"} if table.is_upsert else {}
    replicas = table.values["topic.replication-factor"]
    try:
        admin.create_topic(connection, name, partitions, config, -1 if replicas is None else replicas)
    except TableExistsError:
        return False
    return True


def warning_of_write(
    table: KafkaTable, partitions: Mapping[str, int], columns: Collection[str]
) -> str | None:
    """What is to be said before rows with these columns are written; None: nothing.

    Kafka's clients send a record without a key to any partition.
    """
    if table.is_upsert:
        return cleanup_warning(table)
    if ROW_KIND_COLUMN not in columns or not table.is_changelog or table.key is not None:
        return None
    if any(c.key.key == "partition" and c.column.name in columns for c in table.metadata(writing=True)):
        return None
    found = next(((name, count) for name, count in partitions.items() if count > 1), None)
    if found is None:
        return None
    return (
        f"{table.name}: topic {found[0]!r} should have one partition, or the table a key, and it has "
        f"{found[1]} and the table none: the changes of a row go to any of them, and readers meet them in "
        "any order, by which a row is lost; declare 'key.format' and 'key.fields'"
    )


def cleanup_warning(table: KafkaTable) -> str | None:
    """What is to be said of the topics of an upsert table that are cleaned by age or size; None: nothing.

    Only a compacted topic keeps the newest value of every key (FLIP-149). Topics that do not exist are
    passed over.
    """
    if not table.is_upsert:
        return None
    try:
        found = _first_cleaned(table, "delete")
    except ConfigurationError as refusal:  # reading a topic takes fewer rights than looking at its settings
        return f"{table.name}: whether its topics are compacted could not be found out: {refusal}"
    if found is None:
        return None
    return (
        f"{table.name}: topic {found[0]!r} should have cleanup.policy 'compact', and has {found[1]!r}: once "
        "old records are deleted, keys are missing, and deletions are not seen"
    )


def compaction_warning(table: KafkaTable) -> str | None:
    """What is to be said of compacted topics of a table of changes; None: nothing, or it is not known."""
    if table.is_upsert or not table.is_changelog:
        return None
    try:
        found = _first_cleaned(table, "compact")
    except ConfigurationError:
        return None
    if found is None:
        return None
    return (
        f"{table.name}: topic {found[0]!r} should have cleanup.policy 'delete', and has {found[1]!r}: of a "
        "deleted row only the tombstone is left then, which is no change"
    )


def _first_cleaned(table: KafkaTable, policy: str) -> tuple[str, str] | None:
    """The first topic that is cleaned so, and its whole policy."""
    names = admin.topics(table.connection, names=table.topics, pattern=table.values["topic-pattern"])
    for name, policies in sorted(admin.cleanup_policies(table.connection, list(names)).items()):
        if policy in policies:
            return name, ",".join(sorted(policies))
    return None
