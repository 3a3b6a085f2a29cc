"""What the user sees of the run over tables: counters while it goes on, then the result."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pyarrow as pa
from rich.console import Console, RenderableType
from rich.table import Table

from examples.flights import tables
from examples.flights.compare import Comparison
from examples.flights.progress import Progress, QueryProgress
from examples.flights.queries import JOIN
from examples.flights.view import line_of, panel_of, size, sparkline

_BARS: Final = 30
_NAME: Final = 20
"""Characters of a name that are shown."""
_TITLE: Final = "flights ⋈ weather ⋈ airports ⟕ planes"


def line(progress: Progress) -> str:
    """The counters in one line."""
    join = progress.queries[JOIN.name]
    return line_of(
        progress,
        f"in {progress.changes:,}  joined {progress.joined:,}  out {join.rows:,}"
        f"  micro-batches {len(join.batches)} (median {join.median_seconds:.2f} s)"
        f"  state {_state_bytes(join)}  checkpoint {size(progress.checkpoint_bytes)}",
    )


def draw(progress: Progress) -> RenderableType:
    """The panel."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(justify="right", style="bold", min_width=11)
    grid.add_column(style="dim")
    for row in _rows(progress, progress.queries[JOIN.name]):
        grid.add_row(*row)
    return panel_of(progress, f"[bold]{_TITLE}[/bold] — kept up to date while they change", grid)


def _rows(progress: Progress, join: QueryProgress) -> Iterable[tuple[str, str, str]]:
    now, weather = progress.elapsed, progress.written.weather if progress.written else 0
    behind = progress.changes - progress.joined
    rate = f"{progress.rate_in.at(now):,.0f}/s, {weather:,} of them weather"
    yield "changes written", f"{progress.changes:,}", rate
    yield "of these joined", f"{progress.joined:,}", f"{behind:,} behind" if behind else "up to date"
    rate = f"{progress.rate_out.at(now):,.0f}/s, {join.deletes:,} taken back"
    yield "rows changed in the result", f"{join.rows:,}", rate
    last = join.last_batch
    times = f"last {last.seconds:.2f} s, median {join.median_seconds:.2f} s" if last else ""
    yield "micro-batches", str(len(join.batches)), times
    yield "", "", sparkline([batch.seconds for _, batch in sorted(join.batches.items())][-_BARS:])
    yield "Spark's join state", _state_bytes(join), f"{last.state_rows if last else 0:,} rows"
    yield "checkpoint", size(progress.checkpoint_bytes), "two version numbers a micro-batch"


def _state_bytes(join: QueryProgress) -> str:
    return size(join.last_batch.state_bytes if join.last_batch else 0)


def show_figures(console: Console, progress: Progress) -> None:
    """A table of what was done and how long it took."""
    grid = Table(
        title=_TITLE,
        title_style="bold",
        show_header=False,
        box=None,
        padding=(0, 2),
    )
    grid.add_column(style="dim")
    grid.add_column(justify="right")
    for name, value in _figures(progress):
        grid.add_row(name, value)
    console.print()
    console.print(grid)


def _figures(progress: Progress) -> Iterable[tuple[str, str]]:
    join = progress.queries[JOIN.name]
    busy = sum(batch.seconds for batch in join.batches.values())
    yield "changes of flights and weather", f"{progress.changes:,}"
    yield "rows changed in the joined table", f"{join.rows:,}"
    yield "of these taken back (-U, -D)", f"{join.deletes:,}"
    yield "micro-batches", f"{len(join.batches):,}"
    yield "median time of a micro-batch", f"{join.median_seconds:.2f} s"
    yield "changes joined a second of work", f"{progress.changes / max(busy, 1e-9):,.0f}"
    if progress.largest is not None:
        batch, changes = progress.largest
        yield "largest micro-batch", f"{changes:,} changes in {batch.seconds:.2f} s"
        yield "changes joined a second in it", f"{changes / max(batch.seconds, 1e-9):,.0f}"
    yield "Spark's join state at the end", _state_bytes(join)
    yield "checkpoint at the end", size(progress.checkpoint_bytes)
    yield "whole run", f"{progress.elapsed:.0f} s"


def show_comparison(console: Console, result: Comparison) -> None:
    """The counts of both results and their difference, which must be empty."""
    console.print()
    console.print(f"the joined table:                         {result.found:>9,} rows")
    console.print(f"DuckDB's batch join of the source files:  {result.expected:>9,} rows")
    style = "bold red" if result.differences else "bold green"
    console.print(
        f"[{style}]difference: {result.differences:,} rows[/{style}] (all columns, compared exactly)"
    )
    for example in result.examples:
        console.print(f"  {example}", markup=False)


def _delays(rows: pa.Table) -> Table:
    """Rows of the result, in 80 columns."""
    grid = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    for name in ("day", "flight", "from", "to", "plane", "late", "°C", "wind"):
        is_number = name in ("late", "°C", "wind")
        width = _NAME if name in ("to", "plane") else None
        grid.add_column(name, no_wrap=True, max_width=width, justify="right" if is_number else "left")
    for row in rows.to_pylist():
        grid.add_row(
            str(row["day"]),
            f"{row['carrier']} {row['flight']}",
            row["origin"],
            row["dest_name"],
            row["model"] or "?",
            f"{row['dep_delay']:,} min",
            "?" if row["celsius"] is None else f"{row['celsius']:.1f}",
            "?" if row["wind_speed"] is None else f"{row['wind_speed']:.1f} mph",
        )
    return grid


def show_next(console: Console, warehouse: Path, is_kept: bool, joined: pa.Table) -> None:
    """A few rows of the result, and how to see more."""
    console.print()
    console.print("The longest delays, and the weather they began in:")
    console.print(_delays(joined.sort_by([("dep_delay", "descending")]).slice(0, 3)))
    console.print()
    if is_kept:
        console.print("Look around in Python:")
        console.print(
            f"  import upsert; catalog = upsert.Catalog({str(warehouse)!r})", markup=False, soft_wrap=True
        )
        scan = (
            f'  catalog.table("{tables.JOINED}").snapshot().scan(where=[("dep_delay", ">", 600)]).to_pylist()'
        )
        console.print(scan, markup=False, soft_wrap=True)
    else:
        console.print("The tables are removed now; --warehouse FOLDER keeps them to look around in.")
