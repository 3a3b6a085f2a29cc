"""Whether a table still has the history in which a reader has got somewhere.

Ids of snapshots are given one after the other. A folder that is replaced by an older copy of the table gives
some of them again, to other commits: a reader that goes on from snapshot 8 of the history before would miss
some changes of this one, and keep some of the other. So what names a snapshot for long has its uuid beside
the id, and is compared where a reader goes on. Each snapshot has a uuid anyway, and tells that of the
commit that made its rows. See docs/decisions/0106.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from upsert.errors import MissingStateError, SnapshotExpiredError
from upsert.store import paths
from upsert.store.metadata.history import History
from upsert.store.version import Version


def identified(history: History, version: Version) -> Version:
    """The version with the uuids of its snapshots, as far as they are known."""
    return replace(version, uuids=uuids(history, {version.base, version.target} - {0}))


def uuids(history: History, data_versions: Iterable[int]) -> dict[int, str]:
    """The uuids of some data versions, as far as they are known; some may expire meanwhile."""
    found: dict[int, str] = {}
    for id in data_versions:
        with suppress(SnapshotExpiredError):
            if identity := history.identity_of(id):
                found[id] = identity
    return found


def is_same(history: History, id: int, uuid: str) -> bool:
    """Whether a data version is the one with this uuid, as far as that can be told; empty if not known."""
    if not id:
        return True
    try:
        found = history.identity_of(id)
    except SnapshotExpiredError:  # who reads it is told
        return True
    return found is not None and found in (uuid or found, "")


def has_all(history: History, version: Version) -> bool:
    """Whether a table has the snapshots of a version, and not others of their numbers."""
    return all(is_same(history, id, version.uuids.get(id, "")) for id in (version.base, version.target))


def check_is_same(history: History, *versions: Version) -> None:
    """Refuse a table of which a reader was in another history.

    Raises:
        MissingStateError: the table has another snapshot of that number, or has not come so far.
    """
    for version in versions:
        for id in (version.base, version.target):
            if not is_same(history, id, version.uuids.get(id, "")):
                newest = history.seen.data_version
                found = "which is another one here" if id <= newest else f"the newest here is {newest}"
                raise MissingStateError(
                    f"table {paths.name_of(history.root)!r}: the snapshots that the checkpoint names must be "
                    f"the table's own, it names snapshot {id}, {found}; the table was replaced "
                    "by an older copy, or has lost its newest snapshots: restore table and checkpoint as of "
                    "one time, or start the query with a new checkpoint and an empty sink"
                )
