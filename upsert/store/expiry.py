"""Giving space back: expiring old snapshots, and cleaning up after processes that died.

Both publish a snapshot *before* they delete anything. It carries what must not be forgotten: the earliest
id that may be read (``oldest``), and the lowest base a committer may have (``fence``). A writer that stalled
through it loses an ordinary race for the next id, looks again, and sees that it came too late.
See docs/decisions/0003.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from upsert.errors import ConfigurationError, SnapshotExpiredError
from upsert.store import paths
from upsert.store.commit import Change, Committer
from upsert.store.failpoints import reach
from upsert.store.history import History
from upsert.store.snapshot_info import ManifestRef, SnapshotInfo
from upsert.store.staging import remove_data_file

DEFAULT_AGE_S: Final = 86_400.0


def expire(committer: Committer, keep: int) -> int:
    """Give up all but the newest ``keep`` states of the table; how many snapshots can no longer be read.

    States count, not snapshots: compaction makes no new one. Of the oldest kept state only the newest
    snapshot stays, and with it the fewest files. Order: the boundary, then snapshot files from the oldest
    on, then manifests, then data; what a crash leaves is removed by the next ``expire`` or ``clean``.

    Raises:
        ConfigurationError: ``keep`` is below 1.
    """
    if keep < 1:
        raise ConfigurationError(
            f"expire: keep must be at least 1, got {keep!r}; the latest state always stays"
        )
    history = committer.history
    before = history.latest()

    def propose(latest: SnapshotInfo) -> Change | None:
        oldest = _boundary(history, latest, keep)
        return Change("expire", oldest=oldest) if oldest > max(latest.oldest, 1) else None

    head = committer.commit(propose)
    reach("expire.after-publish")
    _delete_expired(history, head)
    return max(head.oldest, 1) - max(before.oldest, 1)


def _boundary(history: History, latest: SnapshotInfo, keep: int) -> int:
    """The newest snapshot of the ``keep``-th newest state: from there on everything stays."""
    states: set[int] = set()
    boundary = latest.id
    for info in reversed(history.retained(latest)):
        if info.data_version not in states:
            states.add(info.data_version)
            boundary = info.id
        if len(states) == keep:
            break
    return boundary


def _delete_expired(history: History, head: SnapshotInfo) -> None:
    """Delete what only snapshots before ``head.oldest`` need, those snapshots first."""
    expired = [number for number in history.listed_ids() if number < head.oldest]
    if not expired:
        return
    infos = [info for number in (*expired, head.oldest) if (info := history.content(number)) is not None]
    needed = _Needed.by(history, head)
    manifests = {ref.name for info in infos for ref in _refs(info)} - needed.manifests
    # what a stalled writer left under an expired id may claim to remove files that are live, hence "- needed"
    data = {entry.file for info in infos for entry in history.delta(info).removed} - needed.data
    for number in expired:
        Path(paths.resolve(history.root, paths.snapshot_file(number))).unlink(missing_ok=True)
        reach("expire.after-snapshot")
    for name in sorted(manifests):
        Path(paths.resolve(history.root, name)).unlink(missing_ok=True)
        reach("expire.after-manifest")
    for name in sorted(data):
        remove_data_file(history.root, name)
        reach("expire.after-data")


@dataclass(frozen=True)
class _Needed:
    """Names of the files that the retained snapshots need."""

    manifests: frozenset[str]
    data: frozenset[str]

    @classmethod
    def by(cls, history: History, head: SnapshotInfo) -> _Needed:
        manifests = frozenset(ref.name for info in history.retained(head) for ref in _refs(info))
        return cls(manifests, frozenset(history.files_since(0, head)))

    @property
    def all(self) -> set[str]:
        """All of them, the indexes beside data files too."""
        return {*self.manifests, *self.data, *(paths.index_file(name) for name in self.data)}


def _refs(info: SnapshotInfo) -> list[ManifestRef]:
    return [*info.manifests, *([info.delta] if info.delta else [])]


def clean(committer: Committer, older_than_s: float = DEFAULT_AGE_S) -> int:
    """Delete files that no retained snapshot needs, if old enough; how many there were.

    They come from processes that died, or from commits that failed. A writer that is still at work on files
    as old as these gets a ``StaleWriterError``; so give it more time than the longest write takes.

    Raises:
        ConfigurationError: ``older_than_s`` is negative.
    """
    if older_than_s < 0:
        raise ConfigurationError(f"clean: older_than_s must be at least 0, got {older_than_s!r}")
    history = committer.history
    limit = committer.around.now() - older_than_s
    found = list(_based_files(history.root, limit))
    head, needed = _now_needed(history)
    waste = {name: base for name, base in found if name not in needed and base <= head.id}
    reach("clean.after-list")
    fence = 1 + max(waste.values(), default=-1)

    def propose(latest: SnapshotInfo) -> Change | None:
        return Change("clean", fence=fence) if fence > latest.fence else None

    committer.commit(propose)
    reach("clean.after-publish")
    # nothing below the fence can be adopted any more: what is still not needed never will be
    head, needed = _now_needed(history)
    gone = [*_leftover_snapshots(history, head, limit), *_temporary_files(history.root, limit)]
    gone += sorted(name for name in waste if name not in needed)
    return sum(_delete(history.root, name) for name in gone)


def _now_needed(history: History) -> tuple[SnapshotInfo, set[str]]:
    while True:
        head = history.latest()
        try:
            return head, _Needed.by(history, head).all
        except SnapshotExpiredError:
            continue  # one expired while it was being looked at, so there is a newer boundary: begin again


def _based_files(root: str, limit: float) -> Iterator[tuple[str, int]]:
    """Manifest, staging, data and index files not younger than ``limit``, and what they were based on."""
    for folder, _, names in os.walk(root):
        inside = os.path.relpath(folder, root)
        if inside not in (paths.MANIFEST_FOLDER, paths.STAGING_FOLDER) and not paths.is_bucket(inside):
            continue
        for name in names:
            base = paths.base_of(name)
            if base is not None and _is_old(os.path.join(folder, name), limit):
                yield f"{inside}/{name}", base


def _leftover_snapshots(history: History, head: SnapshotInfo, limit: float) -> Iterator[str]:
    """Expired snapshots that are still there, ascending: looking for the latest relies on that order."""
    for number in history.listed_ids():
        name = paths.snapshot_file(number)
        if number >= head.oldest or not _is_old(os.path.join(history.root, name), limit):
            return
        yield name


def _temporary_files(root: str, limit: float) -> Iterator[str]:
    for folder in ("", f"{paths.SNAPSHOT_FOLDER}/"):
        for name in os.listdir(os.path.join(root, folder)):
            is_temporary = name.startswith(".") and name.endswith(paths.TEMPORARY_SUFFIX)
            if is_temporary and _is_old(os.path.join(root, folder, name), limit):
                yield f"{folder}{name}"


def _is_old(path: str, limit: float) -> bool:
    try:
        return os.stat(path).st_mtime <= limit
    except FileNotFoundError:
        return False  # another clean-up was faster


def _delete(root: str, name: str) -> bool:
    try:
        os.unlink(paths.resolve(root, name))
    except FileNotFoundError:
        return False
    reach("clean.after-delete")
    return True
