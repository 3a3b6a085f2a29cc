"""The run through Kafka: Debezium records to an upsert topic, tables, their join, and a topic again."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console

from examples.flights.compare import compare
from examples.flights.kafka import view
from examples.flights.kafka.consumed import consume, look_at
from examples.flights.kafka.outcome import Outcome, expected_board, expected_join
from examples.flights.kafka.queries import QUERIES
from examples.flights.kafka.tables import (
    BOARD,
    BOARD_SCHEMA,
    BOARD_WITH_WEATHER,
    FLIGHTS_LOG,
    JOINED_SCHEMA,
    WEATHER_LOG,
    Topics,
)
from examples.flights.processes import Child
from examples.flights.progress import Progress
from examples.flights.queries import Query
from examples.flights.stage import Settings, Stage
from examples.flights.supervisor import Run
from examples.flights.tables_run import versions_in
from upsert import Catalog, Version
from upsert.kafka.client.admin import create_topic, delete_topic, latest_offsets, topics
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.records import TopicPartition
from upsert.kafka.planning import Offset
from upsert.testing import LocalKafka

_PARTITIONS: Final = {FLIGHTS_LOG: 2, WEATHER_LOG: 1}
_READ: Final = (FLIGHTS_LOG, WEATHER_LOG, BOARD)
"""Topics that a query reads."""


class KafkaRun(Run[Outcome]):
    """Flights and weather through topics.

    Args:
        settings: what the user chose.
        names: the broker and the names of this run's topics.
    """

    def __init__(self, settings: Settings, names: Topics) -> None:
        super().__init__("kafka", settings, QUERIES, frozenset({"board", "join"}), view.line, view.draw)
        self._names = names
        self._catalog = Catalog(settings.warehouse)
        self._connection = Connection({"bootstrap.servers": names.bootstrap_servers})

    def units(self) -> Mapping[str, str]:
        """The join reads tables."""
        return {"join": "commits"}

    def create(self) -> None:
        """Create the topics of the writer, and all tables."""
        for table, partitions in _PARTITIONS.items():
            create_topic(self._connection, self._names.name(table), partitions)
        for statement in self._names.statements():
            self._catalog.sql(statement)

    def start_writer(self, stage: Stage) -> Child:
        """The process that stands in for Debezium."""
        names, settings = self._names, self.settings
        arguments = (names.bootstrap_servers, names.run, settings.rows, settings.seconds)
        return stage.start("writer", "examples.flights.kafka.producer", *arguments)

    def look(self, progress: Progress) -> None:
        """Note what each query has read and has not."""
        ends = self._ends()
        for query in QUERIES:
            shown = progress.queries[query.name]
            shown.records, shown.behind = self._read_and_behind(query, ends)

    def have_caught_up(self) -> bool:
        """Whether all queries have read all there is, and none of them is in a micro-batch."""
        ends = self._ends()
        return not self.in_flight() and all(self._read_and_behind(query, ends)[1] == 0 for query in QUERIES)

    def compare(self, files: Mapping[str, Path]) -> Outcome:
        """What a consumer finds in both upsert topics."""
        rows, see = self.settings.rows, partial(consume, self._connection)
        board = look_at(see(self._names.name(BOARD)), BOARD_SCHEMA)
        joined = look_at(see(self._names.name(BOARD_WITH_WEATHER)), JOINED_SCHEMA)
        return Outcome(
            board,
            compare(expected_board(files, rows), board.rows),
            joined,
            compare(expected_join(files, rows), joined.rows),
        )

    def show_end(self, console: Console, progress: Progress, result: Outcome, *, is_kept: bool) -> bool:
        """Print figures, what a consumer finds, and where tables and topics are."""
        view.show_figures(console, progress, self.settings.warehouse, self.checkpoints)
        view.show_outcome(console, result)
        view.show_places(console, self.settings.warehouse, self._names, is_kept)
        return result.is_right

    def _ends(self) -> dict[TopicPartition, int]:
        """The end of each partition that a query reads; topics that are not there yet have none."""
        found = topics(self._connection, [self._names.name(table) for table in _READ])
        partitions = [
            TopicPartition(topic.name, n) for topic in found.values() for n in range(topic.partitions)
        ]
        return latest_offsets(self._connection, partitions)

    def _read_and_behind(self, query: Query, ends: Mapping[TopicPartition, int]) -> tuple[int, int]:
        """How many offsets of its topic, or commits of its tables, a query has read and has not.

        Of a join only what it has not read is told.
        """
        if len(query.sources) > 1:
            return 0, self._commits_behind(query)
        topic = self._names.name(query.sources[0])
        found = self.checkpoints[query.name].offset
        progress = Offset.from_json(found, query.name).partitions if found is not None else {}
        total = sum(end for partition, end in ends.items() if partition.topic == topic)
        read = sum(each.at for each in progress.values())
        return read, total - read

    def _commits_behind(self, query: Query) -> int:
        found = self.checkpoints[query.name].offset
        reached = {} if found is None else versions_in(found)
        return sum(self._behind(name, reached) for name in query.sources)

    def _behind(self, name: str, reached: Mapping[str, Version]) -> int:
        table = self._catalog.table(name)
        version = reached.get(table.uuid, Version.EMPTY)
        if table.advance(version) == version:
            return 0
        return max(1, table.snapshot().id - version.target)

    def remove_topics(self) -> None:
        """Leave none of our topics in a Kafka that goes on running."""
        for name in topics(self._connection, pattern=rf"{self._names.run}\..*"):
            delete_topic(self._connection, name)


@contextmanager
def kafka_run(console: Console, settings: Settings, *, is_kept: bool) -> Iterator[KafkaRun]:
    """A run with a broker of its own, or with that of ``$KAFKA_BOOTSTRAP_SERVERS``."""
    console.print("starting a Kafka broker; the first time its jars are fetched (43 MB)")
    with LocalKafka() as kafka:
        console.print(f"a broker at {kafka.bootstrap_servers}")
        run = KafkaRun(settings, Topics(kafka.bootstrap_servers, f"demo-{uuid.uuid4().hex[:6]}"))
        try:
            yield run
        finally:
            if not is_kept:
                run.remove_topics()
