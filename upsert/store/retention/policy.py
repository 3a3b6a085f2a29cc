"""Which snapshots may go (pure): by age and number, but never what a consumer holds.

A *state* is what the table holds between two commits that change rows; compaction makes a new snapshot of
the same state. Numbers count states, age is asked of snapshots: one may go when its *successor* is old
enough, for until then it was the table.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from upsert.store.metadata.snapshot import SnapshotInfo

DEFAULT_MIN: Final = 10
DEFAULT_AGE_MS: Final = 3_600_000
DEFAULT_LIMIT: Final = 50

_OVERDUE: Final = 10
"""A boundary is a snapshot of its own, so it is not moved for each commit: see ``is_due``."""


@dataclass(frozen=True)
class Retention:
    """What stays; the names are Paimon's.

    Attributes:
        min_states: so many newest states stay, however old they are.
        max_states: no more than these stay, however young; None for no such limit.
        age_ms: older ones go; None for never.
        limit: so many snapshots go at a time at most; None for no limit.
    """

    min_states: int = DEFAULT_MIN
    max_states: int | None = None
    age_ms: int | None = DEFAULT_AGE_MS
    limit: int | None = DEFAULT_LIMIT


def boundary(
    marks: Sequence[SnapshotInfo],
    rule: Retention,
    now_ms: int,
    held: Collection[int] = (),
    lie_alike: Callable[[SnapshotInfo, SnapshotInfo], bool] = lambda one, other: True,  # noqa: ARG005
) -> int:
    """Position of the first snapshot that stays; 0 if none may go.

    ``marks`` are all that can be read, oldest first, at least one; few of them are looked at. Times, states
    and data versions ascend, with repeats. The data versions ``held`` stay, and all that follows: a consumer
    still reads from there. Of a state that is held, the newest snapshot stays whose rows ``lie_alike`` with
    those of its first one: a reader may be in the middle of them.
    """
    at = 0
    if rule.age_ms is not None:  # what was the latest one when the time to keep began
        at = max(0, bisect_right(marks, now_ms - rule.age_ms, key=lambda mark: mark.time_ms) - 1)
    if rule.max_states is not None:
        at = max(at, _by_number(marks, rule.max_states))
    at = min(at, _by_number(marks, rule.min_states))
    for version in held:
        at = min(at, _of_state(marks, version, lie_alike))
    return at if rule.limit is None else min(at, rule.limit)


def _of_state(
    marks: Sequence[SnapshotInfo], version: int, lie_alike: Callable[[SnapshotInfo, SnapshotInfo], bool]
) -> int:
    """The newest snapshot of a state whose rows lie as in its first one."""
    last = max(0, bisect_right(marks, version, key=lambda mark: mark.data_version) - 1)
    first = max(0, marks[last].data_version - marks[0].id)  # a data version is the id of its first snapshot
    begun = marks[first]
    if lie_alike(begun, marks[last]):
        return last
    return bisect_left(range(last), True, lo=first, key=lambda at: not lie_alike(begun, marks[at])) - 1


def _by_number(marks: Sequence[SnapshotInfo], keep: int) -> int:
    """The newest snapshot of the ``keep``-th newest state: it has the fewest files."""
    first = marks[-1].states - keep + 1
    return max(0, bisect_right(marks, first, key=lambda mark: mark.states) - 1)


def is_due(marks: Sequence[SnapshotInfo], rule: Retention, now_ms: int) -> bool:
    """Whether it is time to look closer; so cheap that every commit may ask.

    By number at once. By age when a whole batch of ``limit`` snapshots may go, or the oldest has been overdue
    for a tenth of the time: a busy table moves its boundary once for many commits, a quiet one soon enough.
    """
    if len(marks) < 2:
        return False
    states = marks[-1].states - marks[0].states
    if rule.max_states is not None and states >= rule.max_states:
        return True
    if rule.age_ms is None or states < rule.min_states:
        return False
    if marks[1].time_ms <= now_ms - rule.age_ms - rule.age_ms // _OVERDUE:
        return True
    batch = rule.limit
    return batch is not None and len(marks) > batch and marks[batch].time_ms <= now_ms - rule.age_ms
