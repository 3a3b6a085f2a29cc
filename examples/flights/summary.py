"""The end of the demo: what was done, whether the result is right, and what to look at next."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from examples.flights import tables
from examples.flights.compare import Comparison
from examples.flights.progress import Progress
from examples.flights.view import size


def show_figures(console: Console, progress: Progress) -> None:
    """A table of what was done and how long it took."""
    grid = Table(
        title="flights ⋈ weather ⋈ airports ⟕ planes",
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
    busy = sum(batch.seconds for batch in progress.batches.values())
    last = progress.last_batch
    yield "changes of flights and weather", f"{progress.written:,}"
    yield "rows changed in the joined table", f"{progress.rows_out:,}"
    yield "of these taken back (-U, -D)", f"{progress.retracted:,}"
    yield "micro-batches", f"{len(progress.batches):,}"
    yield "median time of a micro-batch", f"{progress.median_seconds:.2f} s"
    yield "changes joined a second of work", f"{progress.written / max(busy, 1e-9):,.0f}"
    yield "Spark's join state at the end", size(last.state_bytes if last else 0)
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


def show_next(console: Console, warehouse: Path, is_kept: bool, joined: pa.Table) -> None:
    """A few rows of the result, and how to see more."""
    console.print()
    console.print("The longest delays, and the weather they began in:")
    grid = Table(box=None, padding=(0, 1), header_style="dim")
    for heading in ("day", "flight", "from", "to", "plane", "minutes late", "°C", "wind mph"):
        is_text = heading in ("day", "flight", "from", "to", "plane")
        grid.add_column(heading, no_wrap=True, justify="left" if is_text else "right")
    for row in joined.sort_by([("dep_delay", "descending")]).slice(0, 3).to_pylist():
        grid.add_row(
            str(row["day"]),
            f"{row['carrier']} {row['flight']}",
            row["origin"],
            row["dest_name"],
            row["model"] or "?",
            str(row["dep_delay"]),
            *("?" if value is None else f"{value:.1f}" for value in (row["celsius"], row["wind_speed"])),
        )
    console.print(grid)
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
