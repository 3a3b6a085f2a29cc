"""A Kafka-to-Kafka pipeline through the SIGKILL of its driver, a Python worker and the broker, in turn.

In exactly-once mode the records of the output topic, read committed, must be those of the model, each of them
once; at-least-once must lead to the same table.
"""

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

import upsert
from tests.helpers import spark_script
from tests.pipelines.crash_model import Record, Row, debezium_changes, expected_records, final_table, key_of
from tests.pipelines.topics import create_topic, produce_json, records_of
from upsert.testing import LocalKafka

SCRIPT = Path(__file__).parent / "pipeline_script.py"
PARTITIONS, KEYS, CHANGES = 2, 300, 1_200
MASTER = "local[2,8]"
"""A task may fail seven times: a worker that is killed costs an attempt, not the query."""


@pytest.fixture
def own_kafka() -> Iterator[LocalKafka]:
    """A broker that may be killed, and that keeps every record: they are counted."""
    with LocalKafka(own=True, settings={"log.cleaner.enable": "false"}) as broker:
        yield broker


class Pipeline:
    """The driver process, started again whenever it has ended."""

    def __init__(self, warehouse: Path, checkpoint: Path) -> None:
        self._arguments = (warehouse, checkpoint)
        self._process: subprocess.Popen[str] | None = None
        self.workers: list[int] = []
        self.written = 0

    def await_batches(self, count: int) -> None:
        """Return after the driver has finished so many more micro-batches; a failed driver is replaced."""
        deadline = time.monotonic() + 600
        for _ in range(count):
            self._await_batch(deadline)

    def finish(self, changes: int) -> None:
        """Return when so many changes have been written since the pipeline began."""
        deadline = time.monotonic() + 600
        while self.written < changes:
            self._await_batch(deadline)

    def _await_batch(self, deadline: float) -> None:
        line = ""
        while True:
            assert time.monotonic() < deadline, f"the pipeline does not move; it said {line!r}"
            process = self._process or self.start()
            assert process.stdout is not None
            line = process.stdout.readline()
            if line.startswith("finished"):
                self.written, *self.workers = map(int, line.split()[1:])
                return
            if not line:
                process.wait()
                self._process = None

    def start(self) -> subprocess.Popen[str]:
        self._process = spark_script(SCRIPT, *self._arguments, master=MASTER)
        return self._process

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def kill_worker(self) -> None:
        for pid in self.workers[:1]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def kill_and_restart(kafka: LocalKafka) -> None:
    kafka.kill()
    kafka.restart()


def tables(warehouse: Path, kafka: LocalKafka, guarantee: str) -> None:
    columns = "id INT, name STRING, level STRING"
    brokers = f"'properties.bootstrap.servers' = '{kafka.bootstrap_servers}'"
    catalog = upsert.Catalog(warehouse)
    catalog.sql(
        f"CREATE TABLE changes ({columns}) WITH ('connector' = 'kafka', 'topic' = 'changes', {brokers}, "
        "'format' = 'debezium-json', 'max-rows-per-trigger' = '600')"
    )
    catalog.sql(
        f"CREATE TABLE kept ({columns}, PRIMARY KEY (id) NOT ENFORCED) WITH ('connector' = 'upsert-kafka', "
        f"'topic' = 'kept', {brokers}, 'key.format' = 'json', 'value.format' = 'json', "
        "'value.fields-include' = 'EXCEPT_KEY', 'topic.partitions' = '2', "
        f"'sink.delivery-guarantee' = '{guarantee}', 'sink.transactional-id-prefix' = 'crashes')"
    )


def read_back(kafka: LocalKafka) -> tuple[Counter[Record], dict[int, tuple[str, str]]]:
    """The output topic: how often each record, and the newest value of each key."""
    counted: Counter[Record] = Counter()
    newest: dict[int, tuple[str, str]] = {}
    for key_text, value_text in records_of(kafka.bootstrap_servers, "kept"):
        key = json.loads(key_text)["id"]
        value = None if value_text is None else json.loads(value_text)
        record: Record = (key, None if value is None else (value["name"], value["level"]))
        counted[record] += 1
        newest.pop(key, None)
        if record[1] is not None:
            newest[key] = record[1]
    return counted, newest


def run_through_crashes(
    kafka: LocalKafka, folder: Path, guarantee: str, victims: list[str], seed: int
) -> tuple[list[list[dict[str, Any]]], dict[int, Row], Path]:
    random = Random(seed)
    table: dict[int, Row] = {}
    changes: list[list[dict[str, Any]]] = [[] for _ in range(PARTITIONS)]
    tables(folder / "warehouse", kafka, guarantee)
    create_topic(kafka.bootstrap_servers, "changes", PARTITIONS)
    pipeline = Pipeline(folder / "warehouse", folder / "checkpoint")
    attacks: dict[str, Callable[[], None]] = {
        "driver": pipeline.kill,
        "worker": pipeline.kill_worker,
        "broker": partial(kill_and_restart, kafka),
    }
    try:
        for victim in victims:
            batch = list(debezium_changes(random, table, CHANGES, KEYS))
            for change in batch:
                changes[key_of(change) % PARTITIONS].append(change)
            sent = [(key_of(change) % PARTITIONS, change) for change in batch]
            produce_json(kafka.bootstrap_servers, "changes", sent)
            pipeline.await_batches(random.randrange(1, 4))
            time.sleep(random.random() * 0.5)  # anywhere in a micro-batch; nothing is asserted about when
            attacks[victim]()
        pipeline.finish(sum(map(len, changes)))
    finally:
        pipeline.kill()
    return changes, table, folder / "checkpoint"


def check_exactly_once(kafka: LocalKafka, folder: Path, victims: list[str], seed: int) -> None:
    changes, table, checkpoint = run_through_crashes(kafka, folder, "exactly-once", victims, seed)
    counted, newest = read_back(kafka)
    assert counted == expected_records(changes, checkpoint), f"seed {seed}"
    assert newest == final_table(table), f"seed {seed}"


VICTIMS = ["driver", "worker", "broker"]
"""The first one is killed in every run, all of them in the long ones."""


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.long
def test_exactly_once_writes_each_record_once_through_crashes(own_kafka: LocalKafka, tmp_path: Path) -> None:
    check_exactly_once(own_kafka, tmp_path, VICTIMS[:1], seed=1)


@pytest.mark.long
def test_at_least_once_leads_to_the_same_table(own_kafka: LocalKafka, tmp_path: Path) -> None:
    _, table, _ = run_through_crashes(own_kafka, tmp_path, "at-least-once", VICTIMS, seed=2)
    assert read_back(own_kafka)[1] == final_table(table)


@pytest.mark.long
@pytest.mark.minutes
@pytest.mark.parametrize("seed", range(100, 102))
def test_exactly_once_through_many_crashes(own_kafka: LocalKafka, tmp_path: Path, seed: int) -> None:
    """Five rounds of three victims; with all seeds ten rounds."""
    check_exactly_once(own_kafka, tmp_path, VICTIMS * 5, seed)
