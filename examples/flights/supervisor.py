"""The run from beginning to end: starts the processes, kills the driver half-way, waits, compares.

It never asks Spark anything: how far a query is stands in its checkpoint, in the tables and in Kafka, where
anybody could read it from outside.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Generic, TypeVar

from rich.console import Console, RenderableType
from rich.markup import escape

from examples.flights import source
from examples.flights.checkpoint import Checkpoint
from examples.flights.processes import Child, remove
from examples.flights.progress import Phase, Progress, QueryProgress
from examples.flights.queries import Query
from examples.flights.stage import Settings, Stage
from examples.flights.view import View

_CRASH_AT: Final = 0.5
_PATIENCE_S: Final = 5.0
_QUIET_S: Final = 0.5

R = TypeVar("R")


class Run(ABC, Generic[R]):
    """What a run does with or without Kafka: its queries, its writer, and how its result is checked.

    Args:
        name: under which the driver knows its queries.
        settings: what the user chose.
        queries: the queries of the driver.
        killed_in: queries that should be in a micro-batch when the driver is killed.
        line: the counters in one line.
        draw: the counters as a panel.
    """

    def __init__(
        self,
        name: str,
        settings: Settings,
        queries: Sequence[Query],
        killed_in: frozenset[str],
        line: Callable[[Progress], str],
        draw: Callable[[Progress], RenderableType],
    ) -> None:
        self.name, self.settings, self.queries, self.killed_in = name, settings, queries, killed_in
        self.line, self.draw = line, draw
        self.folder = settings.work / "checkpoints"
        self.checkpoints = {query.name: Checkpoint(self.folder / query.name) for query in queries}

    def in_flight(self) -> dict[str, int]:
        """The micro-batches that have begun and are not complete, by query."""
        return {
            name: planned
            for name, checkpoint in self.checkpoints.items()
            if checkpoint.is_in_flight and (planned := checkpoint.planned) is not None
        }

    def units(self) -> Mapping[str, str]:
        """What the lag of a query is counted in, where that is not records."""
        return {}

    @abstractmethod
    def create(self) -> None:
        """Create tables and topics."""

    @abstractmethod
    def start_writer(self, stage: Stage) -> Child:
        """Start the process that writes the changes of 2013."""

    @abstractmethod
    def look(self, progress: Progress) -> None:
        """Note how far the queries are; called twice a second."""

    @abstractmethod
    def have_caught_up(self) -> bool:
        """Whether all queries have read all there is."""

    @abstractmethod
    def compare(self, files: Mapping[str, Path]) -> R:
        """The result beside what DuckDB makes of the source files."""

    @abstractmethod
    def show_end(self, console: Console, progress: Progress, result: R, *, is_kept: bool) -> bool:
        """Print figures and result; whether it is right."""


class Supervisor(Generic[R]):
    """Does a run once, showing `progress` in a view all the while."""

    def __init__(self, run: Run[R], view: View) -> None:
        units = run.units()
        self.progress = Progress.of(
            QueryProgress(
                query.name, f"{' ⋈ '.join(query.sources)} → {query.sink}", units.get(query.name, "records")
            )
            for query in run.queries
        )
        self._run = run
        self._view = view
        self._drivers = 0
        self._half_way: float | None = None
        self._quiet_since: float | None = None
        self._killed_in: dict[str, int] = {}
        self._stage = Stage(run.settings, self.progress, view, lambda: run.look(self.progress))

    def run(self) -> R:
        """Write, crash, restart, catch up and compare.

        Raises:
            ProcessFailedError: a child process failed; the others have been ended.
        """
        self._run.create()
        wait, tell, queries = self._stage.wait, self.progress.tell, self.progress.queries.values()
        with self._view, ExitStack() as ends:
            ends.callback(remove, self._run.settings.scratch)
            writer = ends.enter_context(self._run.start_writer(self._stage))
            driver = ends.enter_context(self._start_driver())
            tell(f"started a writer (process {writer.pid}) and a Spark driver ({driver.pid})")
            wait(Phase.STARTING, lambda: all(query.starts == self._drivers for query in queries))
            for query in queries:
                tell(escape(f"{query.name}: {query.plan}"))
            wait(Phase.FIRST_BATCH, lambda: all(query.batches for query in queries))
            tell("the first micro-batches are done; 2013 begins")
            writer.tell("go")
            wait(Phase.RUNNING, self._is_time_to_crash)
            self._crash(driver)
            driver = ends.enter_context(self._start_driver())
            wait(Phase.RESTARTING, lambda: any(query.starts == self._drivers for query in queries))
            tell(f"[green]a new driver runs[/green] and {self._where_it_begins()}")
            wait(Phase.RUNNING, writer.has_ended)
            tell("2013 is over: all changes are written")
            wait(Phase.CATCHING_UP, self._have_caught_up)
            driver.finish()
            wait(Phase.CATCHING_UP, driver.has_ended)
            tell("the queries have caught up with all that was written")
            return self._compare()

    def _start_driver(self) -> Child:
        self._drivers += 1
        module, run = "examples.flights.driver", self._run
        return self._stage.start(f"driver-{self._drivers}", module, run.name, run.folder)

    def _crash(self, driver: Child) -> None:
        self._stage.kill(driver)
        self._killed_in = self._run.in_flight()
        batches = ", ".join(f"{number} of {name}" for name, number in self._killed_in.items())
        where = f"in micro-batch {batches}" if batches else "between two micro-batches"
        self.progress.killed = f"after {self.progress.elapsed:.0f} s, {where}"
        self.progress.tell(f"[bold red]kill -9 {driver.pid}[/bold red]: the driver and its JVM die {where}")

    def _where_it_begins(self) -> str:
        if not self._killed_in:
            return "goes on, from what the checkpoints say"
        return f"does the micro-batch of {', '.join(self._killed_in)} again, from what the checkpoints say"

    def _is_time_to_crash(self) -> bool:
        """Half-way, and while micro-batches are running: the nastiest moment; any moment if none comes."""
        if self.progress.share < _CRASH_AT:
            return False
        self._half_way = self._half_way or self.progress.elapsed
        is_late = self.progress.elapsed > self._half_way + _PATIENCE_S
        return is_late or self._run.in_flight().keys() >= self._run.killed_in

    def _have_caught_up(self) -> bool:
        """Whether nothing is left to do, and has not been for a moment: a query may have just seen it."""
        if not self._run.have_caught_up():
            self._quiet_since = None
            return False
        self._quiet_since = self._quiet_since or self.progress.elapsed
        return self.progress.elapsed > self._quiet_since + _QUIET_S

    def _compare(self) -> R:
        self.progress.phase = Phase.COMPARING
        self._stage.update()
        result = self._run.compare(source.extract_files(self._run.settings.scratch))
        self.progress.phase = Phase.DONE
        self._stage.update()
        return result
