"""Each batch is in Kafka exactly once, whoever dies when."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from tests.forked_python import forked_program
from tests.helpers import REPOSITORY, wait_until
from upsert import failpoints
from upsert.errors import ConfigurationError, DeliveryError, FencedError, KafkaUnavailableError, UpsertError
from upsert.kafka.client import failures, producer, transactions
from upsert.kafka.client.admin import create_topic, latest_offsets
from upsert.kafka.client.connection import Connection, library
from upsert.kafka.client.consumer import read_range
from upsert.kafka.client.records import TopicPartition
from upsert.kafka.client.transactions import (
    POINTS,
    Outcome,
    TransactionalWriter,
    produce_once,
    read_marker,
    settled_marker,
)
from upsert.testing import LocalKafka

pytestmark = pytest.mark.kafka
NewTopic = Callable[..., str]
WRITTEN = Outcome(rows=2, skipped=False)
SKIPPED = Outcome(rows=2, skipped=True)


def rows(batch: int) -> pa.Table:
    return pa.table({"key": [b"a", b"b"], "value": [b"%d-a" % batch, b"%d-b" % batch]})


def write(
    connection: Connection,
    topic: str,
    batch: int,
    records: Iterator[pa.Table] | None = None,
    fingerprint: str | Callable[[], str] = "2 tasks",
) -> Outcome:
    tables = [rows(batch)] if records is None else records
    return produce_once(
        connection, topic, tables, transactional_id=f"id-{topic}", batch=batch, fingerprint=fingerprint
    )


def visible(connection: Connection, topic: str) -> list[bytes]:
    """All committed values, once no transaction is open any more."""
    place = TopicPartition(topic, 0)
    uncommitted = Connection({**connection.properties, "isolation.level": "read_uncommitted"})
    deadline = time.monotonic() + 60
    while latest_offsets(connection, [place]) != latest_offsets(uncommitted, [place]):
        assert time.monotonic() < deadline
    return committed(connection, topic)


def committed(connection: Connection, topic: str) -> list[bytes]:
    """The committed values before those of the first transaction that is open."""
    place = TopicPartition(topic, 0)
    chunks = read_range(connection, place, 0, latest_offsets(connection, [place])[place])
    return [value for chunk in chunks for value in chunk["value"].to_pylist()]


def expected(*batches: int) -> list[bytes]:
    return [value for batch in batches for value in rows(batch)["value"].to_pylist()]


def forget_writers() -> None:
    """As if another process went on."""
    transactions._writers.clear()


def test_batches_follow_each_other(connection: Connection, new_topic: NewTopic) -> None:
    topic = new_topic()
    assert [write(connection, topic, batch) for batch in (0, 1, 5)] == [WRITTEN] * 3
    assert visible(connection, topic) == expected(0, 1, 5)


def test_a_repeated_batch_is_skipped(connection: Connection, new_topic: NewTopic) -> None:
    topic = new_topic()
    write(connection, topic, 0)
    taken = iter([rows(0)])
    assert write(connection, topic, 0, taken) == SKIPPED
    assert list(taken) == []
    forget_writers()
    assert write(connection, topic, 0) == SKIPPED
    assert write(connection, topic, 1) == WRITTEN
    assert visible(connection, topic) == expected(0, 1)


def test_a_batch_without_rows_is_known_again(connection: Connection, new_topic: NewTopic) -> None:
    topic = new_topic()
    assert write(connection, topic, 0, iter([])) == Outcome(0, skipped=False)
    assert write(connection, topic, 0, iter([])) == Outcome(0, skipped=True)
    assert visible(connection, topic) == []


def test_a_repeated_batch_must_be_the_same(connection: Connection, new_topic: NewTopic) -> None:
    topic = new_topic()
    write(connection, topic, 0)
    with pytest.raises(ConfigurationError, match="as '2 tasks' before and is '3 tasks' now"):
        write(connection, topic, 0, fingerprint="3 tasks")
    assert write(connection, topic, 0) == SKIPPED


def test_a_fingerprint_may_depend_on_the_records(connection: Connection, new_topic: NewTopic) -> None:
    topic = new_topic()
    seen: list[int] = []

    def counted(count: int) -> Iterator[pa.Table]:
        for _ in range(count):
            seen.append(1)
            yield rows(0)

    write(connection, topic, 0, counted(2), lambda: f"{len(seen)} tables")
    seen.clear()
    with pytest.raises(ConfigurationError, match="'2 tables' before and is '1 tables' now"):
        write(connection, topic, 0, counted(1), lambda: f"{len(seen)} tables")
    with pytest.raises(ConfigurationError, match="at most 1000 characters"):
        write(connection, topic, 1, fingerprint="x" * 1001)
    assert visible(connection, topic) == expected(0, 0)


def test_a_checkpoint_older_than_the_topic_is_refused(connection: Connection, new_topic: NewTopic) -> None:
    topic = new_topic()
    write(connection, topic, 7)
    with pytest.raises(ConfigurationError, match="batch 7 is in Kafka already; if another query runs with"):
        write(connection, topic, 5)


def test_a_consumer_group_that_is_not_ours_is_refused(connection: Connection, new_topic: NewTopic) -> None:
    topic = new_topic()
    properties = {**connection.properties, "group.id": f"id-{topic}"}
    consumer = library().Consumer(properties)
    consumer.commit(offsets=[library().TopicPartition(topic, 0, 3)], asynchronous=False)
    consumer.close()
    with pytest.raises(ConfigurationError, match=r"sink\.transactional-id-prefix"):
        write(connection, topic, 0)


def test_records_that_fail_leave_nothing_visible(connection: Connection, new_topic: NewTopic) -> None:
    topic = new_topic()

    def broken() -> Iterator[pa.Table]:
        yield rows(0)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        write(connection, topic, 0, broken())
    too_large = pa.table({"key": [b"k"], "value": [bytes(2_000_000)]})
    with pytest.raises(DeliveryError, match="MSG_SIZE_TOO_LARGE"):
        write(connection, topic, 0, iter([rows(0), too_large]))
    assert visible(connection, topic) == []
    assert write(connection, topic, 0) == WRITTEN
    assert visible(connection, topic) == expected(0)


def test_a_transaction_may_time_out_before_the_patience_of_the_connection(
    connection: Connection, new_topic: NewTopic
) -> None:
    """What the client refuses is a record that may wait for longer than its transaction."""
    topic = new_topic()
    short = Connection({**connection.properties, "transaction.timeout.ms": "5000"}, patience_s=30)
    assert write(short, topic, 0) == WRITTEN
    assert visible(connection, topic) == expected(0)


@pytest.mark.parametrize("given", ["soon", "-1", "0"])
def test_a_timeout_that_is_none_is_refused_by_its_name(connection: Connection, given: str) -> None:
    wrong = Connection({**connection.properties, "transaction.timeout.ms": given})
    with pytest.raises(ConfigurationError, match=r"property \"transaction\.timeout\.ms\""):
        TransactionalWriter(wrong, "t", "id")


def test_a_stalled_attempt_is_locked_out(connection: Connection, new_topic: NewTopic) -> None:
    topic = new_topic()

    def stalled() -> Iterator[pa.Table]:
        yield rows(0)
        assert write(connection, topic, 0) == WRITTEN  # the next attempt does the whole work meanwhile
        yield rows(0)

    with pytest.raises(FencedError, match="another attempt has taken over"):
        write(connection, topic, 0, stalled())
    assert write(connection, topic, 0) == SKIPPED
    assert visible(connection, topic) == expected(0)


def test_writers_in_turn_never_use_a_stale_producer(connection: Connection, new_topic: NewTopic) -> None:
    topic = new_topic()
    here, there = connection, Connection(connection.properties, patience_s=31)  # each with its own producers
    for batch, place in enumerate([here, there, here, here, there]):
        assert write(place, topic, batch) == WRITTEN
    assert visible(connection, topic) == expected(0, 1, 2, 3, 4)


class LosesAnswers:
    """A producer whose commit takes place or not, and in both cases seems to time out."""

    def __init__(self, client: Any, *, commits: bool) -> None:
        self._client = client
        self._commits = commits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def commit_transaction(self, timeout: float) -> None:
        if self._commits:
            self._client.commit_transaction(timeout)
        raise library().KafkaException(library().KafkaError(library().KafkaError._TIMED_OUT))


@pytest.mark.parametrize("commits", [True, False])
def test_a_lost_answer_to_a_commit_is_found_out(
    connection: Connection, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch, commits: bool
) -> None:
    topic = new_topic()
    real_write = TransactionalWriter.write

    def write_with_loss(self: TransactionalWriter, *arguments: Any) -> int:
        self._sender.client = LosesAnswers(self._sender.client, commits=commits)
        return real_write(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(TransactionalWriter, "write", write_with_loss)
        if commits:
            assert write(connection, topic, 0) == WRITTEN
        else:
            with pytest.raises(UpsertError, match="should answer within"):
                write(connection, topic, 0)
    assert write(connection, topic, 0) == (SKIPPED if commits else WRITTEN)
    assert visible(connection, topic) == expected(0)


def test_what_made_a_transaction_fail_is_told_where_its_records_are_given_up(
    connection: Connection, new_topic: NewTopic
) -> None:
    """A report of a record that was given up, or a refusal of the next one, tells nothing of it."""
    topic = new_topic(**{"max.message.bytes": "1000"})
    writer = TransactionalWriter(
        Connection({**connection.properties, "compression.type": "none"}), topic, topic
    )
    writer._call(lambda client: client.begin_transaction(), 0)
    sender = writer._sender
    assert sender.client.failure_of_transaction() is None
    sender.send(topic, pa.table({"key": [b"k"], "value": [bytes(5000)]}))
    deadline = time.monotonic() + 60
    while sender.client.failure_of_transaction() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with pytest.raises(DeliveryError, match="Message size too large"):
        sender.send(topic, rows(0))
    sender._reports.failure = None
    sender._reports.on_failure(library().KafkaError(library().KafkaError._PURGE_QUEUE), f"{topic}-0")
    with pytest.raises(DeliveryError, match="Message size too large"):
        sender.check()
    writer.discard()


def test_a_client_whose_call_returns_late_is_ended_then(
    connection: Connection, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before, for the call is at work on it; never, and each try of a task would leave threads behind."""
    monkeypatch.setattr(failures, "GRACE_SECONDS", 0.01)
    topic, goes_on = new_topic(), threading.Event()
    writer = TransactionalWriter(connection, topic, topic)
    client = writer._sender.client
    with pytest.raises(KafkaUnavailableError, match=r"did not come back.*; another attempt is right"):
        writer._call(lambda _: goes_on.wait(60), 0)
    writer.discard()
    client.poll(0)
    goes_on.set()
    deadline = time.monotonic() + 60
    while client.calls:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_ctrl_c_while_a_producer_is_ended_ends_it(connection: Connection, new_topic: NewTopic) -> None:
    topic = new_topic()
    writer = TransactionalWriter(connection, topic, topic)
    client = writer._sender.client
    client.poll = lambda _: signal.raise_signal(signal.SIGINT)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        writer.discard()
    assert not client.calls


def test_a_producer_is_ended_where_no_thread_can_be_started(
    connection: Connection, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call is at work on it then: it was taken for one, and left to it."""
    topic = new_topic()
    writer = TransactionalWriter(connection, topic, topic)
    client = writer._sender.client

    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            writer.write([rows(0)], 0, "2 tasks")
        with pytest.raises(RuntimeError, match="can't start new thread"):
            writer.discard()
    assert not client.calls


def test_why_a_client_has_ended_is_asked_for_a_bounded_time(
    connection: Connection, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that does not come back keeps no task; the client is ended when it does."""
    monkeypatch.setattr(failures, "GRACE_SECONDS", 0.01)
    monkeypatch.setattr(producer, "_CAUSE_SECONDS", 0.0)
    topic, goes_on, has_returned = new_topic(), threading.Event(), threading.Event()
    writer = TransactionalWriter(connection, topic, topic)
    client = writer._sender.client

    def abort(_: float) -> None:
        goes_on.wait(60)
        has_returned.set()

    client.abort_transaction = abort  # type: ignore[method-assign]
    fatal = library().KafkaError(library().KafkaError._FATAL)
    with pytest.raises(DeliveryError, match="_FATAL"), writer._sender.refusals():
        raise library().KafkaException(fatal)
    assert not has_returned.is_set()
    writer.discard()
    assert client.calls, "the call is at work on it"
    goes_on.set()
    wait_until(lambda: not client.calls)


def write_until_it_works(connection: Connection, topic: str, batch: int) -> None:
    """What Spark does with a task that fails."""
    deadline = time.monotonic() + 300
    while True:
        try:
            write(connection, topic, batch)
            return
        except KafkaUnavailableError:
            assert time.monotonic() < deadline


CHILD = """
import sys
import pyarrow as pa
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.transactions import produce_once

address, topic = sys.argv[1:]
connection = Connection({"bootstrap.servers": address})
print("begins", flush=True)
for batch in (0, 1):
    rows = pa.table({"key": [b"a", b"b"], "value": [b"%d-a" % batch, b"%d-b" % batch]})
    produce_once(
        connection, topic, [rows], transactional_id=f"id-{topic}", batch=batch, fingerprint="2 tasks"
    )
"""

OFTEN = {"transaction.after-begin:2", "transaction.after-marker:2"}


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(point, marks=() if point in OFTEN else pytest.mark.long)
        for point in (f"{name}:{nth}" for name in POINTS for nth in (1, 2))
        if point != "transaction.after-open:2"  # the second batch needs no other producer
    ],
)
def test_a_process_killed_between_two_requests_is_replayed_at_once(
    connection: Connection, new_topic: NewTopic, point: str
) -> None:
    """Its transaction would be open for ten minutes: the replay, which has half of one, does not wait."""
    topic = new_topic()
    environment = {failpoints.ENVIRONMENT_VARIABLE: point}
    command = forked_program("-c", CHILD, connection.bootstrap_servers, topic)
    child = subprocess.run(command, env={**os.environ, **environment}, timeout=120)
    assert child.returncode == -signal.SIGKILL
    is_written = point.startswith("transaction.after-commit")
    killed = int(point[-1]) - 1
    assert write(connection, topic, killed) == (SKIPPED if is_written else WRITTEN)
    assert write(connection, topic, killed) == SKIPPED
    assert visible(connection, topic) == expected(*range(killed + 1))


@pytest.mark.long
def test_a_process_killed_at_any_moment_is_replayed_at_once(
    connection: Connection, new_topic: NewTopic
) -> None:
    """Also between the parts of one request: how long it goes on once it has begun is drawn."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    moments = random.Random(seed)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    left = list[int]()
    whole_s = 600.0  # the first one is not killed: it says how long they take now
    for _ in range(25):
        topic = new_topic()
        command = [sys.executable, "-c", CHILD, connection.bootstrap_servers, topic]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"begins\n"
            began = time.monotonic()
            with suppress(subprocess.TimeoutExpired):
                child.wait(whole_s if not left else moments.uniform(0, whole_s))
                whole_s = time.monotonic() - began
            child.kill()
        left.append(len(committed(connection, topic)))  # what is open is ended by the writes
        for batch in (0, 1):
            with suppress(ConfigurationError):  # the second one is there already
                write(connection, topic, batch)
        assert visible(connection, topic) == expected(0, 1)
    assert min(left) < 4, "none was killed before it was through"


def left_open(connection: Connection, topic: str, batch: int) -> TransactionalWriter:
    """What a task leaves that has written its records and its marker, and does not go on."""
    writer = TransactionalWriter(connection, topic, f"id-{topic}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionalWriter, "_commit", lambda *_: None)
        writer.write([rows(batch)], batch, "2 tasks")
    return writer


def test_a_look_that_waits_for_nothing_shows_what_was_committed_before(
    connection: Connection, new_topic: NewTopic
) -> None:
    topic = new_topic()
    write(connection, topic, 3)
    left_open(connection, topic, 4)
    seen = read_marker(connection, topic, f"id-{topic}", settled=False)
    assert seen is not None
    assert seen.batch == 3
    with pytest.raises(KafkaUnavailableError):
        read_marker(Connection(connection.properties, patience_s=0.2), topic, f"id-{topic}")
    assert settled_marker(connection, topic, f"id-{topic}", 0.2) == seen
    assert visible(connection, topic) == expected(3)


def test_a_producer_goes_on_after_another_process_has_died(
    connection: Connection, new_topic: NewTopic
) -> None:
    """It is kept for its next batch, which another process began to write."""
    topic = new_topic()
    write(connection, topic, 0)
    left_open(connection, topic, 1)
    assert write(connection, topic, 1) == WRITTEN
    assert write(connection, topic, 2) == WRITTEN
    assert visible(connection, topic) == expected(0, 1, 2)


WAITING_CHILD = """
import os, sys, time
import pyarrow as pa
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.transactions import produce_once

address, topic, moment = sys.argv[1:]

def stop_here():
    print(os.getpid(), flush=True)
    time.sleep(600)

def fingerprint():  # asked for when Kafka has all records, and before the commit
    if moment == "before":
        stop_here()
    return "2 tasks"

rows = pa.table({"key": [b"a", b"b"], "value": [b"0-a", b"0-b"]})
connection = Connection({"bootstrap.servers": address})
produce_once(
    connection, topic, [rows], transactional_id=f"id-{topic}", batch=0, fingerprint=fingerprint
)
stop_here()
"""


@pytest.mark.parametrize(("moment", "outcome"), [("before", WRITTEN), ("after", SKIPPED)])
def test_a_process_killed_around_its_commit_is_replayed_right(
    connection: Connection, new_topic: NewTopic, moment: str, outcome: Outcome
) -> None:
    topic = new_topic()
    command = forked_program("-c", WAITING_CHILD, connection.bootstrap_servers, topic, moment)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        os.kill(int(child.stdout.readline()), signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    assert write(connection, topic, 0) == outcome
    assert visible(connection, topic) == expected(0)


@pytest.mark.long
def test_a_broker_that_dies_within_a_transaction_does_no_harm() -> None:
    with LocalKafka(own=True) as broker:
        connection = Connection({"bootstrap.servers": broker.bootstrap_servers}, patience_s=30)
        create_topic(connection, "t", 1)
        write(connection, "t", 0)
        restart = threading.Thread(target=broker.restart)

        def with_a_crash() -> Iterator[pa.Table]:
            yield rows(1)
            broker.kill()
            restart.start()

        with suppress(UpsertError):
            write(connection, "t", 1, with_a_crash())
        restart.join()
        write_until_it_works(connection, "t", 1)
        assert write(connection, "t", 1) == SKIPPED
        assert visible(connection, "t") == expected(0, 1)
        marker = read_marker(connection, "t", "id-t")
        assert marker is not None
        assert (marker.batch, marker.rows) == (1, 2)
