"""What the user of the Kafka demo sees: each query's records in, changes out and lag, while they run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from examples.flights.kafka.progress import Phase, Progress, QueryProgress
from examples.flights.live import Lines, Panels, View

_STORY_LINES: Final = 9
_COLOUR: Final[dict[str, str]] = {Phase.RESTARTING: "red", Phase.DONE: "green"}


def view_for(console: Console) -> View[Progress]:
    """The view that suits the console."""
    return Panels(console, draw) if console.is_terminal else Lines(console, line)


def line(progress: Progress) -> str:
    """The counters in one line, or the phase while there is nothing to count."""
    if not any(query.batches for query in progress.queries.values()):
        return f"{progress.elapsed:6.1f} s  {progress.phase}"
    queries = "  ".join(f"{query.name} {_in_short(query)}" for query in progress.queries.values())
    date = f"{progress.date:%Y-%m-%d}" if progress.date else "----------"
    return (
        f"{progress.elapsed:6.1f} s  {date}  {progress.share:4.0%}  records {progress.records:,}"
        f"  {queries}  ({progress.phase})"
    )


def _in_short(query: QueryProgress) -> str:
    return f"{query.rows:,} out, {query.behind:,} behind"


def draw(progress: Progress) -> RenderableType:
    """The panel: how far, and a row for each query; below it the story so far."""
    colour = _COLOUR.get(progress.phase, "cyan")
    panel = Panel(
        Group(_headline(progress), Text(), _queries(progress.queries.values())),
        title="[bold]Debezium → upsert topic → tables → delta join → upsert topic[/bold]",
        subtitle=Text(progress.phase, style=f"bold {colour}"),
        border_style=colour,
        padding=(1, 2, 0, 2),
    )
    return Group(panel, *_story(progress))


def _headline(progress: Progress) -> RenderableType:
    date = f"{progress.date:%d %b %Y}" if progress.date else "…"
    row = Table.grid(expand=True, padding=(0, 2))
    row.add_column(width=12)
    row.add_column(ratio=1)
    row.add_column(justify="right")
    row.add_column(justify="right", width=6)
    bar = ProgressBar(total=1.0, completed=progress.share, complete_style="cyan", finished_style="green")
    rate = progress.rate.at(progress.elapsed)
    row.add_row(
        Text(date, style="bold"),
        bar,
        f"{progress.records:,} records, {rate:,.0f}/s",
        f"{progress.elapsed:.0f} s",
    )
    return row


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


def _story(progress: Progress) -> Iterable[RenderableType]:
    for when, text in progress.story[-_STORY_LINES:]:
        yield Text.assemble((f" {when:6.1f} s  ", "dim"), Text.from_markup(text))
