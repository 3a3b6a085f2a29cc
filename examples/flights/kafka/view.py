"""What the user sees of the run through Kafka: each query's counters, what a consumer finds at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from rich.console import Console, RenderableType
from rich.table import Table

from examples.flights.checkpoint import Checkpoint, folder_size
from examples.flights.compare import Comparison
from examples.flights.kafka.consumed import Consumed
from examples.flights.kafka.outcome import Outcome
from examples.flights.kafka.tables import BOARD, BOARD_WITH_WEATHER, Topics
from examples.flights.progress import Progress, QueryProgress
from examples.flights.tables import FLIGHTS, WEATHER
from examples.flights.view import line_of, panel_of, size


def line(progress: Progress) -> str:
    """The counters in one line."""
    queries = (
        f"{query.name} {query.rows:,} out, {query.behind:,} behind" for query in progress.queries.values()
    )
    return line_of(progress, f"records {progress.total:,}  {'  '.join(queries)}")


def draw(progress: Progress) -> RenderableType:
    """The panel: a row for each query."""
    title = "[bold]Debezium → upsert topic → tables → delta join → upsert topic[/bold]"
    rate = f"{progress.total:,} records, {progress.rate_in.at(progress.elapsed):,.0f}/s"
    return panel_of(progress, title, _queries(progress.queries.values()), rate)


def _queries(queries: Iterable[QueryProgress]) -> RenderableType:
    grid = Table(box=None, padding=(0, 1), header_style="dim", expand=True)
    grid.add_column("query", style="bold", no_wrap=True)
    grid.add_column("from → to", style="dim", ratio=1, no_wrap=True)
    for heading in ("read", "changes out", "behind", "batches", "median"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for query in queries:
        grid.add_row(
            query.name,
            query.route,
            f"{query.records:,}" if query.records else "",
            f"{query.rows:,}",
            _lag(query),
            str(len(query.batches)),
            f"{query.median_seconds:.2f} s",
        )
    return grid


def _lag(query: QueryProgress) -> str:
    """What a query has not read: records, if nothing else is said."""
    unit = f" {query.unit}" if query.unit != "records" else ""
    return f"{query.behind:,}{unit}" if query.behind else "—"


def show_figures(
    console: Console, progress: Progress, warehouse: Path, checkpoints: Mapping[str, Checkpoint]
) -> None:
    """What went in, what each query did, and how much is kept."""
    console.print()
    console.print(
        f"{progress.changes:,} changes in {progress.total:,} Debezium records;"
        f" {progress.elapsed:.0f} s in all"
    )
    console.print(f"The driver was killed {progress.killed}.", soft_wrap=True)
    console.print()
    grid = Table(box=None, padding=(0, 1), header_style="dim")
    grid.add_column("query", style="bold")
    for heading in ("batches", "median", "changes out", "Spark's state", "checkpoint"):
        grid.add_column(heading, justify="right")
    for query in progress.queries.values():
        last = query.last_batch
        grid.add_row(
            query.name,
            str(len(query.batches)),
            f"{query.median_seconds:.2f} s",
            f"{query.rows:,}",
            size(last.state_bytes if last else 0),
            size(checkpoints[query.name].size),
        )
    console.print(grid)
    kept = ", ".join(f"{name} {size(folder_size(warehouse / name))}" for name in (FLIGHTS, WEATHER))
    normalizer = size(folder_size(warehouse / BOARD / "state"))
    console.print(
        f"managed tables: {kept}; state of the normalizer, which the planner left out: {normalizer}"
    )


def show_outcome(console: Console, outcome: Outcome) -> None:
    """What a consumer finds in both topics, beside DuckDB's answer."""
    console.print()
    console.print("What a consumer of each upsert topic finds, read committed:")
    grid = Table(box=None, padding=(0, 1), header_style="dim")
    grid.add_column("topic", style="bold")
    for heading in ("records", "tombstones", "keys", "rows", "of DuckDB", "repeats"):
        grid.add_column(heading, justify="right")
    for name, *cells in _topics(outcome):
        grid.add_row(name, *(f"{cell:,}" for cell in cells))
    console.print(grid)
    console.print()
    _verdict(console, "duplicates in exactly-once", outcome.repeats, "records that repeat the one before")
    _verdict(console, "keys in two partitions", outcome.strays, "keys go where Java sends them")
    for name, result in _comparisons(outcome):
        _verdict(console, f"difference of {name}", result.differences, "all columns, compared exactly")
        for example in result.examples:
            console.print(f"  {example}", markup=False)


def _topics(outcome: Outcome) -> Iterable[tuple[str, int, int, int, int, int, int]]:
    def row(name: str, seen: Consumed, result: Comparison) -> tuple[str, int, int, int, int, int, int]:
        return (name, seen.records, seen.tombstones, seen.keys, result.found, result.expected, seen.repeats)

    yield row(BOARD, outcome.board, outcome.board_comparison)
    yield row(BOARD_WITH_WEATHER, outcome.joined, outcome.joined_comparison)


def _comparisons(outcome: Outcome) -> Iterable[tuple[str, Comparison]]:
    yield BOARD, outcome.board_comparison
    yield BOARD_WITH_WEATHER, outcome.joined_comparison


def _verdict(console: Console, what: str, wrong: int, note: str) -> None:
    style = "bold red" if wrong else "bold green"
    console.print(f"[{style}]{what}: {wrong:,}[/{style}] ({note})", highlight=False)


def show_places(console: Console, warehouse: Path, topics: Topics, is_kept: bool) -> None:
    """Where the tables and topics are, or were."""
    console.print()
    if not is_kept:
        console.print(
            "Tables and topics are removed now; --warehouse FOLDER keeps the tables to look around in."
        )
        return
    console.print(f"tables in {warehouse}, checkpoints and logs in {warehouse / '.demo'}", soft_wrap=True)
    console.print(
        f"topics {topics.run}.* at {topics.bootstrap_servers}, for as long as that broker runs",
        soft_wrap=True,
    )
    console.print("Look around in Python:")
    console.print(
        f"  import upsert; catalog = upsert.Catalog({str(warehouse)!r})", markup=False, soft_wrap=True
    )
    scan = f'  catalog.table("{FLIGHTS}").snapshot().scan(where=[("dep_delay", ">", 600)]).to_pylist()'
    console.print(scan, markup=False, soft_wrap=True)
