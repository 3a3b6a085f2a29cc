"""What happens to a cluster: leaders die, change and come back, and a log is cut."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from tests.helpers import wait_until
from tests.upsert.kafka.three_brokers import NUMBERS, ThreeBrokers
from upsert.errors import KafkaUnavailableError, RecordsExpiredError, UpsertError
from upsert.kafka.client import admin
from upsert.kafka.client.producer import produce
from upsert.kafka.client.records import TopicPartition
from upsert.kafka.client.transactions import Outcome, produce_once
from upsert.kafka.options import PLAIN
from upsert.kafka.planning import Offset, Planner, ranges
from upsert.kafka.source import ReadMode, rows_of
from upsert.kafka.table import KafkaTable
from upsert.schema import TableSchema

pytestmark = [pytest.mark.kafka, pytest.mark.long]


@pytest.fixture(scope="module")
def brokers() -> Iterator[ThreeBrokers]:
    with ThreeBrokers() as brokers:
        yield brokers


def numbers(brokers: ThreeBrokers, topic: str, **options: str) -> KafkaTable:
    given = {"properties.bootstrap.servers": brokers.bootstrap_servers, "topic": topic, "format": "json"}
    named = {name.replace("_", "-"): value for name, value in options.items()}
    return KafkaTable.of(PLAIN, TableSchema.of({"n": pa.int64()}), given | named)


def rows(*numbers: int) -> pa.Table:
    keys = [b"%d" % number for number in numbers]
    return pa.table({"key": keys, "value": [json.dumps({"n": n}).encode() for n in numbers]})


def read(table: KafkaTable, start: Offset, end: Offset) -> list[int]:
    tables = [some for part in ranges(start, end) for some in rows_of(table, part, ReadMode.ROWS, None)]
    return [n for some in tables for n in some.column("n").to_pylist()]


def test_a_log_that_was_cut_and_has_grown_again_is_noticed(brokers: ThreeBrokers) -> None:
    """By a leader that lacks records, and is elected all the same; a checkpoint keeps who told an end."""
    unclean = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    brokers.create_topic("cut", [[1, 2]], **unclean)
    connection = brokers.connection()
    produce(connection, "cut", [rows(*range(10))])
    wait_until(lambda: brokers.in_sync("cut") == [1, 2])
    table, tolerant = numbers(brokers, "cut"), numbers(brokers, "cut", fail_on_data_loss="false")
    ten = Planner(table).next(Offset(), None)
    brokers.kill(2)
    wait_until(lambda: brokers.in_sync("cut") == [1])
    produce(connection, "cut", [rows(*range(10, 20))])
    twenty = Planner(table).next(ten, None)
    assert read(table, ten, twenty) == list(range(10, 20))
    kept = Offset.from_json(twenty.to_json(), "numbers")
    brokers.kill(1)
    brokers.restart(2)
    wait_until(lambda: brokers.leader("cut") == 2)
    newcomer = brokers.connection({"client.id": "counts from the beginning"})
    produce(newcomer, "cut", [rows(*range(100, 130))])
    for at in (twenty, kept):
        with pytest.raises(
            RecordsExpiredError, match="'cut', partition 0: it ends at offset 40, and has been"
        ):
            Planner(table).next(at, None)
    after = Planner(tolerant).next(kept, None)
    assert read(tolerant, kept, after) == list(range(110, 130))
    # of what both leaders have had, nothing was cut
    assert read(table, ten, Planner(table).next(ten, None)) == list(range(100, 130))
    assert Planner(table).next(after, None) == after
    brokers.restart(1)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_transaction_is_written_once_whichever_broker_dies_in_it(
    brokers: ThreeBrokers, number: int
) -> None:
    """One leads the partition, one coordinates the transaction, one the group with its mark."""
    topic = f"once-{number}"
    brokers.create_topic(topic, [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    connection = brokers.connection()

    def write(batch: int, tables: Iterator[pa.Table]) -> Outcome:
        return produce_once(
            connection, topic, tables, transactional_id=topic, batch=batch, fingerprint="by key"
        )

    def dying() -> Iterator[pa.Table]:
        yield rows(*range(100, 150))
        brokers.kill(number)
        yield rows(*range(150, 200))

    write(0, iter([rows(*range(100))]))
    try:
        write(1, dying())
    except UpsertError:  # what Spark answers to by doing the micro-batch again
        write(1, iter([rows(*range(100, 200))]))
    brokers.restart(number)
    assert write(1, iter([rows(*range(100, 200))])) == Outcome(100, skipped=True)
    table = numbers(brokers, topic)
    assert sorted(read(table, Offset(), Planner(table).next(Offset(), None))) == list(range(200))
    everywhere = [TopicPartition(topic, partition) for partition in range(3)]
    wait_until(lambda: all(brokers.in_sync(topic, partition) == [*NUMBERS] for partition in range(3)))
    assert sum(admin.latest_offsets(connection, everywhere).values()) >= 200


def test_records_that_too_few_replicas_get_are_refused_with_that_cause(brokers: ThreeBrokers) -> None:
    """Who leads the partition answers, so the library has nothing to report, and tries again."""
    brokers.create_topic("alone", [[1, 2, 3]])
    connection = replace(brokers.connection(), patience_s=10)
    produce(connection, "alone", [rows(1)])
    for number in (2, 3):
        brokers.pause(number)
    try:
        with pytest.raises(KafkaUnavailableError, match=r"last: .*fewer replicas .* 'min\.insync\.replicas'"):
            produce(connection, "alone", [rows(2)])
    finally:
        for number in (2, 3):
            brokers.resume(number)
    produce(brokers.connection(), "alone", [rows(2)])
