"""The run from beginning to end: starts the processes, kills the driver half-way, waits, consumes, compares.

It never asks Spark anything: how far a query is stands in its checkpoint, in Kafka and in the tables.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

from rich.markup import escape

from examples.flights import source
from examples.flights.compare import Comparison, compare
from examples.flights.kafka.consumed import Consumed, consume, look_at
from examples.flights.kafka.expected import expected_board, expected_join
from examples.flights.kafka.progress import Phase, Progress, QueryProgress
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
from examples.flights.kafka.watch import Watch
from examples.flights.live import View
from examples.flights.processes import Child, remove
from examples.flights.stage import Settings, Stage
from upsert import Catalog
from upsert.kafka.client.admin import create_topic
from upsert.kafka.client.connection import Connection

_CRASH_AT: Final = 0.5
_PATIENCE_S: Final = 5.0
_QUIET_S: Final = 0.5
_PARTITIONS: Final = {FLIGHTS_LOG: 2, WEATHER_LOG: 1}


@dataclass(frozen=True)
class Outcome:
    """What a consumer finds in both upsert topics, and how it differs from what DuckDB computes.

    Attributes:
        board: the topic of the board.
        board_comparison: its newest values beside DuckDB's.
        joined: the topic of the join.
        joined_comparison: its newest values beside DuckDB's.
    """

    board: Consumed
    board_comparison: Comparison
    joined: Consumed
    joined_comparison: Comparison

    @property
    def repeats(self) -> int:
        """Records that were written twice."""
        return self.board.repeats + self.joined.repeats

    @property
    def strays(self) -> int:
        """Keys whose records are in more than one partition."""
        return self.board.strays + self.joined.strays

    @property
    def is_right(self) -> bool:
        """Whether nothing is missing, wrong or there twice."""
        differences = self.board_comparison.differences + self.joined_comparison.differences
        return differences == self.repeats == self.strays == 0


class Supervisor:
    """Runs the demo once, showing `progress` in a view all the while.

    Args:
        settings: what the user chose.
        topics: the broker and the names of this run's topics.
        view: shows the progress.
    """

    def __init__(self, settings: Settings, topics: Topics, view: View[Progress]) -> None:
        routes = ((query.name, f"{' ⋈ '.join(query.sources)} → {query.sink}") for query in QUERIES)
        self.progress = Progress.of(QueryProgress(*route) for route in routes)
        self.progress.queries["join"].unit = "commits"
        self._settings = settings
        self._topics = topics
        self._view = view
        self._drivers = 0
        self._half_way: float | None = None
        self._quiet_since: float | None = None
        self._killed_in: dict[str, int] = {}
        self._catalog = Catalog(settings.warehouse)
        self.watch = Watch(topics, self._catalog, settings.work / "checkpoints")
        self._connection = Connection({"bootstrap.servers": topics.bootstrap_servers})
        self._stage = Stage(settings, self.progress, view, self._look)

    def run(self) -> Outcome:
        """Produce, crash, restart, catch up and compare.

        Raises:
            ProcessFailedError: a child process failed; the others have been ended.
        """
        for table, partitions in _PARTITIONS.items():
            create_topic(self._connection, self._topics.name(table), partitions)
        for statement in self._topics.statements():
            self._catalog.sql(statement)
        wait, tell = self._stage.wait, self.progress.tell
        with self._view, ExitStack() as ends:
            ends.callback(remove, self._settings.scratch)
            producer = ends.enter_context(self._start_producer())
            driver = ends.enter_context(self._start_driver())
            tell(
                f"a broker at {self._topics.bootstrap_servers}; producer {producer.pid}, driver {driver.pid}"
            )
            wait(Phase.STARTING, self._all_queries_run)
            for query in self.progress.queries.values():
                tell(escape(f"{query.name}: {query.plan}"))
            wait(Phase.FIRST_BATCH, self._all_have_written)
            tell("every query has written something; 2013 begins")
            producer.tell("go")
            wait(Phase.PRODUCING, self._is_time_to_crash)
            self._crash(driver)
            driver = ends.enter_context(self._start_driver())
            wait(Phase.RESTARTING, self._a_query_runs)
            tell(f"[green]a new driver runs[/green] and {self._where_it_begins()}")
            wait(Phase.PRODUCING, producer.has_ended)
            tell("2013 is over: all records are produced")
            wait(Phase.CATCHING_UP, self._have_caught_up)
            driver.finish()
            wait(Phase.CATCHING_UP, driver.has_ended)
            tell("all queries have caught up")
            return self._compare()

    def _start_producer(self) -> Child:
        settings, topics = self._settings, self._topics
        place = (topics.bootstrap_servers, topics.run)
        return self._stage.start(
            "producer", "examples.flights.kafka.producer", *place, settings.rows, settings.seconds
        )

    def _start_driver(self) -> Child:
        self._drivers += 1
        checkpoints = self._settings.work / "checkpoints"
        return self._stage.start(f"driver-{self._drivers}", "examples.flights.kafka.driver", checkpoints)

    def _crash(self, driver: Child) -> None:
        self._stage.kill(driver)
        self._killed_in = self.watch.in_flight()
        batches = ", ".join(f"{number} of {name}" for name, number in self._killed_in.items())
        where = f"in micro-batches {batches}" if batches else "between two micro-batches"
        self.progress.killed = f"after {self.progress.elapsed:.0f} s, {where}"
        self.progress.tell(f"[bold red]kill -9 {driver.pid}[/bold red]: the driver and its JVM die {where}")

    def _where_it_begins(self) -> str:
        if not self._killed_in:
            return "goes on"
        return f"does the micro-batches of {', '.join(self._killed_in)} again, from what the checkpoints say"

    def _look(self) -> None:
        ends = self.watch.ends()
        for query in QUERIES:
            shown = self.progress.queries[query.name]
            shown.records, shown.behind = self.watch.read_and_behind(query, ends)

    def _all_queries_run(self) -> bool:
        return all(query.starts == self._drivers for query in self.progress.queries.values())

    def _a_query_runs(self) -> bool:
        return any(query.starts == self._drivers for query in self.progress.queries.values())

    def _all_have_written(self) -> bool:
        return all(query.batches for query in self.progress.queries.values())

    def _is_time_to_crash(self) -> bool:
        """Half-way, and while both writers to Kafka are in a micro-batch; any moment if none comes."""
        if self.progress.share < _CRASH_AT:
            return False
        self._half_way = self._half_way or self.progress.elapsed
        is_late = self.progress.elapsed > self._half_way + _PATIENCE_S
        return is_late or self.watch.in_flight().keys() >= {"board", "join"}

    def _have_caught_up(self) -> bool:
        """Whether nothing is left to do, and has not been for a moment: a query may have just seen it."""
        if not self.watch.have_caught_up():
            self._quiet_since = None
            return False
        self._quiet_since = self._quiet_since or self.progress.elapsed
        return self.progress.elapsed > self._quiet_since + _QUIET_S

    def _compare(self) -> Outcome:
        self.progress.phase = Phase.COMPARING
        self._stage.update()
        files = source.extract_files(self._settings.scratch)
        rows = self._settings.rows
        see = partial(consume, self._connection)
        board = look_at(see(self._topics.name(BOARD)), BOARD_SCHEMA)
        joined = look_at(see(self._topics.name(BOARD_WITH_WEATHER)), JOINED_SCHEMA)
        outcome = Outcome(
            board,
            compare(expected_board(files, rows), board.rows),
            joined,
            compare(expected_join(files, rows), joined.rows),
        )
        self.progress.phase = Phase.DONE
        self._stage.update()
        return outcome
