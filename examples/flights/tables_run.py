"""The run over tables: four of them change, and their join is kept up to date in a fifth."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from deltajoin.spark.offsets import JoinOffset
from examples.flights import tables, tables_view
from examples.flights.compare import Comparison, compare, expected_join
from examples.flights.processes import Child
from examples.flights.progress import Progress
from examples.flights.queries import JOIN
from examples.flights.stage import Settings, Stage
from examples.flights.supervisor import Run
from upsert import Catalog, Table, Version


class TablesRun(Run[Comparison]):
    """Flights, weather, planes and airports, joined into a table."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(
            "tables", settings, (JOIN,), frozenset({JOIN.name}), tables_view.line, tables_view.draw
        )
        self._catalog = Catalog(settings.warehouse)

    def create(self) -> None:
        """Create the five tables."""
        for statement in tables.statements():
            self._catalog.sql(statement)

    def start_writer(self, stage: Stage) -> Child:
        """The process that writes into the tables."""
        return stage.start("writer", "examples.flights.replayer", self.settings.rows, self.settings.seconds)

    def look(self, progress: Progress) -> None:
        """Note the size of the checkpoint, and the changes that have been joined."""
        progress.checkpoint_bytes = self.checkpoints[JOIN.name].size
        flights, weather, *_ = (_snapshot(version) for _, version in self._joined_versions())
        progress.joined_up_to(flights, weather)

    def have_caught_up(self) -> bool:
        """Whether the join's committed versions of all tables have nothing after them."""
        return all(table.advance(version) == version for table, version in self._joined_versions())

    def _joined_versions(self) -> list[tuple[Table, Version]]:
        """The joined tables, and the versions of them that the newest complete micro-batch has reached."""
        found = self.checkpoints[JOIN.name].offset
        reached = {} if found is None else versions_in(found)
        joined = (self._catalog.table(name) for name in tables.SOURCES)
        return [(table, reached.get(table.uuid, Version.EMPTY)) for table in joined]

    def compare(self, files: Mapping[str, Path]) -> Comparison:
        """The joined table beside DuckDB's batch join."""
        found = self._catalog.table(tables.JOINED).snapshot().scan()
        return compare(expected_join(files, self.settings.rows), found)

    def show_end(self, console: Console, progress: Progress, result: Comparison, *, is_kept: bool) -> bool:
        """Print figures, the comparison and some rows."""
        tables_view.show_figures(console, progress)
        tables_view.show_comparison(console, result)
        joined = self._catalog.table(tables.JOINED).snapshot().scan()
        tables_view.show_next(console, self.settings.warehouse, is_kept, joined)
        return result.differences == 0


def versions_in(offset: dict[str, object]) -> dict[str, Version]:
    """The versions of the tables of a delta join in its offset, by the tables' uuids."""
    parsed = JoinOffset.from_json(offset)
    return dict(zip(parsed.identity.tables, parsed.versions, strict=True))


def _snapshot(version: Version) -> int:
    """The snapshot that a query has wholly taken in at a version."""
    return version.target if version.cursor is None else version.base
