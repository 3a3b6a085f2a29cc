"""Topics, their settings, and offsets of partitions: the first, the last, those at a time or of a group.

Every function answers from the cluster at the time of the call, and tries again while the cluster is away,
for as long as the connection has patience. What a group has committed is asked for with a consumer of the
group that never joins it: the admin client could ask too, but takes the whole process down (librdkafka 2.16)
when the group's broker is just starting.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import wait
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from upsert.errors import TableNotFoundError, UpsertError
from upsert.kafka.client.connection import (
    LOGGER,
    ClientCache,
    Connection,
    admin_library,
    client_properties,
    library,
)
from upsert.kafka.client.failures import (
    Reports,
    codes,
    is_lasting,
    made,
    retried,
    tell,
    unavailable,
    with_client,
)
from upsert.kafka.client.records import TopicPartition

T = TypeVar("T")

REQUEST_SECONDS: Final = 10.0
"""How long one request may take before it is made again."""

BLOCKING_SECONDS: Final = 5.0
"""The same of requests that block: what their client meets is seen only afterwards."""

_LISTEN_SECONDS: Final = 0.1

_admins: ClientCache[tuple[Any, Reports]] = ClientCache(4, close=lambda _: None)


def blocking_seconds(connection: Connection) -> float:
    """How long one request may take that does not give a future."""
    return min(BLOCKING_SECONDS, connection.patience_s)


def answers(
    connection: Connection,
    subject: str,
    ask: Callable[[Any, float], Mapping[Any, Any]],
    *,
    skips_missing: bool = False,
    check: Callable[[Any], None] = lambda _: None,
    on_failure: Callable[[Any], None] = lambda _: None,
) -> dict[Any, Any]:
    """The results of a request's futures, without topics that are not there where ``skips_missing``.

    Args:
        connection: the cluster.
        subject: what is asked, for messages.
        ask: gives the futures of a client's request, which may take so many seconds.
        skips_missing: whether a missing topic is left out; else it is an error.
        check: may raise why a result is none.
        on_failure: is called with the ``KafkaError`` of each try that failed, and may raise another error.
    """
    gone = codes("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC") if skips_missing else frozenset()

    def read(admin: Any, reports: Reports) -> dict[Any, Any]:
        results = {}
        begun = time.monotonic()
        seconds = min(REQUEST_SECONDS, connection.patience_s)
        for key, future in ask(admin, seconds).items():
            try:
                while not future.done():
                    wait([future], _LISTEN_SECONDS)
                    _listen(connection, subject, admin, reports, begun)
                results[key] = future.result()
                check(results[key])
            except library().KafkaException as failure:
                if failure.args[0].code() not in gone:
                    on_failure(failure.args[0])
                    raise
        return results

    return _with_admin(connection, subject, read)


def _listen(connection: Connection, subject: str, admin: Any, reports: Reports, begun: float) -> None:
    admin.poll(0)
    failure = reports.broker_failure
    if failure is not None and is_lasting(failure):
        raise library().KafkaException(failure)
    tell(connection, subject, failure, begun)


def _with_admin(connection: Connection, subject: str, call: Callable[[Any, Reports], T]) -> T:
    """The result of a call with the process's client for this cluster, and what that client has met."""

    def make(reports: Reports) -> Any:
        properties = client_properties(connection, fixed={"error_cb": reports.on_error})
        return made(connection, subject, lambda: admin_library().AdminClient(properties, logger=LOGGER))

    return with_client(connection, subject, _admins, connection, make, call)


@dataclass(frozen=True)
class TopicInfo:
    """A topic as the cluster has it; its ``id`` is never used again, and None from brokers before 2.8."""

    name: str
    id: str | None
    partitions: int


def topics(
    connection: Connection, names: Collection[str] | None = None, pattern: str | None = None
) -> dict[str, TopicInfo]:
    """The topics with one of these names, or whose whole name matches the regular expression.

    Names that the cluster does not have are left out; so are Kafka's own topics, unless named.

    Example:
        >>> connection = Connection({"bootstrap.servers": kafka.bootstrap_servers})
        >>> create_topic(connection, "topics-example", partitions=2)
        >>> topics(connection, pattern="topics-ex.*")["topics-example"].partitions
        2
    """
    if names is None:
        names = _listed(connection, re.compile(pattern or ""))
    if not names:
        return {}
    asked = library().TopicCollection(sorted(names))
    found = answers(
        connection,
        f"describing topics {', '.join(map(repr, sorted(names)))}",
        lambda admin, seconds: admin.describe_topics(asked, request_timeout=seconds),
        skips_missing=True,
    )
    return {
        name: TopicInfo(name, None if one.topic_id is None else str(one.topic_id), len(one.partitions))
        for name, one in found.items()
    }


def _listed(connection: Connection, pattern: re.Pattern[str]) -> list[str]:
    subject = f"listing topics that match {pattern.pattern!r}"
    timeout_s = blocking_seconds(connection)
    found = _with_admin(connection, subject, lambda admin, _: admin.list_topics(timeout=timeout_s).topics)
    return [name for name in found if pattern.fullmatch(name) and not name.startswith("__")]


def cleanup_policies(connection: Connection, names: Collection[str]) -> dict[str, frozenset[str]]:
    """The clean-up policies of topics: ``compact``, ``delete`` or both."""
    found = _settings(connection, names) if names else {}
    return {name: frozenset(entries["cleanup.policy"].value.split(",")) for name, entries in found.items()}


def create_topic(
    connection: Connection,
    name: str,
    partitions: int,
    config: Mapping[str, str] = {},
    replication_factor: int = -1,
) -> None:
    """Create a topic, and return when it can be written to.

    ``config`` are settings such as ``{"cleanup.policy": "compact"}``; with a replication factor of -1 as many
    brokers keep each record as they do by default.
    """
    new = admin_library().NewTopic(name, partitions, replication_factor, config=dict(config))
    subject = f"creating topic {name!r}"
    answers(connection, subject, lambda admin, seconds: admin.create_topics([new], request_timeout=seconds))

    def is_there() -> bool:
        found = topics(connection, [name]).get(name)
        return found is not None and found.partitions == partitions

    _wait(connection, subject, is_there)


def delete_topic(connection: Connection, name: str) -> None:
    """Delete a topic with all its records, and return when it is gone."""
    subject = f"deleting topic {name!r}"
    answers(connection, subject, lambda admin, seconds: admin.delete_topics([name], request_timeout=seconds))
    _wait(connection, subject, lambda: name not in topics(connection, [name]))


def _wait(connection: Connection, subject: str, is_done: Callable[[], bool]) -> None:
    """Brokers learn of a change one after the other; wait until the one that answers us has."""
    deadline = time.monotonic() + connection.patience_s
    while not is_done():
        if time.monotonic() > deadline:
            raise unavailable(connection, subject, None)
        time.sleep(0.02)


def existing_topic(connection: Connection, name: str) -> TopicInfo:
    """The topic of this name.

    Raises:
        TableNotFoundError: it does not exist.
    """
    found = topics(connection, [name]).get(name)
    if found is None:
        raise TableNotFoundError(
            f"topic {name!r} should exist at {connection.bootstrap_servers!r}, and does not; "
            "create it, or correct its name"
        )
    return found


def change_settings(connection: Connection, name: str, changed: Mapping[str, str | None]) -> None:
    """Change some settings of a topic, to the brokers' own for None; the others stay.

    The brokers show the new values a moment later.

    Example:
        >>> connection = Connection({"bootstrap.servers": kafka.bootstrap_servers})
        >>> create_topic(connection, "settings-example", partitions=1)
        >>> change_settings(connection, "settings-example", {"retention.ms": "60000"})
        >>> while settings(connection, "settings-example")["retention.ms"] != "60000":
        ...     pass  # not every broker knows it yet
    """
    existing_topic(connection, name)  # Kafka says something else of one that is not there
    kafka = admin_library()
    to_do = kafka.AlterConfigOpType
    entries = [
        kafka.ConfigEntry(key, value, incremental_operation=to_do.DELETE if value is None else to_do.SET)
        for key, value in changed.items()
    ]
    asked = [kafka.ConfigResource(kafka.ConfigResource.Type.TOPIC, name, incremental_configs=entries)]
    answers(
        connection,
        f"changing the settings of topic {name!r}",
        lambda admin, seconds: admin.incremental_alter_configs(asked, request_timeout=seconds),
    )


def settings(connection: Connection, name: str) -> dict[str, str | None]:
    """All settings of a topic, those of the brokers where it has none of its own."""
    return {key: entry.value for key, entry in _settings(connection, [name])[name].items()}


def _settings(connection: Connection, names: Collection[str]) -> dict[str, Mapping[str, Any]]:
    resource_of = admin_library().ConfigResource
    asked = [resource_of(resource_of.Type.TOPIC, name) for name in sorted(names)]
    found = answers(
        connection,
        f"settings of topics {', '.join(map(repr, sorted(names)))}",
        lambda admin, seconds: admin.describe_configs(asked, request_timeout=seconds),
    )
    return {resource.name: entries for resource, entries in found.items()}


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
    connection: Connection,
    group: str,
    subject: str,
    *,
    settled: bool = True,
    reports: Reports | None = None,
    on_commit: Callable[[Any, list[Any]], None] | None = None,
) -> Any:
    """A consumer that can speak of a group, and does not join it; ``reports`` gets what it meets."""
    fixed: dict[str, Any] = {
        "group.id": group,
        "max.poll.interval.ms": 86_400_000,
        # no session is held; but so long the library tries a commit, and spins if it ends before that
        "session.timeout.ms": 3_000,
        "heartbeat.interval.ms": 1_000,
        # uncommitted: those of an open transaction are passed over; what is committed is seen alone also then
        "isolation.level": "read_committed" if settled else "read_uncommitted",
    }
    if on_commit is not None:
        fixed["on_commit"] = on_commit
    return _consumer(connection, subject, fixed, reports)


def _consumer(connection: Connection, subject: str, fixed: Mapping[str, Any], reports: Reports | None) -> Any:
    """A consumer that commits nothing by itself."""
    own = {"enable.auto.commit": False, **({} if reports is None else {"error_cb": reports.on_error})}
    properties = client_properties(connection, fixed={**fixed, **own})
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
    return {partition: end.offset for partition, end in ends_with_epochs(connection, partitions).items()}


class End(NamedTuple):
    """The offset after the last record of a partition, and the leader epoch in which it was told.

    Each leader of a partition has an epoch of its own, higher than those before; None from old brokers.
    """

    offset: int
    epoch: int | None


def ends_with_epochs(
    connection: Connection, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, End]:
    """The same as `latest_offsets`, with leader epochs."""
    found = _listed_offsets(connection, partitions, lambda spec: spec.latest())
    return {partition: End(one.offset, one.leader_epoch) for partition, one in found.items()}


_LOOKING: Final = {
    "group.id": "deltajoin",  # the library wants one; nothing is ever committed under it
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "queued.min.messages": 1,
}
"""Properties of a consumer that reads no more of a partition than it must."""

_CUT: Final = "Partition log truncation detected at"
"""What librdkafka says then; of an epoch that a broker does not know, as of an old format, it says more."""


def shortened(connection: Connection, read: Mapping[TopicPartition, End]) -> frozenset[TopicPartition]:
    """The partitions that have been cut below an offset since a leader of that epoch told that it has them.

    An unclean leader election does that. The log may have grown beyond the offset again, with other records;
    then only its history of leaders tells, which librdkafka asks for where it begins to read with an epoch.
    """
    subject, kafka = f"leaders of {_named(read)}", library()
    asked = [
        kafka.TopicPartition(*partition, end.offset, leader_epoch=end.epoch)
        for partition, end in read.items()
    ]
    told = kafka.KafkaError._PARTITION_EOF, kafka.KafkaError._AUTO_OFFSET_RESET
    reports = Reports()

    def look() -> frozenset[TopicPartition]:
        consumer = _consumer(connection, subject, _LOOKING, reports)
        try:
            consumer.assign(asked)
            left, cut = set(read), set()
            deadline = time.monotonic() + min(REQUEST_SECONDS, connection.patience_s)
            while left:
                if time.monotonic() > deadline:
                    raise kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._TIMED_OUT))
                if (message := consumer.poll(_LISTEN_SECONDS)) is None:
                    continue
                error, place = message.error(), TopicPartition(message.topic(), message.partition())
                if error is None or error.code() in told:
                    left.discard(place)
                if error is not None and _CUT in error.str():
                    cut.add(place)
            return frozenset(cut)
        finally:
            consumer.close()

    return retried(connection, subject, look, reports)


def written_offsets(
    connection: Connection, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """The offset after the last record of each partition, also of transactions that are still open."""
    return _offsets(connection, partitions, lambda spec: spec.latest(), "read_uncommitted")


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
    connection: Connection,
    partitions: Iterable[TopicPartition],
    spec: Callable[[Any], Any],
    isolation_level: str | None = None,
) -> dict[TopicPartition, int]:
    found = _listed_offsets(connection, partitions, spec, isolation_level)
    return {partition: one.offset for partition, one in found.items()}


def _listed_offsets(
    connection: Connection,
    partitions: Iterable[TopicPartition],
    spec: Callable[[Any], Any],
    isolation_level: str | None = None,
) -> dict[TopicPartition, Any]:
    specs = admin_library().OffsetSpec
    asked = {library().TopicPartition(*partition): spec(specs) for partition in partitions}
    if not asked:
        return {}
    isolation = getattr(library().IsolationLevel, (isolation_level or connection.isolation_level).upper())
    known = [TopicPartition(key.topic, key.partition) for key in asked]

    def ask(admin: Any, seconds: float) -> Any:
        return admin.list_offsets(asked, isolation_level=isolation, request_timeout=seconds)

    def on_failure(error: Any) -> None:
        if error.code() in codes("_NOENT"):  # no leader, either for now or for ever
            _check_existence(connection, known)

    subject = f"offsets of {_named(known)}"
    found = answers(connection, subject, ask, check=_check_is_known, on_failure=on_failure)
    return {TopicPartition(key.topic, key.partition): result for key, result in found.items()}


def _check_is_known(found: Any) -> None:
    """Raise that time is up, where a broker has not told an offset in time: the library gives none then."""
    kafka = library()
    if found.offset == kafka.OFFSET_INVALID:
        raise kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._TIMED_OUT))


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


LOG: Final = logging.getLogger("upsert.kafka")

_WAIT_SECONDS: Final = 2.0
_AGAIN_SECONDS: Final = 10.0
"""When a commit that failed is tried again, if there are no newer offsets before."""
_REFRESH_SECONDS: Final = 3_600.0
"""When unchanged offsets are committed again: brokers forget those of idle groups, after a week."""


class GroupCommits:
    """Commits one stream's offsets to a group; belongs to the process that made it, not thread-safe.

    They are for those who watch how far behind a query is: nothing here reads them again, and where a query
    stands is in its checkpoint. So a commit never waits for long and never fails a query; what goes wrong is
    logged, and tried again with the next offsets or a while later. The group is not joined, so brokers refuse
    the commit while a program that has joined it is there.

    Args:
        of: what the offsets are those of, for the log.

    Example:
        >>> from upsert.kafka.client.admin import create_topic, group_offsets
        >>> connection = Connection({"bootstrap.servers": kafka.bootstrap_servers})
        >>> create_topic(connection, "commits-example", partitions=1)
        >>> place = TopicPartition("commits-example", 0)
        >>> group_offsets(connection, "watched", [place])
        {}
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
