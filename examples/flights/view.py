"""What the user sees: a live panel in a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from examples.flights.live import Lines, Panels, View
from examples.flights.progress import Phase, Progress

_STORY_LINES = 8
_BARS = 30
_SPARK = "▁▂▃▄▅▆▇█"
_COLOUR: dict[str, str] = {Phase.RESTARTING: "red", Phase.DONE: "green"}


def view_for(console: Console) -> View[Progress]:
    """The view that suits the console."""
    return Panels(console, draw) if console.is_terminal else Lines(console, line)


def line(progress: Progress) -> str:
    """The counters in one line, or the phase while there is nothing to count."""
    if not progress.batches:
        return f"{progress.elapsed:6.1f} s  {progress.phase}"
    date = f"{progress.date:%Y-%m-%d}" if progress.date else "----------"
    return (
        f"{progress.elapsed:6.1f} s  {date}  {progress.share:4.0%}  in {progress.written:,}"
        f"  joined {progress.joined:,}  out {progress.rows_out:,}  micro-batches {len(progress.batches)}"
        f" (median {progress.median_seconds:.2f} s)  state {_state_bytes(progress)}"
        f"  checkpoint {size(progress.checkpoint_bytes)}  ({progress.phase})"
    )


def draw(progress: Progress) -> RenderableType:
    """The panel: how far, how much, how fast; below it the story so far."""
    colour = _COLOUR.get(progress.phase, "cyan")
    panel = Panel(
        Group(_headline(progress), Text(), _counters(progress)),
        title="[bold]flights ⋈ weather ⋈ airports ⟕ planes[/bold] — kept up to date while they change",
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
    row.add_column(justify="right", width=6)
    bar = ProgressBar(total=1.0, completed=progress.share, complete_style="cyan", finished_style="green")
    row.add_row(Text(date, style="bold"), bar, f"{progress.elapsed:.0f} s")
    return row


def _counters(progress: Progress) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(justify="right", style="bold", min_width=11)
    grid.add_column(style="dim")
    for row in _rows(progress):
        grid.add_row(*row)
    return grid


def _rows(progress: Progress) -> Iterable[tuple[str, str, str]]:
    now, weather = progress.elapsed, progress.wrote.weather if progress.wrote else 0
    behind = progress.written - progress.joined
    yield (
        "changes written",
        f"{progress.written:,}",
        f"{progress.rate_in.at(now):,.0f}/s, {weather:,} of them weather",
    )
    yield "of these joined", f"{progress.joined:,}", f"{behind:,} behind" if behind else "up to date"
    yield (
        "rows changed in the result",
        f"{progress.rows_out:,}",
        f"{progress.rate_out.at(now):,.0f}/s, {progress.retracted:,} taken back",
    )
    last = progress.last_batch
    times = f"last {last.seconds:.2f} s, median {progress.median_seconds:.2f} s" if last else ""
    yield "micro-batches", str(len(progress.batches)), times
    yield "", "", sparkline([batch.seconds for _, batch in sorted(progress.batches.items())][-_BARS:])
    yield "Spark's join state", _state_bytes(progress), f"{last.state_rows if last else 0:,} rows"
    yield "checkpoint", size(progress.checkpoint_bytes), "two version numbers a micro-batch"


def _state_bytes(progress: Progress) -> str:
    return size(progress.last_batch.state_bytes if progress.last_batch else 0)


def _story(progress: Progress) -> Iterable[RenderableType]:
    for when, text in progress.story[-_STORY_LINES:]:
        yield Text.assemble((f" {when:6.1f} s  ", "dim"), Text.from_markup(text))


def sparkline(values: list[float]) -> str:
    """Bars of the values, the highest full.

    >>> sparkline([1.0, 2.0, 4.0])
    '▂▄█'
    """
    top = max(values, default=0.0)
    return "".join(_SPARK[max(0, round(value / top * len(_SPARK)) - 1)] for value in values) if top else ""


def size(bytes_: int) -> str:
    """A number of bytes as people write it.

    >>> size(0), size(2048), size(3_000_000)
    ('0 B', '2 kB', '3.0 MB')
    """
    if bytes_ < 1000:
        return f"{bytes_} B"
    return f"{bytes_ / 1000:.0f} kB" if bytes_ < 1_000_000 else f"{bytes_ / 1_000_000:.1f} MB"
