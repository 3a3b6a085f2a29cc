"""A broker that dies while a step is planned or read: the step waits, and reads each record once."""

import json
import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from upsert.kafka.client import admin
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.producer import produce
from upsert.kafka.options import PLAIN
from upsert.kafka.planning import Offset, Planner, ranges
from upsert.kafka.source import ReadMode, rows_of
from upsert.kafka.table import KafkaTable
from upsert.schema import TableSchema
from upsert.testing import LocalKafka

pytestmark = pytest.mark.kafka

ROWS = 150_000


@pytest.fixture
def own_broker() -> Iterator[LocalKafka]:
    with LocalKafka(own=True) as broker:
        yield broker


def while_away(broker: LocalKafka, work: Callable[[], None]) -> None:
    """Do something that begins while the broker is dead, and must end when it is back."""
    broker.kill()
    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    broker.restart()
    worker.join(timeout=300)
    assert not worker.is_alive()


@pytest.mark.long
def test_a_step_outlives_its_broker(own_broker: LocalKafka) -> None:
    connection = Connection({"bootstrap.servers": own_broker.bootstrap_servers})
    admin.create_topic(connection, "numbers", 1)
    values = [json.dumps({"n": n}).encode() for n in range(ROWS)]
    produce(connection, "numbers", [pa.table({"key": pa.nulls(ROWS, pa.binary()), "value": values})])
    given = {
        "topic": "numbers",
        "format": "json",
        "properties.bootstrap.servers": own_broker.bootstrap_servers,
    }
    table = KafkaTable.of(PLAIN, TableSchema.of({"n": pa.int64()}), given)
    planner = Planner(table)
    first = planner.next(Offset(), ROWS // 2)
    planned: list[Offset] = []
    while_away(own_broker, lambda: planned.append(planner.next(first, None)))
    (part,) = ranges(Offset(), planned[0])
    tables = rows_of(table, part, ReadMode.ROWS, None)
    found = next(tables).column("n").to_pylist()

    def read_the_rest() -> None:
        for rows in tables:
            found.extend(rows.column("n").to_pylist())

    while_away(own_broker, read_the_rest)
    assert found == list(range(ROWS))
