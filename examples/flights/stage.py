"""Where a run takes place: its folders, its child processes, and the loop that listens to them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from examples.flights.processes import Child
from examples.flights.progress import Progress
from examples.flights.view import View

_POLL_S: Final = 0.05
_LOOK_EVERY_S: Final = 0.5


@dataclass(frozen=True)
class Settings:
    """What the user chose: number of flights, length of the replay, and the folder of the tables."""

    rows: int
    seconds: float
    warehouse: Path

    @property
    def work(self) -> Path:
        """Folder of what stays beside the tables: checkpoints, logs and reports."""
        return self.warehouse / ".demo"

    @property
    def scratch(self) -> Path:
        """Folder of what is removed at the end: unpacked files, and what a killed JVM leaves behind."""
        return self.work / "scratch"


class Stage:
    """The children of a run, heard and shown until something has happened.

    Args:
        settings: the folders, which are made.
        progress: what is counted and told.
        view: shows it.
        look: called twice a second, for what no child tells.
    """

    def __init__(self, settings: Settings, progress: Progress, view: View, look: Callable[[], None]) -> None:
        self._settings = settings
        self._progress = progress
        self._view = view
        self._look = look
        self._looked = 0.0
        self._begin = time.monotonic()
        self._children: list[Child] = []
        settings.scratch.mkdir(parents=True)

    def start(self, name: str, module: str, *arguments: object) -> Child:
        """Start a module with the warehouse and the arguments; it belongs to a `with` block."""
        settings = self._settings
        child = Child(name, module, settings.work, settings.scratch, settings.warehouse, *arguments)
        self._children.append(child)
        return child

    def kill(self, child: Child) -> None:
        """SIGKILL a child, and read its last messages; its end is expected."""
        child.kill()
        self._listen(child)
        self._children.remove(child)

    def wait(self, phase: str, is_over: Callable[[], bool]) -> None:
        """Keep listening and showing until `is_over`; an error of any child ends it."""
        self._progress.phase = phase
        while True:
            self.update()
            if is_over():
                return
            time.sleep(_POLL_S)

    def update(self) -> None:
        """Listen once to every child, and show what there is."""
        self._progress.elapsed = time.monotonic() - self._begin
        for child in self._children:
            self._listen(child)
            child.has_ended()
        if self._progress.elapsed - self._looked > _LOOK_EVERY_S:
            self._looked = self._progress.elapsed
            self._look()
        self._view.show(self._progress)

    def _listen(self, child: Child) -> None:
        for message in child.hear():
            self._progress.receive(message)
