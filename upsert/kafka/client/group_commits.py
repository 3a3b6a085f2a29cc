"""Offsets committed to a consumer group, for those who watch how far behind a query is.

Nothing here reads them again: where a query stands is in its checkpoint. So a commit never waits for long and
never fails a query; what goes wrong is logged, and tried again with the next offsets or a while later. The
group is not joined, so brokers refuse the commit while a program that has joined it is there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from upsert.errors import UpsertError
from upsert.kafka.client.admin import group_consumer
from upsert.kafka.client.connection import Connection, library
from upsert.kafka.client.records import TopicPartition

LOG: Final = logging.getLogger("upsert.kafka")

_WAIT_SECONDS: Final = 2.0
_AGAIN_SECONDS: Final = 10.0
"""When a commit that failed is tried again, if there are no newer offsets before."""
_REFRESH_SECONDS: Final = 3_600.0
"""When unchanged offsets are committed again: brokers forget those of idle groups, after a week."""


class GroupCommits:
    """Commits one stream's offsets to a group; belongs to the process that made it, not thread-safe.

    Args:
        of: what the offsets are those of, for the log.

    Example:
        >>> from upsert.kafka.client.admin import create_topic, group_offsets
        >>> connection = Connection({"bootstrap.servers": kafka.bootstrap_servers})
        >>> create_topic(connection, "commits-example", partitions=1)
        >>> place = TopicPartition("commits-example", 0)
        >>> GroupCommits(connection, "watched", of="words").commit({place: 3})
        True
        >>> group_offsets(connection, "watched", [place])[place]
        3
    """

    def __init__(
        self, connection: Connection, group: str, of: str, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._connection = connection
        self._group = group
        self._of = of
        self._now = now
        self._client: Any = None
        self._answers: list[tuple[Any, list[Any]]] = []
        self._sent: Mapping[TopicPartition, int] = {}
        self._is_done = True
        self._due_s = 0.0

    def commit(self, offsets: Mapping[TopicPartition, int]) -> bool:
        """Whether the group has these offsets, the next to be read; asks nothing if it had them before."""
        if not offsets or (offsets == self._sent and self._now() < self._due_s):
            return self._is_done
        reason = self._committed(offsets)
        self._sent, self._is_done = dict(offsets), reason is None
        self._due_s = self._now() + (_REFRESH_SECONDS if reason is None else _AGAIN_SECONDS)
        if reason is not None:
            LOG.warning(
                "%s: its offsets should be committed to the consumer group %r, and were not: %s; the query "
                "goes on, its checkpoint says where it is, and the group follows with a later commit",
                self._of,
                self._group,
                self._connection.masked(reason),
            )
        return self._is_done

    def _committed(self, offsets: Mapping[TopicPartition, int]) -> str | None:
        """Commit; why that was not possible, None if it was."""
        kafka = library()
        asked = [kafka.TopicPartition(*partition, offset) for partition, offset in sorted(offsets.items())]
        try:
            if self._client is None:
                self._client = group_consumer(
                    self._connection,
                    self._group,
                    f"offsets of the consumer group {self._group!r}",
                    on_commit=lambda error, partitions: self._answers.append((error, partitions)),
                )
            self._client.commit(offsets=asked, asynchronous=True)
            ends_s = time.monotonic() + _WAIT_SECONDS
            while (left_s := ends_s - time.monotonic()) > 0:
                self._client.poll(min(left_s, 0.05))
                while self._answers:
                    error, partitions = self._answers.pop(0)
                    found = {TopicPartition(p.topic, p.partition): p.offset for p in partitions}
                    if found == offsets:  # or it answers an earlier commit, which was no longer waited for
                        errors = [error, *(p.error for p in partitions)]
                        return next((one.str() for one in errors if one is not None), None)
        except (kafka.KafkaException, UpsertError) as cause:
            return str(cause)
        return f"the group's broker did not answer within {_WAIT_SECONDS:g} s"
