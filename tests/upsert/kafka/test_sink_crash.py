"""Drivers killed in a micro-batch: readers of committed records see nothing twice, and miss nothing."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tests.helpers import output_of, run_spark_script, spark_script
from tests.upsert.kafka.written import records_in, values_by_key
from upsert import failpoints
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.producer import produce

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

SCRIPT = Path(__file__).parent / "sink_script.py"
WORDS = [f"{'abcdefg'[number % 7]}{number % 40}" for number in range(150)]
"""Each n times in the source, n growing; a micro-batch takes 60."""


@pytest.fixture
def topics(connection: Connection, new_topic: Callable[..., str]) -> tuple[str, str]:
    """The source with its records, and the sink."""
    source, sink = (new_topic(2, **{"cleanup.policy": "compact"}) for _ in range(2))
    records = pa.table(
        {
            "key": [json.dumps({"word": word}).encode() for word in WORDS],
            "value": [json.dumps({"word": word, "n": n}).encode() for n, word in enumerate(WORDS)],
        }
    )
    produce(connection, source, [records])
    return source, sink


def killed_run(arguments: tuple[object, ...], point: str, batch: int) -> None:
    process = spark_script(SCRIPT, *arguments, point, batch)
    output = output_of(process)
    assert process.returncode == -9, output
    checkpoint = Path(str(arguments[-1])) / "checkpoint"
    assert (checkpoint / "offsets" / str(batch)).exists()
    assert not (checkpoint / "commits" / str(batch)).exists()


def assert_is_written_once(connection: Connection, topic: str) -> None:
    """Each word once for a micro-batch that has it, with its last number there."""
    keys = {word: [n for n, other in enumerate(WORDS) if other == word] for word in WORDS}
    in_batches = {word: {n // 60: n for n in values} for word, values in keys.items()}
    written = values_by_key(records_in(connection, topic, sum(map(len, in_batches.values()))), "word", "n")
    assert {word: values[-1] for word, values in written.items()} == {
        word: max(n) for word, n in keys.items()
    }
    assert all(values == sorted(set(values)) for values in written.values())


@pytest.mark.long
def test_changes_are_written_exactly_once(
    connection: Connection, topics: tuple[str, str], tmp_path: Path
) -> None:
    """Killed when one of three tasks has committed, and when all have but Spark does not know it."""
    arguments = ("changes", connection.bootstrap_servers, *topics, tmp_path)
    killed_run(arguments, "task-1", 0)
    killed_run(arguments, "committed", 1)
    run_spark_script(SCRIPT, *arguments)
    assert_is_written_once(connection, topics[1])


@pytest.mark.long
def test_counts_are_written_exactly_once(
    connection: Connection, topics: tuple[str, str], tmp_path: Path
) -> None:
    """An aggregate in update mode through `write_upsert`; its driver dies between two tasks."""
    arguments = ("counts", connection.bootstrap_servers, *topics, tmp_path)
    killed_run(arguments, "task-1", 1)
    run_spark_script(SCRIPT, *arguments)
    written = values_by_key(records_in(connection, topics[1], 3 * 7), "word", "n")
    assert {word: values[-1] for word, values in written.items()} == Counter(word[0] for word in WORDS)
    assert all(values == sorted(set(values)) for values in written.values())


@pytest.mark.long
@pytest.mark.parametrize("point", ["transaction.after-send", "transaction.after-marker"])
def test_a_killed_task_is_done_again_at_once(
    connection: Connection, topics: tuple[str, str], tmp_path: Path, point: str
) -> None:
    """Its transaction would be open for ten minutes, which is longer than anybody waits for Kafka."""
    arguments = ("changes", connection.bootstrap_servers, *topics, tmp_path)
    process = spark_script(SCRIPT, *arguments, environment={failpoints.ENVIRONMENT_VARIABLE: f"{point}:2"})
    output = output_of(process)
    assert process.returncode == 1, output
    run_spark_script(SCRIPT, *arguments)
    assert_is_written_once(connection, topics[1])
