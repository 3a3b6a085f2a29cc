"""Which commits show in change streams: as the statement says, else the partition, else the table (pure).

Follows FLIP-188. A commit may touch partitions that are tracked and others that are not; then its snapshot
names the latter. See docs/decisions/0014.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from upsert.store.definition import Definition
from upsert.store.paths import Partition


class Shown(NamedTuple):
    """What of a commit shows: nothing, or all but some partitions."""

    is_tracked: bool
    hidden: tuple[Partition, ...]

    @property
    def is_whole(self) -> bool:
        """Whether all of it shows."""
        return self.is_tracked and not self.hidden


def shown(definition: Definition, touched: Iterable[Partition], tracked: bool | None) -> Shown:
    """What of a commit shows.

    Args:
        definition: the table's definition when the commit is published.
        touched: partitions with added or removed files.
        tracked: what the statement says; None for nothing.
    """
    if tracked is not None:
        return Shown(tracked, ())
    partitions = set(touched)
    if not definition.options.change_tracking or (partitions and partitions <= definition.untracked):
        return Shown(False, ())
    return Shown(True, _in_order(partitions & definition.untracked))


def _in_order(partitions: Collection[Partition]) -> tuple[Partition, ...]:
    return tuple(sorted(partitions, key=repr))
