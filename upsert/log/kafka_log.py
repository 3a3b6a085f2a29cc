"""The log system ``kafka``, as the store asks for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from upsert.kafka.client.connection import PATIENCE_SECONDS
from upsert.log import announcement, publisher, topics
from upsert.log.log_options import LogOptions
from upsert.log.topics import LogTopic
from upsert.store.file_entry import FileEntry
from upsert.store.log_system import LoggedTable, LogSystem

PATIENCE_S: Final = PATIENCE_SECONDS
ENDS_PATIENCE_S: Final = 5.0
"""How long a commit waits for the end of the log, which it can do without."""
DROP_PATIENCE_S: Final = 10.0


class KafkaLog:
    """One topic a table; see ``LogSystem``."""

    def named(self, given: Mapping[str, str], table: str) -> dict[str, str]:
        """The options of a new table, with the name of its topic."""
        return topics.with_topic(given, table)

    def create(self, log: LogOptions, buckets: int, owner: str, *, may_be_there: bool = False) -> None:
        """Create the topic."""
        topic = LogTopic.of(log, buckets, owner)
        topics.create(topic, log.retention_ms, owner, may_be_there=may_be_there)

    def check_is_free(self, log: LogOptions, buckets: int, owner: str) -> None:
        """Make sure that there is no such topic."""
        topics.check_is_free(LogTopic.of(log, buckets, owner), owner)

    def change(self, old: LogOptions, new: LogOptions, buckets: int, owner: str) -> None:
        """Give the topic another retention; properties of its client that are refused are so before that."""
        topic = LogTopic.of(new, buckets, owner)
        if old.retention_ms != new.retention_ms:
            topics.change_retention(topic, new.retention_ms)

    def drop(self, log: LogOptions, buckets: int, owner: str, *, only_empty: bool = False) -> None:
        """Delete the topic."""
        topic = LogTopic.of(log, buckets, owner, DROP_PATIENCE_S)
        if not only_empty or topics.is_empty(topic):
            topics.drop(topic)

    def publish(self, table: LoggedTable, *, accept_gap: bool) -> int:
        """Send the changes of snapshots that the log lacks."""
        return publisher.publish(table, _topic(table), accept_gap=accept_gap)

    def announce(self, table: LoggedTable, files: Sequence[FileEntry]) -> None:
        """Send rows before they are committed."""
        announcement.announce(table, _topic(table), files)

    def ends(self, table: LoggedTable) -> Mapping[str, int]:
        """Where the log ends."""
        log, buckets = table.log, table.definition.options.bucket
        ends = LogTopic.of(log, buckets, table.owner, ENDS_PATIENCE_S).ends()
        return {str(partition): offset for partition, offset in ends.items()}


def _topic(table: LoggedTable) -> LogTopic:
    return LogTopic.of(table.log, table.definition.options.bucket, table.owner, PATIENCE_S)


LOG_SYSTEM: Final[LogSystem] = KafkaLog()
