"""A table that stands for versions of others: which way it was brought there, and what ways take (pure).

Each commit of such a table says so. What it took lies between its beginning and the time of its snapshot, so
the next refresh, in whichever process, knows what earlier ones took.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self
from uuid import uuid4

from upsert.codec import Jsonable, written_with

MOST_CHANGED: Final = 0.3
"""Changes of a larger share of the rows take longer than all rows, until both have been measured."""

_FEW: Final = 1_000
"""A refresh by fewer changes says what is fixed of the time, and little of what a row adds."""

_FIXED_IN_DRIVER: Final = 10_000
"""What is fixed of the time that the driver takes for changes is about what so many of them add."""

_FIXED_OF_TASKS: Final = 60_000
"""The same of the time that Spark's tasks take."""

_APART: Final = 4
"""What a row adds is told from two refreshes of which one had so many times as many rows, or more."""

_FIRST: Final = 2 / 3
"""So much of the time for its first rows do all rows of a table take again, or less."""

_PLANNED_SHARE: Final = 0.8
"""So much of the time of a first refresh in a process may be planning and compiling, which is kept then."""

_PLANNED_MS: Final = 5_000
"""It is no more than this, however long the refresh was."""

_FAR: Final = 8
"""So many times as many rows as were measured are another regime: most often they take less for each row."""

_FAR_SHARE: Final = 1 / 3
"""They may take no more than this of what their number says, which is then measured."""

_TIE: Final = 1.15
"""Changes may take so many times as long as all rows: what is above follows from them, and measures vary."""

_UNTRIED: Final = 3
"""After so many refreshes by all rows, because many had changed, changes are measured for once."""

_TRIED_AGAIN: Final = 100
"""If they cannot be computed, so many refreshes more pass before they are tried once again."""

_TRIED_MS: Final = 60_000
"""If all rows take longer than this, they are not: changes might take many times as long."""

_PROCESS: Final = uuid4().hex
"""This process, in which a clock tells how much time has gone by whatever the time of day is set to."""


@dataclass(frozen=True)
class Cost(Jsonable):
    """What refreshes of one kind took: milliseconds, for so many rows: changed ones, or all of the tables.

    Attributes:
        rows: how many.
        ms: how long it took.
        is_first: whether only first ones of processes were measured, which plan and compile.
        slower_ms: how long the newest took, if that was more; 0 if not.
    """

    rows: int
    ms: int
    is_first: bool = field(default=False, metadata=written_with("is_first"))
    slower_ms: int = field(default=0, metadata=written_with("slower_ms"))

    def of(self, rows: int, fixed: int = _FIXED_OF_TASKS) -> float:
        """What so many rows may take, if what is fixed of the time is what ``fixed`` rows add.

        >>> Cost(1_000, 110).of(2_000, _FIXED_IN_DRIVER), Cost(1_000_000, 1_060).of(2_000_000)
        (120.0, 2060.0)
        """
        return self.ms * (fixed + rows) / (fixed + self.rows)

    def then(self, one: Cost, fixed: int = _FIXED_OF_TASKS) -> Cost:
        """What is known when one more refresh has been measured.

        Less time than was expected counts at once, more time when the next refresh takes more too: one that
        was disturbed changes no way, and an estimate that was wrong is corrected by two. More time of a first
        one in a process says nothing of others.

        >>> Cost(100, 50).then(Cost(100, 40))
        Cost(rows=100, ms=40, is_first=False, slower_ms=0)
        >>> Cost(100, 50).then(Cost(100, 5000))
        Cost(rows=100, ms=50, is_first=False, slower_ms=5000)
        >>> Cost(100, 50).then(Cost(100, 5000)).then(Cost(100, 80))
        Cost(rows=100, ms=80, is_first=False, slower_ms=0)
        >>> Cost(100, 50).then(Cost(100, 5000, is_first=True))
        Cost(rows=100, ms=50, is_first=False, slower_ms=0)
        """
        if self.is_first and not one.is_first:
            return one
        expected = round(self.of(one.rows, fixed))
        if one.ms <= expected:
            return replace(one, is_first=self.is_first)
        if one.is_first and not self.is_first:
            return self
        if not self.slower_ms:
            return replace(one, ms=expected, slower_ms=one.ms)
        slower = round(replace(self, ms=self.slower_ms).of(one.rows, fixed))
        return replace(one, ms=min(one.ms, slower))


@dataclass(frozen=True)
class Costs(Jsonable):
    """What is known of each way.

    Attributes:
        changes: by changes that were computed in the driver.
        all_rows: by all rows.
        few: by fewer changes, where most of the time is fixed.
        many: by so many changes that Spark's tasks computed them.
        untried: how many refreshes in a row went by all rows after changes of more than that share; less
            than 0 after a trial of changes that has failed.
    """

    changes: Cost | None = None
    all_rows: Cost | None = None
    few: Cost | None = field(default=None, metadata=written_with("few"))
    many: Cost | None = field(default=None, metadata=written_with("many"))
    untried: int = field(default=0, metadata=written_with("untried"))

    @classmethod
    def after(cls, one: Refresh | None, time_ms: int) -> Costs:
        """What is known in a snapshot of this time that says this of itself."""
        if one is None:
            return cls()
        took = one.ended(time_ms).took_ms
        counted = one.changed if one.by_changes else one.rows
        if took <= 0 or not counted:  # clocks of two machines; of how many rows is not always known
            return one.known
        is_untried = not one.by_changes and _are_most(one.changed, one.rows)
        untried = one.known.untried + 1 if is_untried else 0
        name = one.measures
        known: Cost | None = getattr(one.known, name)
        measured = Cost(counted, took, is_first=one.is_first or known is None)
        if known is not None:
            measured = known.then(
                measured, _FIXED_IN_DRIVER if name in ("changes", "few") else _FIXED_OF_TASKS
            )
        changed: dict[str, Any] = {name: measured, "untried": untried}
        return replace(one.known, **changed)

    def of_changes(self, changed: int, *, by_tasks: bool = False) -> float | None:
        """What so many changes may take in milliseconds; None if none were ever measured.

        What a row adds is known from two refreshes, one of fewer changes; the one of more must not be the
        first of its kind. From one it is told by what part of the time is fixed in most of them.

        >>> Costs(changes=Cost(10_000, 500), few=Cost(100, 401)).of_changes(20_000)
        600.0
        >>> Costs(changes=Cost(10_000, 500)).of_changes(20_000)
        750.0
        """
        few, here = self.few, self.changes
        if (nearest := self._nearest(changed, by_tasks=by_tasks)) is None:
            return None
        if nearest is self.many:
            return nearest.of(changed, _FIXED_OF_TASKS if by_tasks else _FIXED_IN_DRIVER)
        if few and here and not here.is_first and few.rows * _APART <= here.rows and few.ms < here.ms:
            of_row = (here.ms - few.ms) / (here.rows - few.rows)
            return few.ms + of_row * max(0, changed - few.rows)
        return nearest.of(changed, _FIXED_IN_DRIVER)

    def _nearest(self, changed: int, *, by_tasks: bool) -> Cost | None:
        """What is known of the changes that are most like so many."""
        if by_tasks and self.many is not None:
            return self.many
        kinds = (self.few, self.changes) if changed < _FEW else (self.changes, self.few)
        return next((one for one in (*kinds, self.many) if one is not None), None)

    def of_all(self, changed: int, rows: int) -> float | None:
        """What all of so many rows may take in milliseconds; None if that was never measured.

        What the first rows of a table took is more than others take. By how much is not known: it is what all
        rows take at most, and less where so many have changed that this should be tried.
        """
        if (known := self.all_rows) is None:
            return None
        return known.of(rows) * (_FIRST if known.is_first and _are_most(changed, rows) else 1)

    @property
    def after_failure(self) -> Costs:
        """The same when the changes that were tried could not be computed: all rows are read for long.

        >>> Costs(all_rows=Cost(10, 100), untried=3).after_failure.refresh(5, 10).by_changes
        False
        """
        return replace(self, untried=-_TRIED_AGAIN)

    def is_trial(self, changed: int, rows: int) -> bool:
        """Whether changes are to be measured for once that were always so many that all rows were read.

        >>> Costs(all_rows=Cost(10, 100), untried=3).is_trial(5, 10)
        True
        """
        takes = self.of_all(changed, rows)
        is_known = takes is not None and takes <= _TRIED_MS
        is_due = self.untried >= _UNTRIED and self.of_changes(0) is None
        return is_known and is_due and changed <= 2 * MOST_CHANGED * rows

    def refresh(
        self, changed: int, rows: int, *, by_tasks: bool = False, must_be_by_changes: bool = False
    ) -> Refresh:
        """The way that takes less time after so many changes to tables of so many rows.

        >>> Costs().refresh(2, 5).reason
        '2 of 5 rows have changed, more than 30 %'
        >>> Costs().refresh(7, 5).reason
        '7 changes have been made to 5 rows, more than 30 %'
        >>> Costs(Cost(100, 50), Cost(1000, 800)).refresh(900, 1000).reason
        '900 of 1,000 rows have changed, which takes some 0.1 s; all rows take 0.8 s'

        Args:
            changed: how many rows have changed.
            rows: how many the tables have.
            by_tasks: whether the changes are too many for the driver.
            must_be_by_changes: whether it does not choose.
        """
        share = f"{changed:,} of {rows:,} rows have changed"
        if changed > rows:  # one row may change in several tables, and rows that are gone have changed
            share = f"{changed:,} changes have been made to {rows:,} rows"
        if must_be_by_changes:
            return Refresh.now(True, share, changed, rows, self, by_tasks=by_tasks)
        by, whole = self.of_changes(changed, by_tasks=by_tasks), self.of_all(changed, rows)
        nearest, are_most = self._nearest(changed, by_tasks=by_tasks), _are_most(changed, rows)
        if by is None and self.is_trial(changed, rows):
            by_changes, reason = True, f"{share}, which is measured for once"
        elif by is None or whole is None:
            by_changes = not are_most
            reason = f"{share}, more than {MOST_CHANGED:.0%}".replace("%", " %") if are_most else share
        elif by_tasks and not are_most and nearest is not self.many and _is_untold(nearest, changed, whole):
            by_changes, reason = True, f"{share}, many times as many as were measured"
        else:
            if by > whole and nearest is not None and nearest.is_first:
                by = _without_planning(by)
            if by > whole and nearest is not None and nearest.rows * _FAR < changed and not are_most:
                by *= _FAR_SHARE
            by_changes = by <= whole * (1 if are_most else _TIE)
            reason = f"{share}, which takes some {by / 1000:.1f} s; all rows take {whole / 1000:.1f} s"
        return Refresh.now(by_changes, reason, changed, rows, self, by_tasks=by_tasks)


def _are_most(changed: int, rows: int) -> bool:
    """Whether so many have changed that all rows are read unless both ways are measured."""
    return changed > rows * MOST_CHANGED


def _without_planning(ms: float) -> float:
    """What is left of the time of a first refresh in a process, at least, if it has planned and compiled."""
    return max(ms * (1 - _PLANNED_SHARE), ms - _PLANNED_MS)


def _is_untold(nearest: Cost | None, changed: int, whole: float) -> bool:
    """Whether what the driver took for its few changes says nothing of so many that tasks compute.

    If those few took longer than all rows, it says enough.
    """
    if nearest is None or nearest.rows * _FAR >= changed:
        return False
    return (_without_planning(nearest.ms) if nearest.is_first else nearest.ms) <= whole


@dataclass(frozen=True)
class Refresh(Jsonable):
    """How one refresh went.

    Attributes:
        by_changes: whether only changed rows, and those that they touch, were read; or all rows.
        changed: how many rows of the tables have changed since the last refresh; 0 where that is not known.
        rows: how many rows the tables have.
        known: what earlier ones took.
        took_ms: how long it has been; 0 where only the time of the snapshot that it has made says so; -1 if
            no clock says it.
        by_tasks: whether the changes were too many for the driver.
        is_first: whether its process has planned and compiled for it.
        clock: what the clock of its process said when it began, until it has ended.
        small: uuids of the tables that were joined without equality because they were small.
    """

    by_changes: bool
    reason: str
    changed: int
    rows: int
    began_ms: int
    known: Costs = field(default_factory=Costs)
    took_ms: int = 0
    by_tasks: bool = field(default=False, metadata=written_with("by_tasks"))
    is_first: bool = field(default=False, metadata=written_with("is_first"))
    clock: str = field(default="", metadata=written_with("clock"))
    small: tuple[str, ...] = field(default=(), metadata=written_with("small"))

    @classmethod
    def now(
        cls, by_changes: bool, reason: str, changed: int, rows: int, known: Costs, *, by_tasks: bool = False
    ) -> Self:
        """One that begins."""
        is_by_tasks, clock = by_changes and by_tasks, f"{_PROCESS} {time.monotonic_ns() // 1_000_000}"
        began_ms = int(time.time() * 1000)
        return cls(by_changes, reason, changed, rows, began_ms, known, by_tasks=is_by_tasks, clock=clock)

    @property
    def measures(self) -> str:
        """Which of the `Costs` it measures."""
        if not self.by_changes:
            return "all_rows"
        if self.by_tasks:
            return "many"
        return "few" if self.changed < _FEW else "changes"

    def ended(self, time_ms: int) -> Refresh:
        """The same with what it took, if it has ended by then."""
        return self if self.took_ms else replace(self, took_ms=max(0, time_ms - self.began_ms))

    def ending(self, now_s: float, monotonic_s: float) -> Refresh:
        """The same with what it took, if it ends now.

        The time of day may be set while it runs, back or forth; in another process than the one in which it
        began there is nothing else.
        """
        process, _, began_ms = self.clock.rpartition(" ")
        took = monotonic_s * 1000 - int(began_ms) if process == _PROCESS else now_s * 1000 - self.began_ms
        return replace(self, took_ms=max(1, round(took)) if took >= 0 else -1, clock="")

    def __str__(self) -> str:
        took = f" in {self.took_ms / 1000:.2f} s" if self.took_ms > 0 else ""
        return f"by {'changes' if self.by_changes else 'all rows'}{took}: {self.reason}"


@dataclass(frozen=True)
class StandsFor(Jsonable):
    """What a view's rows are after a commit: ``versions`` are the snapshots of its base tables.

    ``state`` is the data version of the view from which the changes were computed: there may be no other one.
    ``uuids`` tell the snapshots from others of these numbers, as far as they are known.
    """

    versions: Mapping[str, int]
    state: int
    refresh: Refresh | None = field(default=None, metadata=written_with("refresh"))
    uuids: Mapping[str, str] | None = field(default=None, metadata=written_with("uuids"))
