"""How a run is shown while it goes on: a panel that is drawn again in a terminal, lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, Protocol, Self, TypeVar

from rich.console import Console, RenderableType
from rich.live import Live

from examples.flights.telling import Telling

LINE_EVERY_S: Final = 5.0

Shown = TypeVar("Shown", bound=Telling)
Seen = TypeVar("Seen", bound=Telling, contravariant=True)


class View(Protocol[Seen]):
    """Shows a run while it goes on; used in a `with` block."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def show(self, run: Seen, /) -> None:
        """Bring what is shown up to date."""


class Panels(Generic[Shown]):
    """A panel that is drawn again and again; the last one stays on the screen."""

    def __init__(self, console: Console, draw: Callable[[Shown], RenderableType]) -> None:
        self._live = Live(console=console, refresh_per_second=8, transient=False)
        self._draw = draw

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, run: Shown, /) -> None:
        """Draw the panel."""
        self._live.update(self._draw(run))


class Lines(Generic[Shown]):
    """One line every few seconds, and each line of the story as it comes."""

    def __init__(self, console: Console, line: Callable[[Shown], str]) -> None:
        self._console = console
        self._line = line
        self._told = 0
        self._due = LINE_EVERY_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def show(self, run: Shown, /) -> None:
        """Print what is new or due."""
        for when, text in run.story[self._told :]:
            self._console.print(f"{when:6.1f} s  {text}", highlight=False, soft_wrap=True)
        self._told = len(run.story)
        if run.elapsed >= self._due:
            self._due = run.elapsed + LINE_EVERY_S
            self._console.print(self._line(run), highlight=False, soft_wrap=True)
