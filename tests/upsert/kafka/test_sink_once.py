"""Exactly once, task by task, on a real broker: replays, other tasks, other rows, and zombies."""

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from tests.upsert.kafka.test_sink import WORDS, rows_of, table_on
from tests.upsert.kafka.written import records_in, values_by_key
from upsert.errors import ConfigurationError, FencedError
from upsert.kafka import sink
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.transactions import Outcome, TransactionalWriter, read_marker
from upsert.kafka.encode import RecordMaker, written_schema
from upsert.kafka.sink import write_once
from upsert.store.rows.hashing import bucket_of, hash_columns

pytestmark = pytest.mark.kafka

NewTopic = Callable[..., str]
Rows = Sequence[Sequence[Any]]


@pytest.fixture
def topic(new_topic: NewTopic) -> str:
    return new_topic(2, **{"cleanup.policy": "compact"})


class Query:
    """A query's tasks, called without Spark."""

    def __init__(self, connection: Connection, topic: str, tasks: int | None = None, query: str = "") -> None:
        options = {"sink_delivery__guarantee": "exactly-once", "sink_transactional__id__prefix": "test"}
        if tasks is not None:
            options |= {"sink_row__order": "none", "sink_parallelism": str(tasks)}
        table = table_on(connection, topic, **options)
        self.maker = RecordMaker(table, written_schema(table, WORDS.names))
        self.id = query or uuid.uuid4().hex

    def write(self, rows: Rows | Iterator[pa.RecordBatch], batch: int = 0, task: int = 0) -> Outcome:
        batches = rows if isinstance(rows, Iterator) else rows_of(WORDS, rows) if rows else []
        return write_once(self.maker, batches, query=self.id, batch=batch, task=task)

    def write_by_key(self, rows: Rows, batch: int = 0, only: Sequence[int] | None = None) -> None:
        """Each row in the task of its key; of all tasks only some, as before a crash."""
        tasks = self.maker.tasks
        assert tasks is not None
        owners = bucket_of(hash_columns([pa.array([row[1] for row in rows])]), tasks).tolist()
        for task in range(tasks) if only is None else only:
            own = [row for row, owner in zip(rows, owners, strict=True) if owner == task]
            self.write(own, batch, task)


LETTERS = [("+I", letter, number) for number, letter in enumerate("abcdefghij")]


def test_replay_writes_nothing(connection: Connection, topic: str) -> None:
    """Also in another order, and by another process: another producer under the same id."""
    query = Query(connection, topic)
    rows = [("+I", "a", 1), ("+I", "b", 2), ("-D", "c", 3)]
    assert query.write(rows) == Outcome(3, skipped=False)
    assert query.write(rows) == Outcome(3, skipped=True)
    assert Query(connection, topic, query=query.id).write(rows[::-1]) == Outcome(3, skipped=True)
    assert query.write([("+U", "a", 4)], batch=1) == Outcome(1, skipped=False)
    expected = {"a": [1, 4], "b": [2], "c": [None]}
    assert values_by_key(records_in(connection, topic, 4), "word", "count") == expected


def test_another_query_writes_its_own(connection: Connection, topic: str) -> None:
    for _ in range(2):
        assert not Query(connection, topic).write([("+I", "a", 1)]).skipped
    records_in(connection, topic, 2)


def test_replay_with_other_rows_is_refused(connection: Connection, topic: str) -> None:
    """What another task wrote would be lost, or written twice; nothing more is written."""
    query = Query(connection, topic)
    query.write([("+I", "a", 1), ("+I", "b", 2)])
    for rows in ([("+I", "a", 1)], [("+I", "a", 1), ("+I", "c", 2)], []):
        with pytest.raises(ConfigurationError, match=r"(?s)2 rows, checksum.*write_changes"):
            query.write(rows)
    records_in(connection, topic, 2)


def test_keys_by_hash_may_come_again_with_fewer_rows(connection: Connection, topic: str) -> None:
    """Kafka may have compacted the source since; each key still has its task."""
    query = Query(connection, topic, tasks=3)
    query.write_by_key(LETTERS, only=[1, 2])
    query.write_by_key(LETTERS[3:])
    found = values_by_key(records_in(connection, topic, len(LETTERS) - lost_before(query)), "word", "count")
    assert all(len(values) == 1 for values in found.values())
    assert set("defghij") <= set(found)


def lost_before(query: Query) -> int:
    """How many of the first three letters belong to task 0, which had not written."""
    return int((bucket_of(hash_columns([pa.array(["a", "b", "c"])]), 3) == 0).sum())


def test_number_of_tasks_is_kept(connection: Connection, topic: str) -> None:
    """Even if task 0, which keeps it, has no rows; a query of its own may have another."""
    query = Query(connection, topic, tasks=3)
    query.write([], task=0)
    marker = read_marker(connection, topic, f"test-{query.id}-0")
    assert marker is not None
    assert (marker.rows, marker.fingerprint) == (0, "3 tasks by key")
    for task in (0, 1):
        with pytest.raises(
            ConfigurationError, match=r"table 't'.*'3 tasks by key' and has 2 now; set 'sink\.parall"
        ):
            Query(connection, topic, tasks=2, query=query.id).write([], batch=1, task=task)
    Query(connection, topic, tasks=2).write([], batch=1)
    records_in(connection, topic, 0)


def test_empty_task_leaves_no_mark(connection: Connection, topic: str) -> None:
    """Nothing of it could be written twice. Rows that come after all are another's, which was not done."""
    by_key, raw = Query(connection, topic, tasks=3), Query(connection, topic)
    assert by_key.write([], task=1) == raw.write([], task=0) == Outcome(0, skipped=False)
    assert read_marker(connection, topic, f"test-{by_key.id}-1") is None
    assert read_marker(connection, topic, f"test-{raw.id}-0") is None
    assert raw.write([("+I", "a", 1)]) == Outcome(1, skipped=False)


def test_failed_attempt_leaves_nothing_visible(connection: Connection, topic: str) -> None:
    query = Query(connection, topic)

    def failing() -> Iterator[pa.RecordBatch]:
        yield from rows_of(WORDS, LETTERS)
        raise RuntimeError("the source is gone")

    with pytest.raises(RuntimeError, match="the source is gone"):
        query.write(failing())
    assert query.write(LETTERS) == Outcome(10, skipped=False)
    records_in(connection, topic, 10)


def test_stalled_attempt_is_locked_out(connection: Connection, topic: str) -> None:
    """A zombie goes on after its successor has written the micro-batch: nothing of it is seen."""
    query = Query(connection, topic)

    def stalled() -> Iterator[pa.RecordBatch]:
        first, *others = rows_of(WORDS, LETTERS)
        yield first
        assert query.write(LETTERS) == Outcome(10, skipped=False)
        yield from others

    with pytest.raises(FencedError):
        query.write(stalled())
    assert query.write([("+U", "a", 11)], batch=1) == Outcome(1, skipped=False)
    found = values_by_key(records_in(connection, topic, 11), "word", "count")
    assert found["a"] == [0, 11]


def test_transaction_that_kafka_finds_too_long_is_refused(connection: Connection, topic: str) -> None:
    """S26: the time is ours, 10 minutes, unless given; brokers allow 15."""
    too_long = Connection({**connection.properties, "transaction.timeout.ms": "86400000"})
    with pytest.raises(
        ConfigurationError, match=r"INVALID_TRANSACTION_TIMEOUT.*correct the option or property"
    ):
        Query(too_long, topic).write(LETTERS)
    records_in(connection, topic, 0)


def test_a_dead_task_keeps_nobody_waiting(
    connection: Connection, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the task that comes again, nor one that asks how many there were, nor one without rows."""
    monkeypatch.setattr(sink, "DEAD_AFTER_S", 0.3)
    by_key, as_they_are = Query(connection, topic, tasks=1), Query(connection, topic)
    for query in (by_key, as_they_are):
        dead = TransactionalWriter(connection, topic, f"test-{query.id}-0")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TransactionalWriter, "_commit", lambda *_: None)
            dead.write([pa.table({"key": [b"k"], "value": [b"v"]})], 0, "another")
    assert by_key.write([("+I", "a", 1)]) == Outcome(1, skipped=False)
    assert as_they_are.write([]) == Outcome(0, skipped=False)
    assert as_they_are.write([("+I", "b", 2)], batch=1) == Outcome(1, skipped=False)
    expected = {"a": [1], "b": [2]}
    assert values_by_key(records_in(connection, topic, 2), "word", "count") == expected
