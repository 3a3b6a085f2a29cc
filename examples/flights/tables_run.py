"""The run over tables: four of them change, and their join is kept up to date in a fifth."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from deltajoin.spark.offsets import JoinOffset
from examples.flights import tables, tables_view
from examples.flights.compare import Comparison, compare, expected_join
from examples.flights.messages import QueryBatch
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
        progress.joined = self._joined(progress, self.checkpoints[JOIN.name].offset)

    def have_caught_up(self) -> bool:
        """Whether the join's committed versions of all tables have nothing after them."""
        versions = self._versions(self.checkpoints[JOIN.name].offset)
        return all(table.advance(version) == version for table, version in versions)

    def _joined(self, progress: Progress, offset: dict[str, Any] | None) -> int:
        """Changes that are joined at an offset of the join."""
        flights, weather, *_ = (_snapshot(version) for _, version in self._versions(offset))
        return progress.changes_until(flights, weather)

    def _largest(self, progress: Progress) -> tuple[QueryBatch, int] | None:
        """The micro-batch with most changes, and how many, of those whose offsets Spark still keeps."""
        checkpoint, found = self.checkpoints[JOIN.name], list[tuple[QueryBatch, int]]()
        for number, batch in progress.queries[JOIN.name].batches.items():
            before, after = checkpoint.offset_of(number - 1), checkpoint.offset_of(number)
            if after is not None and (before is not None or not number):
                found.append((batch, self._joined(progress, after) - self._joined(progress, before)))
        return max(found, key=lambda one: one[1], default=None)

    def _versions(self, offset: dict[str, Any] | None) -> list[tuple[Table, Version]]:
        """The joined tables, and the versions of them that an offset says."""
        reached = {} if offset is None else versions_in(offset)
        joined = (self._catalog.table(name) for name in tables.SOURCES)
        return [(table, reached.get(table.uuid, Version.EMPTY)) for table in joined]

    def compare(self, files: Mapping[str, Path]) -> Comparison:
        """The joined table beside DuckDB's batch join."""
        found = self._catalog.table(tables.JOINED).snapshot().scan()
        return compare(expected_join(files, self.settings.rows), found)

    def show_end(self, console: Console, progress: Progress, result: Comparison, *, is_kept: bool) -> bool:
        """Print figures, the comparison and some rows."""
        progress.largest = self._largest(progress)
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
