"""Expiring old snapshots: after commits, or when it is asked for.

A snapshot is published *before* anything is deleted. It carries the earliest id that may be read
(``oldest``), so a writer that stalled through it loses an ordinary race for the next id, looks again, and
sees that it came too late; see docs/decisions/0003. What consumers hold bounds the choice; what tags name is
spared by the deletion.

What an expiry costs follows the number of snapshots that go, not of those that stay: a file that has been
removed from the table never comes back, so what the expired commits removed, no later snapshot needs.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from math import inf
from typing import Any, Final

from upsert.errors import ConfigurationError
from upsert.failpoints import reach
from upsert.store import paths
from upsert.store.commit.change import Change
from upsert.store.commit.committer import Committer
from upsert.store.files.data_file import remove_data_files
from upsert.store.metadata import tag_file
from upsert.store.metadata.history import History
from upsert.store.metadata.snapshot import SnapshotInfo, refs_of
from upsert.store.metadata.tag_file import Tag
from upsert.store.retention import consumers, policy
from upsert.store.retention.lock import Lock, lifetime_lock, lifetime_lock_if_free
from upsert.store.retention.policy import Retention
from upsert.store.storage import delete_each, storage_of

AHEAD_MS: Final = 3_600_000
"""A snapshot that is further ahead comes from a clock that is wrong."""


class ExpiryWarning(UserWarning):
    """Old snapshots could not be expired. The table is right and complete, and takes more and more disk."""


def expire(
    committer: Committer, configured: Retention, *, keep: int | None = None, older_than_s: float | None = None
) -> int:
    """Give up old states of the table; how many snapshots can no longer be read.

    What a consumer's lease holds stays with all that follows it, and tagged snapshots stay readable. Order:
    the boundary, then snapshot files from the oldest on, then manifests, then data; what a crash leaves is
    removed by the next expiry or by ``clean``.

    Arguments as for ``Table.expire``; ``configured`` is what the table's options say.
    """
    with lifetime_lock(committer.history) as lock:
        return _expire(committer, _asked(configured, keep, older_than_s), lock)


def _asked(configured: Retention, keep: int | None, older_than_s: float | None) -> Retention:
    if keep is not None and not (hasattr(keep, "__index__") and keep >= 1):
        raise ConfigurationError(
            f"expire: keep must be a whole number, at least 1, got {keep!r}; the latest state always stays"
        )
    if older_than_s is not None and not (hasattr(older_than_s, "__float__") and 0 <= older_than_s < inf):
        raise ConfigurationError(
            f"expire: older_than_s must be at least 0 and finite, got {older_than_s!r}; give seconds"
        )
    if older_than_s is not None:
        return Retention(keep or 1, None, int(older_than_s * 1000), None)
    return replace(configured, limit=None) if keep is None else Retention(keep, keep, None, None)


def all_due(committer: Committer, retention: Retention) -> None:
    """Expire all that is due, as many snapshots at a time as one commit: for who does it for many commits."""
    while after_commit(committer, retention):
        pass


def after_commit(committer: Committer, retention: Retention) -> int:
    """Expire what has become due, if anything has and no other process does; never fails the commit.

    How many snapshots went: no more than the limit, so that no commit waits for many.
    """
    try:
        history, now_ms = committer.history, committer.environment.now_ms
        marks = _Retained(history, history.seen_just_now(), now_ms())
        if not policy.is_due(marks, retention, now_ms()):
            return 0
        with lifetime_lock_if_free(history) as lock:
            return 0 if lock is None else _expire(committer, retention, lock)
    except Exception as failure:  # the commit is published: nothing that happens here may deny it
        warnings.warn(
            f"table {committer.root!r}: old snapshots could not be expired, the table stays right but takes "
            f"more disk — {failure!r}; correct the cause, then call expire()",
            ExpiryWarning,
            stacklevel=4,
        )
        return 0


def _expire(committer: Committer, rule: Retention, lock: Lock) -> int:
    history, now_ms = committer.history, committer.environment.now_ms()
    before = history.latest()
    if before.time_ms > now_ms + AHEAD_MS:
        until = datetime.fromtimestamp(before.time_ms / 1000, UTC).isoformat(timespec="seconds")
        warnings.warn(
            f"table {committer.root!r}: a snapshot must have the time of its commit, got {until}, which is "
            "ahead of the clock here; its age is taken from its file, and reads as of a time go wrong: set "
            "the clocks of all writers right",
            ExpiryWarning,
            stacklevel=5,
        )

    def propose(latest: SnapshotInfo) -> Change | None:
        marks = _Retained(history, latest, now_ms)
        if not marks:
            return None
        # after ``latest`` was looked at: who takes the lock from us publishes a snapshot before going on
        lock.check(renew=True)
        known = consumers.read_all(history.root, history.uuid)
        held = consumers.held_versions(known, latest, marks[0].data_version, now_ms)
        first = policy.boundary(marks, rule, now_ms, held, history.lie_alike)
        return Change("expire", oldest=marks[first].id) if first else None

    head = committer.commit(propose).info
    reach("expire.after-publish")
    _delete_expired(history, head)
    if lock.is_held:
        # how far a log has come is known by this alone when Kafka has forgotten it
        others = (each for each in consumers.read_all(history.root, history.uuid) if each.name != CONSUMER)
        consumers.remove_lapsed(history.root, others, now_ms)
    return max(head.oldest, 1) - max(before.oldest, 1)


class _Retained(Sequence[SnapshotInfo]):
    """The snapshots that can be read, oldest first; each is read from the disk when it is looked at.

    Of one whose time has not come yet, for a clock was ahead, the time of its file is taken.
    """

    def __init__(self, history: History, head: SnapshotInfo, now_ms: int) -> None:
        self._history = history
        self._head = head
        self._now_ms = now_ms
        self._ids = range(max(head.oldest, 1), head.id + 1)

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, at: Any) -> Any:  # a snapshot by its position; slices are not asked for
        id: int = self._ids[at]
        info = self._history.info(id, self._head)
        if info.time_ms <= self._now_ms or (written := written_ms(self._history, id)) is None:
            return info
        return replace(info, time_ms=min(info.time_ms, written))


def written_ms(history: History, id: int) -> int | None:
    """The time of a snapshot's file, by the clock of the storage; None if there is none."""
    found = storage_of(history.root).stat(paths.resolve(history.root, paths.snapshot_file(id)))
    return None if found is None else found.modified_ns // 10**6


def _delete_expired(history: History, head: SnapshotInfo) -> None:
    """Delete what only snapshots before ``head.oldest`` need, those snapshots first."""
    history.check_kept(head)
    expired = history.expired_ids(head)
    if not expired:
        return
    manifests, data = _waste(history, _lineage(history, expired, head))
    storage = storage_of(history.root)
    for number in expired:
        storage.delete(paths.resolve(history.root, paths.snapshot_file(number)))
        reach("expire.after-snapshot")
    files = [paths.manifest_path(history.root, name) for name in sorted(manifests)]
    delete_each(storage, files, partial(reach, "expire.after-manifest"))
    remove_data_files(history.root, sorted(data), partial(reach, "expire.after-data"))


def _lineage(history: History, expired: Sequence[int], head: SnapshotInfo) -> list[SnapshotInfo]:
    """The expired snapshots that led to the earliest retained one, and that one, newest first.

    Others may lie under expired ids: what a stalled writer left there may claim to remove files that are
    live.
    """
    found = [history.info(head.oldest, head)]
    for info in history.contents([*reversed(expired)]):
        if info is None or info.uuid != found[-1].parent:
            break
        found.append(info)
    return found


def _waste(history: History, lineage: Sequence[SnapshotInfo]) -> tuple[set[str], set[str]]:
    """Names of manifests and of data files that only expired snapshots needed, and no tag needs."""
    earliest, *expired = lineage
    tags = [tag for tag in tag_file.read_all(history.root, history.uuid) if tag.snapshot.id < earliest.id]
    kept = {ref.name for info in (earliest, *(tag.snapshot for tag in tags)) for ref in refs_of(info)}
    manifests = {ref.name for info in expired for ref in refs_of(info)} - kept
    removed: dict[str, int] = {}
    ascending = [*reversed(lineage)]
    for info, delta in zip(ascending, history.deltas_left(ascending), strict=True):
        removed |= {entry.file: info.id for entry in delta.removed}
        for entry in delta.added:  # it only went to another level
            removed.pop(entry.file, None)
    return manifests, {file for file, at in removed.items() if not _is_tagged(history, file, at, tags)}


def _is_tagged(history: History, file: str, removed_at: int, tags: Iterable[Tag]) -> bool:
    """Whether a tag needs a file that was removed by a snapshot; few files of tags are looked at."""
    base = paths.base_of(file) or 0
    return any(base < tag.snapshot.id < removed_at and file in history.live(tag.snapshot) for tag in tags)


CONSUMER: Final = "table-log"
"""Name of the consumer that holds the snapshot up to which a log is complete."""
