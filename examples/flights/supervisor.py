"""The run from beginning to end: starts the processes, kills the driver half-way, waits, compares.

It never asks Spark anything. That the join has caught up is read from the query's checkpoint and from the
tables, as anybody could from outside.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final

from rich.markup import escape

from deltajoin.spark.offsets import JoinOffset
from examples.flights import source, tables
from examples.flights.checkpoint import Checkpoint
from examples.flights.compare import Comparison, compare, expected_join
from examples.flights.live import View
from examples.flights.processes import Child, remove
from examples.flights.progress import Phase, Progress
from examples.flights.stage import Settings, Stage
from upsert import Catalog, Table, Version

_CRASH_AT: Final = 0.5
_PATIENCE_S: Final = 5.0


class Supervisor:
    """Runs the demo once, showing `progress` in a view all the while."""

    def __init__(self, settings: Settings, view: View[Progress]) -> None:
        self.progress = Progress()
        self._settings = settings
        self._view = view
        self._stage = Stage(settings, self.progress, view, self._look_at_files)
        self._drivers = 0
        self._half_way: float | None = None
        self._unfinished: int | None = None
        self._checkpoint = Checkpoint(settings.work / "checkpoint")
        self._catalog = Catalog(settings.warehouse)

    def run(self) -> Comparison:
        """Replay, crash, restart, catch up and compare.

        Raises:
            ProcessFailedError: a child process failed; the others have been ended.
        """
        for statement in tables.statements():
            self._catalog.sql(statement)
        wait = self._stage.wait
        with self._view, ExitStack() as ends:
            ends.callback(remove, self._settings.scratch)
            replayer = ends.enter_context(self._start_replayer())
            driver = ends.enter_context(self._start_driver())
            self.progress.tell(f"started a writer (process {replayer.pid}) and a Spark driver ({driver.pid})")
            wait(Phase.STARTING, self._driver_runs)
            self.progress.tell(escape(self.progress.query))
            wait(Phase.FIRST_BATCH, lambda: self.progress.last_batch is not None)
            self.progress.tell("the first micro-batch is done; 2013 begins")
            replayer.tell("go")
            wait(Phase.REPLAYING, self._is_time_to_crash)
            self._crash(driver)
            driver = ends.enter_context(self._start_driver())
            wait(Phase.RESTARTING, self._driver_runs)
            self.progress.tell(self._where_the_new_driver_begins())
            wait(Phase.REPLAYING, replayer.has_ended)
            self.progress.tell("2013 is over: all changes are written")
            wait(Phase.CATCHING_UP, self._has_caught_up)
            driver.finish()
            wait(Phase.CATCHING_UP, driver.has_ended)
            self.progress.tell("the join has caught up with the last version of all tables")
            return self._compare()

    def _start_replayer(self) -> Child:
        settings = self._settings
        return self._stage.start("replayer", "examples.flights.replayer", settings.rows, settings.seconds)

    def _start_driver(self) -> Child:
        self._drivers += 1
        return self._stage.start(f"driver-{self._drivers}", "examples.flights.driver", self._checkpoint.path)

    def _crash(self, driver: Child) -> None:
        self._stage.kill(driver)
        self._unfinished = self._checkpoint.planned if self._checkpoint.is_in_flight else None
        where = (
            "between two micro-batches" if self._unfinished is None else f"in micro-batch {self._unfinished}"
        )
        self.progress.tell(f"[bold red]kill -9 {driver.pid}[/bold red]: the driver and its JVM die {where}")

    def _where_the_new_driver_begins(self) -> str:
        place = "goes on" if self._unfinished is None else f"does micro-batch {self._unfinished} again"
        return f"[green]a new driver runs[/green] and {place}, from what the checkpoint says"

    def _look_at_files(self) -> None:
        self.progress.checkpoint_bytes = self._checkpoint.size
        flights, weather, *_ = (_snapshot(version) for _, version in self._joined_versions())
        self.progress.joined_up_to(flights, weather)

    def _driver_runs(self) -> bool:
        return self.progress.starts == self._drivers

    def _is_time_to_crash(self) -> bool:
        """Half-way, and while a micro-batch is running: the nastiest moment; any moment if none comes."""
        if self.progress.share < _CRASH_AT:
            return False
        self._half_way = self._half_way or self.progress.elapsed
        return self._checkpoint.is_in_flight or self.progress.elapsed > self._half_way + _PATIENCE_S

    def _has_caught_up(self) -> bool:
        """Whether the query's committed versions of all tables have nothing after them."""
        return all(table.advance(version) == version for table, version in self._joined_versions())

    def _joined_versions(self) -> list[tuple[Table, Version]]:
        """The joined tables, and the versions of them that the newest complete micro-batch has reached."""
        joined = (self._catalog.table(name) for name in tables.SOURCES)
        found = self._checkpoint.offset
        reached: dict[str, Version] = {}
        if found is not None:
            offset = JoinOffset.from_json(found)
            reached = dict(zip(offset.identity.tables, offset.versions, strict=True))
        return [(table, reached.get(table.uuid, Version.EMPTY)) for table in joined]

    def _compare(self) -> Comparison:
        self.progress.phase = Phase.COMPARING
        self._stage.update()
        files = source.extract_files(self._settings.scratch)
        expected = expected_join(files, self._settings.rows)
        result = compare(expected, self._catalog.table(tables.JOINED).snapshot().scan())
        self.progress.phase = Phase.DONE
        self._stage.update()
        return result


def _snapshot(version: Version) -> int:
    """The snapshot that a query has wholly taken in at a version."""
    return version.target if version.cursor is None else version.base
