"""What it costs the tasks of a step to share its changes, in the two forms of a join without state (pure).

In the form *fused* each task looks at the changes of all tables, for only so it has all of its join keys. Of
the other tasks' rows it reads nothing but this key; where updates may change it, also of what they replace;
and where the table is bucketed by it, it looks at some buckets only. What tasks of one process then spare
each other is not counted: on a cluster each may have its own. In the form *shuffled* each change is read once
and travels to the task that joins it, which costs a second stage of tasks. Joining costs the same in both,
and is left out.

The figures are processor times, measured by `bench.shards` and, for the stage, by two forms of one query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

READ_US: Final = 0.27
"""A changed row is read, and what it replaces looked up."""

KEY_US: Final = 0.05
"""The join key of a changed row is read and hashed, to find that another task has the row."""

IMAGES_US: Final = 0.14
"""The same of the row and of what it replaces, which must be looked up."""

SENT_US: Final = 0.2
"""A changed row is cut out for a shard, and read there."""

TASK_MS: Final = 15.0
"""A task is started and opens the tables."""

STAGE_MS: Final = 1200.0
"""Spark plans and runs two stages more, with Python processes, and rows cross once more."""


@dataclass(frozen=True)
class SharedTable:
    """How tasks share the changes of one table of a step.

    Attributes:
        rows: how many rows have changed.
        buckets: how many buckets it has.
        groups: of so many groups of buckets a fused task reads one: see `Split.groups`.
        is_cut_by_key: whether updates leave the join key as it is.
        is_everywhere: whether each shard needs all changes.
    """

    rows: int
    buckets: int = 1
    groups: int = 1
    is_cut_by_key: bool = False
    is_everywhere: bool = False

    def fused_us(self, tasks: int) -> float:
        """What so many tasks take to read the changes that each of them needs."""
        other = READ_US if self.is_everywhere else KEY_US if self.is_cut_by_key else IMAGES_US
        return self.rows * (READ_US + (tasks / min(self.groups, tasks) - 1) * other)

    def shuffled_us(self, tasks: int) -> float:
        """What it takes to read the changes once, and to send them to so many tasks."""
        return self.rows * (READ_US + SENT_US * (tasks if self.is_everywhere else 1))


@dataclass(frozen=True)
class StepCost:
    """What the tasks of a step take beside joining, in milliseconds of processor time.

    >>> one, other = SharedTable(300_000, 8, 8, is_cut_by_key=True), SharedTable(300_000, 8)
    >>> print(StepCost.of([one, other], tasks=12))
    600000 changed rows in 12 tasks: 812 ms of CPU fused, 1902 ms shuffled
    """

    rows: int
    tasks: int
    fused_ms: float
    shuffled_ms: float

    @classmethod
    def of(cls, tables: Sequence[SharedTable], tasks: int) -> StepCost:
        """Of a step that so many tasks join; the form shuffled has one more for each bucket."""
        readers = sum(table.buckets for table in tables if table.rows)
        fused = sum(table.fused_us(tasks) for table in tables) / 1000 + tasks * TASK_MS
        shuffled = sum(table.shuffled_us(tasks) for table in tables) / 1000
        shuffled += (readers + tasks) * TASK_MS + STAGE_MS
        return cls(sum(table.rows for table in tables), tasks, fused, shuffled)

    @property
    def is_shuffled(self) -> bool:
        """Whether the form shuffled is the cheaper one."""
        return self.shuffled_ms < self.fused_ms

    def __str__(self) -> str:
        return (
            f"{self.rows} changed rows in {self.tasks} tasks: {self.fused_ms:.0f} ms of CPU fused, "
            f"{self.shuffled_ms:.0f} ms shuffled"
        )
