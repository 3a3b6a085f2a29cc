"""How far a reader of a table's changes has got, as a small value (pure).

A reader moves from one snapshot, the *base*, to a newer one, the *target*. A step that would be
too large for one read (the first load, a big commit) is cut by a *cursor*: a place in the order of
(bucket, hash of the primary key). Keys below the cursor have arrived at the target, the others are
still at the base; the target stays pinned until the cursor is through. So every version, also one in
the middle of a step, is an exact state of the table: some keys as of one snapshot, the rest as of
another. A row's own key decides, hence a lookup at a version knows which snapshot to believe.

Only snapshots that changed rows count: the ids in a version are *data versions*, which compaction
and expiry do not move. An id alone does not tell a snapshot from one of the same number in another history,
as when the table was restored from an older copy and written again; so a version that is kept also has their
uuids, which ``upsert.store.metadata.identity`` compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from upsert.errors import ConfigurationError

MAX_HASH = 2**64 - 1

Cursor = tuple[int, int]
"""(bucket, hash of the primary key as an unsigned number): the first key that has not arrived."""


@dataclass(frozen=True)
class Version:
    """The state of a table for one reader: keys below ``cursor`` at ``target``, others at ``base``.

    A version without cursor is *complete*: ``base == target``. ``Version.EMPTY`` is the table before
    its first commit. ``uuids`` are those of its snapshots by their ids, as far as they are known: versions
    with and without them are equal.

    Raises:
        ConfigurationError: the three parts do not fit together.

    >>> Version(3, 5, (0, 7)).is_complete, Version.complete(5).is_complete
    (False, True)
    """

    base: int
    target: int
    cursor: Cursor | None = None
    uuids: Mapping[int, str] = field(default_factory=dict, compare=False, repr=False)

    EMPTY: ClassVar[Version]

    def __post_init__(self) -> None:
        """Refuse what no reader can have reached."""
        if self.base < 0 or self.target < self.base:
            raise self._error("must go from a snapshot to the same or a later one")
        if (self.cursor is None) != (self.base == self.target):
            raise self._error("must have a cursor if and only if base and target differ")
        if self.cursor is not None and (self.cursor[0] < 0 or not 0 <= self.cursor[1] <= MAX_HASH):
            raise self._error("must have a cursor of a bucket and an unsigned 64-bit hash")

    def _error(self, rule: str) -> ConfigurationError:
        return ConfigurationError(
            f"version {rule}, got base {self.base}, target {self.target}, cursor {self.cursor}"
        )

    @classmethod
    def complete(cls, snapshot_id: int) -> Self:
        """The version that is exactly this snapshot."""
        return cls(snapshot_id, snapshot_id)

    @property
    def is_complete(self) -> bool:
        """Whether all keys are at one snapshot."""
        return self.cursor is None

    def to_json(self) -> dict[str, Any]:
        """JSON values, names sorted; the hash as decimal text: it exceeds the 53 bits of a JSON number.

        >>> Version(0, 5, (1, 2**63)).to_json()
        {'base': 0, 'cursor': [1, '9223372036854775808'], 'target': 5}
        >>> Version(5, 5, uuids={5: "3f0c"}).to_json()
        {'base': 5, 'cursor': None, 'target': 5, 'uuids': {'5': '3f0c'}}
        """
        cursor = None if self.cursor is None else [self.cursor[0], str(self.cursor[1])]
        uuids = {str(id): self.uuids[id] for id in sorted(self.uuids)}
        own = {"base": self.base, "cursor": cursor, "target": self.target}
        return {**own, "uuids": uuids} if uuids else own

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The version of its JSON form, else ``ConfigurationError``."""
        try:
            cursor = value["cursor"]
            at = None if cursor is None else (int(cursor[0]), int(cursor[1]))
            uuids = {int(id): str(uuid) for id, uuid in value.get("uuids", {}).items()}
            return cls(int(value["base"]), int(value["target"]), at, uuids)
        except (KeyError, TypeError, IndexError, ValueError, AttributeError) as cause:
            raise ConfigurationError(
                f"a version must have 'base', 'target' and 'cursor', got {value!r}; "
                "is the checkpoint another source's?"
            ) from cause


Version.EMPTY = Version(0, 0, None)


@dataclass(frozen=True)
class Step:
    """What lies between two versions of one reader: one base, one target, one range of keys.

    ``low`` is the first key of the range, ``high`` the first one beyond it (None: to the end).
    """

    base: int
    target: int
    low: Cursor
    high: Cursor | None

    @property
    def is_empty(self) -> bool:
        """Whether nothing lies between."""
        return self.base == self.target

    def hashes_of(self, bucket: int) -> tuple[int, int] | None:
        """Smallest and largest hash of the step's range in a bucket, or None if it has no key there.

        >>> Step(0, 5, (0, 10), (1, 20)).hashes_of(1)
        (0, 19)
        """
        smallest = self.low[1] if bucket == self.low[0] else 0
        largest = MAX_HASH
        if self.high is not None and bucket == self.high[0]:
            largest = self.high[1] - 1
        is_outside = bucket < self.low[0] or (self.high is not None and bucket > self.high[0])
        return None if is_outside or smallest > largest else (smallest, largest)


def step_between(start: Version, end: Version) -> Step:
    """The one step that leads from ``start`` to ``end``; refuses versions that ``advance`` has not given.

    >>> step_between(Version(3, 5, (0, 7)), Version.complete(5))
    Step(base=3, target=5, low=(0, 7), high=None)
    """
    if start == end:
        return Step(start.base, start.base, (0, 0), None)
    if start.cursor is None:
        fits = end.target > start.base if end.cursor is None else end.base == start.base
        if fits:
            return Step(start.base, end.target, (0, 0), end.cursor)
    elif end.target == start.target and (
        end.cursor is None or (end.base == start.base and end.cursor > start.cursor)
    ):
        return Step(start.base, start.target, start.cursor, end.cursor)
    raise ConfigurationError(
        f"no single step leads from version {start} to {end}; use the versions of Table.advance"
    )


def has_arrived(
    cursor: Cursor, buckets: npt.NDArray[np.integer[Any]], hashes: npt.NDArray[np.uint64]
) -> npt.NDArray[np.bool_]:
    """For each key, whether it lies below the cursor, hence is at the target."""
    bucket, first = cursor
    arrived: npt.NDArray[np.bool_] = (buckets < bucket) | ((buckets == bucket) & (hashes < np.uint64(first)))
    return arrived


def owner_of(offset: Mapping[str, Any]) -> str:
    """Whose offset it is, as a checkpoint has it in JSON: which kind of stream has read up to there.

    >>> owner_of({"table": "1b", "version": {"base": 3}, "aggregate": "max(v) by (k)"})
    "the aggregate 'max(v) by (k)'"
    """
    for kind in ("aggregate", "join"):
        if kind in offset:
            return f"the {kind} {offset[kind]!r}"
    return "a stream of the rows of one table" if {"table", "version"} <= offset.keys() else "another source"
