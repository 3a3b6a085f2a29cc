"""From which versions of its tables a refresh goes to which, and what it holds of them until it is there."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from planner.views.stages import Folders, Tables
from upsert.errors import SnapshotExpiredError, UntrackedChangesError
from upsert.managed.stepping import Step
from upsert.store.metadata.stands_for import Costs, Refresh
from upsert.store.read.steps import StepSize, step_size
from upsert.store.retention.consumers import Consumer
from upsert.store.storage.base import DENIED
from upsert.store.table import Table
from upsert.store.version import Version
from upsert.views.refresh import FEW_BYTES, FEW_ROWS, trial_begins

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHALLOW_ROWS: Final = 5_000
"""A stage of so few groups is read as a whole; the results of a larger one are a table."""

ORDERED_ROWS: Final = 10_000
"""Of so few results the first ones of an order are found by reading all; of more they are a table."""

WHOLE_ROWS: Final = 50_000
"""Tables of so few rows are read as a whole, rather than kept partition by partition."""

HELD_BEHIND: Final = 10
"""A view holds fewer than so many snapshots of a table beside those that it reads."""

Bases = Mapping[str, str]
"""Folders of the tables that something reads, by their uuids."""

Versions = Mapping[str, int]
"""Data versions of tables, by their uuids."""


@dataclass(frozen=True)
class Move:
    """What a refresh does.

    Attributes:
        versions: where it goes to.
        refresh: which way, and why.
        step: from where, if that is known and the changes are worth it.
        is_small: whether the step has few changes.
        partitions: what tells those partitions apart of which rows have changed, as a DataFrame if they are
            many; None for all of them.
    """

    versions: Versions
    refresh: Refresh
    step: Step | None = None
    is_small: bool = False
    partitions: pa.Table | DataFrame | None = None


def bases_of(tables: Tables) -> Bases:
    """The tables that something reads."""
    return {Table.open(read.path).uuid: read.path for read, _ in tables}


def versions_of(tables: Tables) -> Versions:
    """The versions at which tables are read."""
    return {Table.open(read.path).uuid: version for read, version in tables}


def move_of(
    bases: Bases,
    known: Versions,
    versions: Versions,
    consumer: str,
    costs: Costs,
    *,
    must_be_by_changes: bool = False,
    still: Folders = frozenset(),
) -> Move:
    """What brings something from known versions of its tables to others, held until it has been done.

    It has no step if a table is new to it, or its changes cannot be read or are not followed, or take longer
    than all rows by what earlier ones took; then the tables are held where it goes to, from which the next
    step begins.
    """
    target = {uuid: versions[uuid] for uuid in bases}
    tables = {uuid: Table.open(path) for uuid, path in bases.items()}
    rows = sum(table.snapshot(target[uuid]).row_count for uuid, table in tables.items())
    reason, changed = "it has had no rows of these tables", 0
    if target.keys() <= known.keys():
        begin = {uuid: known[uuid] for uuid in bases}
        step = Step({uuid: (begin[uuid], version) for uuid, version in target.items()})
        touched = _touched(tables, step)
        if any(path in still and begin[uuid] != target[uuid] for uuid, path in bases.items()):
            reason = "a small table has changed that is joined without equality"
        elif touched is None or not _is_held(tables, begin, consumer):
            reason = "the changes since the last refresh have expired, or are not tracked"
        else:
            is_small = touched.rows <= FEW_ROWS and touched.bytes <= FEW_BYTES
            refresh = costs.refresh(
                touched.rows, rows, by_tasks=not is_small, must_be_by_changes=must_be_by_changes
            )
            if refresh.by_changes:
                if not must_be_by_changes and costs.is_trial(touched.rows, rows):
                    trial_begins(refresh)
                return Move(target, refresh, step, is_small)
            reason, changed = refresh.reason, touched.rows
    _is_held(tables, target, consumer)
    return Move(target, Refresh.now(False, reason, changed, rows, costs))


def _touched(tables: Mapping[str, Table], step: Step) -> StepSize | None:
    """What a step touches; None if that cannot be read."""
    found = []
    for uuid, table in tables.items():
        start, end = map(Version.complete, step.versions[uuid])
        try:
            reached = start
            while reached != end:  # what takes files away is a step of its own for a stream
                reached = table.advance(reached, until=end.target)
            found.append(step_size(table.pinned(), start, end))
        except (SnapshotExpiredError, UntrackedChangesError):
            return None
    return StepSize(sum(one.rows for one in found), sum(one.bytes for one in found))


def _is_held(tables: Mapping[str, Table], versions: Versions, consumer: str) -> bool:
    """Hold all tables at some versions; False if one has expired there.

    A hold of a version a little earlier holds these too: to renew it is a file written through to the disk.
    """
    for uuid, table in tables.items():
        version = Version.complete(versions[uuid])
        try:
            if version != Version.EMPTY and not _holds(table, table.consumer(consumer), version):
                table.hold(consumer, version)
        except SnapshotExpiredError:
            return False
        except DENIED:
            continue  # a table of others: if its changes expire, the sums are computed again
    return True


def _holds(table: Table, held: Consumer | None, version: Version) -> bool:
    """Whether a hold need not be renewed for a version: nothing from its own version on can expire."""
    if held is None or time.time() * 1000 > (held.renewed_ms + held.until_ms) / 2:
        return False
    is_fence = table.published.seen.oldest <= held.version.target
    return is_fence and 0 <= version.target - held.version.target < HELD_BEHIND
