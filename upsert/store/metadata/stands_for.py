"""A table that stands for versions of others: which way it was brought there, and what ways take (pure).

Each commit of such a table says so. What it took lies between its beginning and the time of its snapshot, so
the next refresh, in whichever process, knows what earlier ones took.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Self

from upsert.codec import Jsonable, written_with

MOST_CHANGED: Final = 0.3
"""Changes of a larger share of the rows take longer than all rows, until both have been measured."""

_MEASURED_SHARE: Final = 0.01
"""Changes of a smaller share of the rows say what is fixed of the time, and little of what a row adds."""


@dataclass(frozen=True)
class Cost(Jsonable):
    """What one refresh took: milliseconds, for so many rows: changed ones, or all of the tables."""

    rows: int
    ms: int

    def of(self, rows: int) -> float:
        """What so many rows may take."""
        return self.ms * rows / max(1, self.rows)


@dataclass(frozen=True)
class Costs(Jsonable):
    """The newest cost of each way; ``few`` is of a refresh by fewer changes, where most of it is fixed."""

    changes: Cost | None = None
    all_rows: Cost | None = None
    few: Cost | None = field(default=None, metadata=written_with("few"))

    @classmethod
    def after(cls, one: Refresh | None, time_ms: int) -> Costs:
        """What is known in a snapshot of this time that says this of itself."""
        if one is None:
            return cls()
        took = one.ended(time_ms).took_ms
        counted = one.changed if one.by_changes else one.rows
        if took <= 0 or not counted:  # clocks of two machines; of how many rows is not always known
            return one.known
        cost = Cost(counted, took)
        if not one.by_changes:
            return replace(one.known, all_rows=cost)
        if one.changed >= one.rows * _MEASURED_SHARE:
            return replace(one.known, changes=cost)
        return replace(one.known, few=cost)

    def of_changes(self, changed: int) -> float | None:
        """What so many changes may take in milliseconds; None if that was never measured.

        >>> Costs(changes=Cost(100, 500)).of_changes(1000)
        5000.0
        >>> Costs(changes=Cost(100, 500), few=Cost(1, 401)).of_changes(1000)
        1400.0

        Where it is not known what part of the time is fixed, further rows add no more than the rule of 30 %
        says: for that all rows must be measured.

        >>> Costs(changes=Cost(100, 500), all_rows=Cost(10_000, 600)).of_changes(1000)
        680.0
        """
        if (here := self.changes) is None:
            return None
        if (few := self.few) is not None and few.rows < here.rows and few.ms < here.ms:
            of_row = (here.ms - few.ms) / (here.rows - few.rows)
            return few.ms + of_row * max(0, changed - few.rows)
        if self.all_rows is None or changed <= here.rows:
            return here.of(changed)
        return min(here.of(changed), here.ms + self.all_rows.of(changed - here.rows) / MOST_CHANGED)

    def refresh(self, changed: int, rows: int, *, must_be_by_changes: bool = False) -> Refresh:
        """The way that takes less time after so many changes to tables of so many rows.

        >>> Costs().refresh(2, 5).reason
        '2 of 5 rows have changed, more than 30 %'
        >>> Costs(Cost(100, 50), Cost(1000, 800)).refresh(900, 1000).reason
        '900 of 1,000 rows have changed, which takes some 0.5 s; all rows take 0.8 s'
        """
        share = f"{changed:,} of {rows:,} rows have changed"
        if must_be_by_changes:
            return Refresh.now(True, share, changed, rows, self)
        by = self.of_changes(changed)
        if by is None or self.all_rows is None:
            by_changes = changed <= rows * MOST_CHANGED
            reason = share if by_changes else f"{share}, more than {MOST_CHANGED:.0%}".replace("%", " %")
            return Refresh.now(by_changes, reason, changed, rows, self)
        whole = self.all_rows.of(rows)
        reason = f"{share}, which takes some {by / 1000:.1f} s; all rows take {whole / 1000:.1f} s"
        return Refresh.now(by <= whole, reason, changed, rows, self)


@dataclass(frozen=True)
class Refresh(Jsonable):
    """How one refresh went.

    Attributes:
        by_changes: whether only changed rows, and those that they touch, were read; or all rows.
        changed: how many rows of the tables have changed since the last refresh; 0 where that is not known.
        rows: how many rows the tables have.
        known: what earlier ones took.
        took_ms: how long it has been; 0 in the snapshot that it has made, whose time says so.
    """

    by_changes: bool
    reason: str
    changed: int
    rows: int
    began_ms: int
    known: Costs = field(default_factory=Costs)
    took_ms: int = 0

    @classmethod
    def now(cls, by_changes: bool, reason: str, changed: int, rows: int, known: Costs) -> Self:
        """One that begins."""
        return cls(by_changes, reason, changed, rows, int(time.time() * 1000), known)

    def ended(self, time_ms: int) -> Refresh:
        """The same with what it took, if it has ended by then."""
        return self if self.took_ms else replace(self, took_ms=max(0, time_ms - self.began_ms))

    def __str__(self) -> str:
        took = f" in {self.took_ms / 1000:.2f} s" if self.took_ms else ""
        return f"by {'changes' if self.by_changes else 'all rows'}{took}: {self.reason}"


@dataclass(frozen=True)
class StandsFor(Jsonable):
    """What a view's rows are after a commit: ``versions`` are the snapshots of its base tables.

    ``state`` is the data version of the view from which the changes were computed: there may be no other one.
    """

    versions: Mapping[str, int]
    state: int
    refresh: Refresh | None = field(default=None, metadata=written_with("refresh"))
