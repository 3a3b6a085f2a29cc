"""What any run can tell of itself: its phase, its story, and how fast it goes (pure; times are given)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from examples.flights.messages import Message

_RATE_WINDOW_S: Final = 4.0


@dataclass
class Telling(ABC):
    """What every run can tell of itself; `elapsed` is the time of the last update in seconds."""

    elapsed: float = 0.0
    phase: str = ""
    story: list[tuple[float, str]] = field(default_factory=list)

    @abstractmethod
    def receive(self, message: Message) -> None:
        """Take in what a process said."""

    def tell(self, text: str) -> None:
        """Add a line to the story; it may have rich's markup."""
        self.story.append((self.elapsed, text))


@dataclass
class Rate:
    """Growth of a counter a second, over the last few seconds."""

    seen: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, now: float, total: int) -> None:
        """Note the counter's value at a time."""
        self.seen.append((now, total))

    def at(self, now: float) -> float:
        """Growth a second, 0 when nothing was noted lately."""
        while len(self.seen) > 1 and self.seen[1][0] <= now - _RATE_WINDOW_S:
            self.seen.popleft()
        if len(self.seen) < 2 or self.seen[-1][0] < now - _RATE_WINDOW_S:
            return 0.0
        (then, before), (_, total) = self.seen[0], self.seen[-1]
        return (total - before) / (now - then) if now > then else 0.0
