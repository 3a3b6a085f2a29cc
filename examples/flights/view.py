"""How a run is shown: a live panel in a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from examples.flights.progress import Phase, Progress

LINE_EVERY_S: Final = 5.0
_STORY_LINES: Final = 9
_COLOUR: Final[dict[str, str]] = {Phase.RESTARTING: "red", Phase.DONE: "green"}
_SPARK: Final = "▁▂▃▄▅▆▇█"


class View(Protocol):
    """Shows a run while it goes on; used in a `with` block."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def show(self, run: Progress, /) -> None:
        """Bring what is shown up to date."""


def view_for(
    console: Console, draw: Callable[[Progress], RenderableType], line: Callable[[Progress], str]
) -> View:
    """The view that suits the console."""
    return Panels(console, draw) if console.is_terminal else Lines(console, line)


class Panels:
    """A panel that is drawn again and again; the last one stays on the screen."""

    def __init__(self, console: Console, draw: Callable[[Progress], RenderableType]) -> None:
        self._live = Live(console=console, refresh_per_second=8, transient=False)
        self._draw = draw

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, run: Progress, /) -> None:
        """Draw the panel."""
        self._live.update(self._draw(run))


class Lines:
    """One line every few seconds, and each line of the story as it comes."""

    def __init__(self, console: Console, line: Callable[[Progress], str]) -> None:
        self._console = console
        self._line = line
        self._shown = 0
        self._due = LINE_EVERY_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def show(self, run: Progress, /) -> None:
        """Print what is new or due."""
        for when, text in run.story[self._shown :]:
            self._console.print(f"{when:6.1f} s  {text}", highlight=False, soft_wrap=True)
        self._shown = len(run.story)
        if run.elapsed >= self._due:
            self._due = run.elapsed + LINE_EVERY_S
            self._console.print(self._line(run), highlight=False, soft_wrap=True)


def line_of(progress: Progress, counters: str) -> str:
    """Time, date and counters in one line, or the phase while there is nothing to count."""
    if not any(query.batches for query in progress.queries.values()):
        return f"{progress.elapsed:6.1f} s  {progress.phase}"
    date = f"{progress.date:%Y-%m-%d}" if progress.date else "----------"
    return f"{progress.elapsed:6.1f} s  {date}  {progress.share:4.0%}  {counters}  ({progress.phase})"


def panel_of(progress: Progress, title: str, counters: RenderableType, *notes: str) -> RenderableType:
    """The panel: how far, how much, how fast; below it the story so far."""
    colour = _COLOUR.get(progress.phase, "cyan")
    panel = Panel(
        Group(_headline(progress, notes), Text(), counters),
        title=title,
        subtitle=Text(progress.phase, style=f"bold {colour}"),
        border_style=colour,
        padding=(1, 2, 0, 2),
    )
    story = Table.grid(padding=(0, 2, 0, 1))
    story.add_column(style="dim", justify="right", width=8)
    story.add_column()
    for when, text in progress.story[-_STORY_LINES:]:
        story.add_row(f"{when:.1f} s", Text.from_markup(text))
    return Group(panel, story)


def _headline(progress: Progress, notes: tuple[str, ...]) -> RenderableType:
    date = f"{progress.date:%d %b %Y}" if progress.date else "…"
    row = Table.grid(expand=True, padding=(0, 2))
    row.add_column(width=12)
    row.add_column(ratio=1)
    for _ in notes:
        row.add_column(justify="right")
    row.add_column(justify="right", width=6)
    bar = ProgressBar(total=1.0, completed=progress.share, complete_style="cyan", finished_style="green")
    row.add_row(Text(date, style="bold"), bar, *notes, f"{progress.elapsed:.0f} s")
    return row


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
