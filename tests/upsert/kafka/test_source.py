"""What readers refuse when a query starts, and what tasks they plan: without Spark and without a broker."""

import pickle
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from upsert.errors import ConfigurationError, SchemaError
from upsert.kafka.client.records import TopicPartition
from upsert.kafka.declaration import struct_of
from upsert.kafka.options import PLAIN, UPSERT
from upsert.kafka.planning import Offset, PartitionProgress
from upsert.kafka.source import BatchReader, RangePartition, StreamReader
from upsert.kafka.table import KafkaTable
from upsert.schema import Column, TableSchema

WORDS = TableSchema.of({"word": pa.string(), "n": pa.int64()}, primary_key=["word"])
WHERE = {"topic": "t", "properties.bootstrap.servers": "localhost:9092", "format": "json"}
JSON = WHERE | {"key.format": "json"}


def upserts(**options: str) -> KafkaTable:
    return KafkaTable.of(UPSERT, WORDS, JSON | options)


def changes(**options: str) -> KafkaTable:
    given = {name.replace("_", "-"): value for name, value in options.items()}
    return KafkaTable.of(PLAIN, WORDS, WHERE | {"format": "debezium-json"} | given)


def rows(**options: str) -> KafkaTable:
    return KafkaTable.of(PLAIN, TableSchema.of({"n": pa.int64()}), WHERE | options)


REFUSALS = {
    "a changelog without a place for its images": (upserts(), "'changelog' = 'all' remembers the newest row"),
    "repeated changes without a place for images": (
        changes(cdc_events_duplicate="true"),
        "'cdc-events-duplicate' = 'true' remembers the newest row",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_streams_that_are_refused(name: str) -> None:
    table, message = REFUSALS[name]
    with pytest.raises(ConfigurationError, match=message):
        StreamReader(table, struct_of(table))


def test_changes_are_not_read_without_their_kind() -> None:
    table = upserts(changelog="upsert")
    with pytest.raises(ConfigurationError, match="a stream of changes must have the column '_row_kind'"):
        StreamReader(table, struct_of(table, row_kind=False))
    with pytest.raises(ConfigurationError, match="'debezium-json' holds changes"):
        BatchReader(changes(), struct_of(changes(), row_kind=False))
    BatchReader(upserts(), struct_of(upserts(), row_kind=False))


def test_columns_that_deletions_lack_are_not_promised() -> None:
    columns = (Column("word", pa.string()), Column("n", pa.int64(), nullable=False))
    with pytest.raises(SchemaError, match="'n' must not be NOT NULL with 'changelog' = 'upsert'"):
        KafkaTable.of(UPSERT, TableSchema(columns, ("word",)), JSON | {"changelog": "upsert"})


def test_a_reader_survives_pickling_and_begins_with_nothing() -> None:
    table = upserts(changelog="upsert")
    reader = pickle.loads(pickle.dumps(StreamReader(table, struct_of(table))))
    assert reader.initialOffset() == {"stream": None, "topics": {}}


def test_state_lies_in_the_folder_of_the_driver_wherever_tasks_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = upserts(**{"state.path": "state"})
    reader = pickle.dumps(StreamReader(table, struct_of(table)))
    assert str(tmp_path / "state").encode() in reader
    elsewhere = upserts(**{"state.path": "viewfs://host/state"})
    with pytest.raises(ConfigurationError, match="must be a local folder, a file: URI, s3"):
        StreamReader(elsewhere, struct_of(elsewhere))


def offset(*at: int) -> dict[str, object]:
    places = {TopicPartition("t", number): PartitionProgress(0, to) for number, to in enumerate(at)}
    return Offset(places, {"t": None}, "s").to_json()


@pytest.mark.parametrize(
    ("table", "tasks"),
    [
        (rows(), [(0, 40), (0, 20)]),
        (rows(**{"scan.parallelism": "4"}), [(0, 13), (13, 26), (26, 40), (0, 10), (10, 20)]),
        (rows(**{"scan.parallelism": "2"}), [(0, 40), (0, 20)]),
        (upserts(changelog="upsert"), [(0, 40), (0, 20)]),
        (changes(), [(0, 40), (0, 20)]),
    ],
)
def test_only_rows_that_are_merely_added_are_split(table: KafkaTable, tasks: list[tuple[int, int]]) -> None:
    """The changes of a key must stay in order, and a split partition would lose it."""
    reader = StreamReader(table, struct_of(table))
    found = reader.partitions(reader.initialOffset(), offset(40, 20))
    assert all(isinstance(task, RangePartition) for task in found)
    assert [(task.part.start, task.part.end) for task in found] == tasks
    assert reader.partitions(offset(40, 20), offset(40, 20)) == []


def test_tasks_of_a_topic_of_changes_cannot_be_chosen() -> None:
    for declare, of in ((upserts, "'scan.parallelism': unsupported"), (changes, "no effect for the format")):
        with pytest.raises(ConfigurationError, match=f"{of}.*one task reads each partition"):
            declare(**{"scan.parallelism": "4"})


def test_warnings_of_tasks_are_seen_where_nobody_has_set_up_logging() -> None:
    """A worker has no handlers; what the client library says itself stays silent there."""
    script = (
        "from upsert.kafka.client.connection import LOGGER; from upsert.kafka.source import LOG;"
        "LOGGER.warning('of the library'); LOG.warning('2 records could not be read')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == ["2 records could not be read"]


def test_the_client_library_is_loaded_by_the_first_query_only() -> None:
    script = (
        "import sys, upsert, upsert.kafka.source, upsert.kafka.frames;"
        "assert 'confluent_kafka' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
