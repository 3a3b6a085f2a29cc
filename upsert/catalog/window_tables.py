"""Flink's tables of windows as Spark's own windows: what stands before and after the table's name (pure).

Each gives the rows of a table with the columns ``window_start``, ``window_end`` and ``window_time``, a row
once for each of its windows:

- ``TUMBLE``, ``HOP``: Spark's ``window`` of the column.
- ``CUMULATE``: windows that begin with the largest one and end with each step. Those are the ends of hopping
  windows as large as the largest, up to its end.
- ``SESSION``: only groups tell where a session ends. So rows are collected by Spark's ``session_window``, a
  session at a time in memory, and given with its bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

SIZES: Final = {
    "TUMBLE": ("size",),
    "HOP": ("slide", "size"),
    "CUMULATE": ("step", "size"),
    "SESSION": ("gap",),
}
"""The intervals of each window, in Flink's order."""

UNITS: Final = {
    "MILLISECOND": 1,
    "SECOND": 1_000,
    "MINUTE": 60_000,
    "HOUR": 3_600_000,
    "DAY": 86_400_000,
    "WEEK": 604_800_000,
}
"""Milliseconds of each unit of an interval."""

_WINDOW: Final = "`_window`"
_HOP: Final = "`_hop`"
_ROW: Final = "`_row`"
_ROWS: Final = "`_rows`"


@dataclass(frozen=True)
class Interval:
    """``INTERVAL '5' MINUTE``; its text is how Spark's windows want it.

    >>> str(Interval(5, "MINUTES")), Interval(5, "MINUTES").milliseconds
    ("'5 MINUTES'", 300000)
    """

    number: int
    unit: str

    def __str__(self) -> str:
        return f"'{self.number} {self.unit}'"

    @property
    def milliseconds(self) -> int:
        """How long it is."""
        return self.number * UNITS[self.unit.removesuffix("S")]


@dataclass(frozen=True)
class WindowTable:
    """``TUMBLE(TABLE t, DESCRIPTOR(column), …)`` without its table.

    Attributes:
        name: which windows.
        column: the time of a row, as written.
        sizes: the intervals, in Flink's order.
        offset: by which windows are moved.
        keys: of SESSION, what its rows are told apart by, as written.

    >>> before, after = WindowTable("TUMBLE", "ts", (Interval(1, "DAY"),)).around()
    >>> before[-55:], after
    ("FROM (SELECT *, `window`(ts, '1 DAY') AS `_window` FROM", '))')
    """

    name: str
    column: str
    sizes: tuple[Interval, ...]
    offset: Interval | None = None
    keys: tuple[str, ...] = ()

    def why_impossible(self) -> str | None:
        """What is wrong with the sizes; None for nothing."""
        if self.name == "SESSION" and self.offset is not None:
            return "SESSION has no offset"
        if self.name == "CUMULATE":
            step, size = (each.milliseconds for each in self.sizes)
            if not step or size % step:
                return "the size of CUMULATE must be a multiple of its step"
        return None

    def around(self) -> tuple[str, str]:
        """The query before the table and after it."""
        if self.name == "SESSION":
            return self._sessions()
        if self.name == "CUMULATE":
            return self._cumulated()
        window = _call("`window`", self.column, spark_sizes(self.sizes, self.offset))
        return (
            f"(SELECT * EXCEPT ({_WINDOW}), {_bounds(_WINDOW)} FROM (SELECT *, {window} AS {_WINDOW} FROM",
            "))",
        )

    def _cumulated(self) -> tuple[str, str]:
        step, size = self.sizes
        largest = _call("`window`", self.column, spark_sizes((size,), _within(self.offset, size)))
        hops = _call("`window`", self.column, spark_sizes((step, size), _within(self.offset, step)))
        before = (
            f"(SELECT * EXCEPT ({_WINDOW}, {_HOP}), {_bounds(_WINDOW, _HOP)} "
            f"FROM (SELECT *, {hops} AS {_HOP} FROM (SELECT *, {largest} AS {_WINDOW} FROM"
        )
        return before, f")) WHERE {_HOP}.end <= {_WINDOW}.end)"

    def _sessions(self) -> tuple[str, str]:
        window = _call("session_window", f"{_ROW}.{self.column}", [str(self.sizes[0])])
        groups = ", ".join([*(f"{_ROW}.{key}" for key in self.keys), window])
        before = (
            f"(SELECT {_ROW}.*, {_bounds(_WINDOW)} FROM (SELECT {_WINDOW}, explode({_ROWS}) AS {_ROW} "
            f"FROM (SELECT {window} AS {_WINDOW}, collect_list({_ROW}) AS {_ROWS} "
            f"FROM (SELECT struct(*) AS {_ROW} FROM"
        )
        return before, f") GROUP BY {groups})))"


def spark_sizes(sizes: Sequence[Interval], offset: Interval | None = None) -> list[str]:
    """The arguments of Spark's window behind its column: size, slide, offset."""
    found = [str(size) for size in reversed(sizes)]
    if offset is None:
        return found
    return [*found, *(found if len(found) == 1 else []), str(offset)]


def _within(offset: Interval | None, step: Interval) -> Interval | None:
    """The same offset for Spark, which takes none that is not below the step."""
    return None if offset is None else Interval(offset.milliseconds % step.milliseconds, "MILLISECOND")


def _call(function: str, column: str, arguments: Sequence[str]) -> str:
    return f"{function}({', '.join([column, *arguments])})"


def _bounds(start: str, end: str | None = None) -> str:
    end = end or start
    return (
        f"{start}.start AS window_start, {end}.end AS window_end, "
        f"{end}.end - INTERVAL '0.001' SECOND AS window_time"
    )
