"""Offsets of partitions: the first, the last, those at a time, those that a consumer group has committed.

Every function answers from the cluster at the time of the call, and tries again while the cluster is away,
for as long as the connection has patience. What a group has committed is asked for with a consumer of the
group that never joins it: the admin client could ask too, but takes the whole process down (librdkafka 2.16)
when the group's broker is just starting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from upsert.errors import TableNotFoundError
from upsert.kafka.client.admin import answers, blocking_seconds, existing_topic
from upsert.kafka.client.connection import (
    LOGGER,
    ClientCache,
    Connection,
    admin_library,
    client_properties,
    library,
)
from upsert.kafka.client.failures import Reports, codes, made, with_client
from upsert.kafka.client.records import TopicPartition


def group_markers(
    connection: Connection, group: str, partitions: Iterable[TopicPartition], *, settled: bool = True
) -> dict[TopicPartition, tuple[int, str]]:
    """The offsets that a consumer group has committed, each with the text committed beside it.

    With ``settled`` the end of an open transaction with such offsets is waited for; otherwise what was
    committed before it is given at once, also for a moment after the transaction has been committed.
    """
    asked = [library().TopicPartition(*partition) for partition in partitions]
    if not asked:
        return {}
    subject = f"offsets of the consumer group {group!r}"

    def make(reports: Reports) -> Any:
        return group_consumer(connection, group, subject, settled=settled, reports=reports)

    def read(consumer: Any, _: Reports) -> dict[TopicPartition, tuple[int, str]]:
        found = {}
        for one in consumer.committed(asked, timeout=blocking_seconds(connection)):
            if one.error is not None:
                raise library().KafkaException(one.error)
            if one.offset >= 0:
                found[TopicPartition(one.topic, one.partition)] = (one.offset, one.metadata or "")
        return found

    return with_client(connection, subject, _consumers, (connection, group, settled), make, read)


def group_consumer(
    connection: Connection, group: str, subject: str, *, settled: bool = True, reports: Reports | None = None
) -> Any:
    """A consumer that can speak of a group, and does not join it; ``reports`` gets what it meets."""
    fixed: dict[str, Any] = {
        "group.id": group,
        "enable.auto.commit": False,
        "max.poll.interval.ms": 86_400_000,
        # uncommitted: those of an open transaction are passed over; what is committed is seen alone also then
        "isolation.level": "read_committed" if settled else "read_uncommitted",
    }
    if reports is not None:
        fixed["error_cb"] = reports.on_error
    properties = client_properties(connection, fixed=fixed)
    return made(connection, subject, lambda: library().Consumer(properties, logger=LOGGER))


_consumers: ClientCache[tuple[Any, Reports]] = ClientCache(16, close=lambda kept: kept[0].close())


def earliest_offsets(
    connection: Connection, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """The first offset of each partition that Kafka still has."""
    return _offsets(connection, partitions, lambda spec: spec.earliest())


def latest_offsets(connection: Connection, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The offset after the last record of each partition that a reader of this connection can see.

    With ``read_committed``, the default, that is the start of the oldest transaction still open.
    """
    return _offsets(connection, partitions, lambda spec: spec.latest())


def offsets_for_time(
    connection: Connection, partitions: Iterable[TopicPartition], timestamp_ms: int
) -> dict[TopicPartition, int]:
    """The first offset of each partition whose record is not older; the latest one where all are older."""
    asked = list(partitions)
    found = _offsets(connection, asked, lambda spec: spec.for_timestamp(timestamp_ms))
    if older := [partition for partition in asked if found[partition] < 0]:
        found.update(latest_offsets(connection, older))
    return found


def _offsets(
    connection: Connection, partitions: Iterable[TopicPartition], spec: Callable[[Any], Any]
) -> dict[TopicPartition, int]:
    specs = admin_library().OffsetSpec
    asked = {library().TopicPartition(*partition): spec(specs) for partition in partitions}
    if not asked:
        return {}
    isolation = getattr(library().IsolationLevel, connection.isolation_level.upper())
    known = [TopicPartition(key.topic, key.partition) for key in asked]

    def ask(admin: Any, seconds: float) -> Any:
        return admin.list_offsets(asked, isolation_level=isolation, request_timeout=seconds)

    def on_failure(error: Any) -> None:
        if error.code() in codes("_NOENT"):  # no leader, either for now or for ever
            _check_existence(connection, known)

    found = answers(connection, f"offsets of {_named(known)}", ask, on_failure=on_failure)
    return {TopicPartition(key.topic, key.partition): result.offset for key, result in found.items()}


def _check_existence(connection: Connection, partitions: Iterable[TopicPartition]) -> None:
    for partition in partitions:
        count = existing_topic(connection, partition.topic).partitions
        if partition.partition >= count:
            raise TableNotFoundError(
                f"partition {partition} should exist at {connection.bootstrap_servers!r}, and "
                f"{partition.topic!r} has only {count}; correct the partition"
            )


def group_offsets(
    connection: Connection, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """The offsets that a consumer group has committed; partitions without one are left out."""
    return {
        partition: offset for partition, (offset, _) in group_markers(connection, group, partitions).items()
    }


def _named(partitions: Iterable[TopicPartition]) -> str:
    names = sorted(map(str, partitions))
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def whole(value: object) -> int:
    """An offset in JSON; ``ValueError`` if it is none."""
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value


def share(
    available: Mapping[TopicPartition, tuple[int, int]], max_rows: int | None
) -> dict[TopicPartition, int]:
    """How far each partition is read in a step of at most ``max_rows``: in proportion to what it has.

    Every partition that has something gets at least one record, so none waits for ever behind a longer one;
    a step may therefore exceed the limit by the number of partitions. Offsets are counted, and where
    transactions or compaction left gaps there are fewer records than that. ``available`` has of each
    partition the first offset that is not yet read, and the end.

    >>> logs = {TopicPartition("words", 0): (0, 900), TopicPartition("words", 1): (0, 100)}
    >>> [share(logs, 100)[partition] for partition in logs]
    [90, 10]
    """
    sizes = {partition: max(0, end - first) for partition, (first, end) in available.items()}
    total = sum(sizes.values())
    if max_rows is None or total <= max_rows:
        return {partition: first + sizes[partition] for partition, (first, _) in available.items()}
    rows = {p: min(size, max(1, size * max_rows // total)) for p, size in sizes.items()}
    # what rounding down left over goes to those that lost most by it
    rounded = [p for p, size in sizes.items() if size * max_rows >= total]
    for partition in sorted(rounded, key=lambda p: (-(sizes[p] * max_rows % total), p)):
        if sum(rows.values()) >= max_rows:
            break
        rows[partition] += rows[partition] < sizes[partition]
    return {partition: first + rows[partition] for partition, (first, _) in available.items()}
