"""What a topic's clean-up policy means for a table with a primary key."""

from __future__ import annotations

from upsert.errors import ConfigurationError
from upsert.kafka.client import admin
from upsert.kafka.table import KafkaTable


def cleanup_warning(table: KafkaTable) -> str | None:
    """What is to be said of the topics of an upsert table that are cleaned by age or size; None: nothing.

    Only a compacted topic keeps the newest value of every key (FLIP-149). Topics that do not exist are
    passed over.

    Raises:
        KafkaUnavailableError: the brokers do not answer.
    """
    if not table.is_upsert:
        return None
    connection = table.connection
    names = admin.topics(connection, names=table.topics, pattern=table.values["topic-pattern"])
    try:
        policies = admin.cleanup_policies(connection, list(names))
    except ConfigurationError as refusal:  # reading a topic takes fewer rights than looking at its settings
        return f"{table.name}: whether its topics are compacted could not be found out: {refusal}"
    deleting = {name: policy for name, policy in sorted(policies.items()) if "delete" in policy}
    if not deleting:
        return None
    name, policy = next(iter(deleting.items()))
    return (
        f"{table.name}: topic {name!r} should have cleanup.policy 'compact', and has "
        f"{','.join(sorted(policy))!r}: once old records are deleted, keys "
        "are missing, and deletions are not seen"
    )
