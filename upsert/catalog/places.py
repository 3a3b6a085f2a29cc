"""Places in a text: line and column of an offset, and texts in which some parts are exchanged (pure)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate


def place(text: str, offset: int) -> str:
    r"""Line and column of an offset, both counted from 1.

    >>> place("SELECT\n  a", 9)
    'line 2, column 3'
    """
    before = text[:offset]
    return f"line {before.count(chr(10)) + 1}, column {offset - before.rfind(chr(10))}"


@dataclass(frozen=True)
class Edit:
    """A part of a text that is exchanged: from ``start`` to before ``end``."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Revision:
    """A text after edits, which knows where its characters come from.

    >>> revision = Revision("SELECT a FROM t").edited([Edit(14, 15, "`view 1`"), Edit(7, 8, "bee")])
    >>> revision.text, revision.original(revision.text.index("view"))
    ('SELECT bee FROM `view 1`', 14)
    """

    text: str
    before: Revision | None = None
    _starts: tuple[int, ...] = (0,)
    _origins: tuple[tuple[int, bool], ...] = ((0, True),)
    """Of each piece of the text: where it stood before, and whether it was left as it is."""

    def edited(self, edits: Iterable[Edit]) -> Revision:
        """The text after edits, none of which may overlap another one."""
        pieces: list[tuple[str, int, bool]] = []
        reached = 0
        for edit in sorted(edits, key=lambda one: (one.start, one.end)):
            if edit.start < reached:
                raise AssertionError(f"two edits overlap at {edit.start} of {self.text!r}")
            pieces += [(self.text[reached : edit.start], reached, True), (edit.text, edit.start, False)]
            reached = edit.end
        pieces.append((self.text[reached:], reached, True))
        starts = (0, *accumulate(len(piece) for piece, _, _ in pieces))
        origins = tuple((origin, is_same) for _, origin, is_same in pieces)
        return Revision("".join(piece for piece, _, _ in pieces), self, starts[:-1], origins)

    @property
    def first(self) -> str:
        """The text before all edits."""
        return self.text if self.before is None else self.before.first

    def original(self, offset: int) -> int:
        """Where a character stood in the first text, or that in whose place it was put."""
        number = bisect_right(self._starts, offset) - 1
        origin, is_same = self._origins[number]
        found = origin + (offset - self._starts[number] if is_same else 0)
        return found if self.before is None else self.before.original(found)
