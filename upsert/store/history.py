"""The published snapshots of one table and the files of each.

Neither a snapshot nor a manifest ever changes, so what was read once is remembered for the life of the
process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from cachetools import LRUCache

from upsert.errors import CorruptTableError
from upsert.store import table_file
from upsert.store.file_entry import FileEntry
from upsert.store.file_set import FileSet
from upsert.store.manifest import Manifest, apply, read_manifest
from upsert.store.snapshot_info import ManifestRef, SnapshotInfo
from upsert.store.snapshots import _T, Snapshots
from upsert.store.table_file import TableFile

_MAX_FILE_SETS: Final = 64
_MAX_DELTAS: Final = 64
_MAX_TABLES: Final = 256


class History(Snapshots):
    """The snapshots of a table and their files; threads may share it."""

    def __init__(self, file: TableFile) -> None:
        super().__init__(file)
        self._live: LRUCache[int, Mapping[str, FileEntry]] = LRUCache(_MAX_FILE_SETS)
        self._files: LRUCache[int, FileSet] = LRUCache(_MAX_FILE_SETS)
        self._deltas: LRUCache[int, Manifest] = LRUCache(_MAX_DELTAS)

    @classmethod
    def shared(cls, file: TableFile) -> History:
        """The process-wide history of a table; a table made anew in the same folder has another uuid."""
        key = file.folder, file.uuid
        with _shared_lock:
            if key not in _shared:
                _shared[key] = cls(file)
            return _shared[key]

    def anew(self) -> History:
        """The same history, with nothing remembered."""
        return History(table_file.read(self.folder))

    def read_manifest(self, ref: ManifestRef) -> Manifest:
        """A manifest as it is on the disk now.

        Raises:
            FileNotFoundError: it is not there.
            CorruptTableError: it is damaged.
        """
        return read_manifest(self.root, ref)

    def delta(self, info: SnapshotInfo) -> Manifest:
        """Files that a snapshot's own commit added and removed."""
        if info.delta is None:
            return Manifest((), ())
        found = self._remembered(self._deltas, info.id)
        if found is None:
            found = self._reading(info, partial(read_manifest, self.root, info.delta))
            self._remember(self._deltas, info.id, found)
        return found

    def delta_left(self, info: SnapshotInfo) -> Manifest:
        """``delta`` of a snapshot that may have expired; nothing if its manifest is gone."""
        try:
            return read_manifest(self.root, info.delta) if info.delta else Manifest((), ())
        except FileNotFoundError:
            return Manifest((), ())

    def live(self, info: SnapshotInfo) -> Mapping[str, FileEntry]:
        """Live files of a snapshot by name."""
        found = self._remembered(self._live, info.id)
        if found is None:
            found = self._reading(info, partial(self._load_live, info))
            self._remember(self._live, info.id, found)
        return found

    def _load_live(self, info: SnapshotInfo) -> Mapping[str, FileEntry]:
        parent = self._remembered(self._live, info.id - 1)
        live: dict[str, FileEntry] = dict(parent or {})
        refs = info.manifests if parent is None else (info.delta,)
        for ref in refs:
            if ref is not None:
                apply(live, read_manifest(self.root, ref))
        if len(live) != info.files:
            raise CorruptTableError(
                f"table {self.root!r}: snapshot {info.id} must have {info.files} files, got {len(live)} from "
                "its manifests; restore them"
            )
        return live

    def files_since(self, base: int, head: SnapshotInfo) -> set[str]:
        """Names of all data files begun at ``base`` or later that retained snapshots up to ``head`` need.

        Others may be among them. With ``base=0`` these are all files that retained snapshots need.
        """
        first = max(base + 1, head.oldest, 1)
        needed: set[str] = set()
        if first <= head.id and base < head.oldest:
            needed |= self.live(self._info(first)).keys()
        for number in range(first, head.id + 1):
            needed |= {entry.file for entry in self.delta(self._info(number)).added}
        return needed

    def files(self, info: SnapshotInfo) -> FileSet:
        """Live files of a snapshot by bucket and run."""
        found = self._remembered(self._files, info.id)
        if found is None:
            live, before = self.live(info), self._remembered(self._files, info.id - 1)
            if before is None:
                found = FileSet.of(live.values())
            else:
                delta = self.delta(info)
                found = before.after(delta.added, delta.removed)
            self._remember(self._files, info.id, found)
        return found

    def _reading(self, info: SnapshotInfo, read: Callable[[], _T]) -> _T:
        try:
            return read()
        except FileNotFoundError as cause:
            if not self.is_readable(info):
                raise self.expired(info.id, self.latest()) from cause
            raise CorruptTableError(
                f"manifest {cause.filename!r} of snapshot {info.id} is missing; restore it from a copy"
            ) from cause

    def forget(self, id: int) -> None:
        """Drop what is remembered of a snapshot that turned out not to be one."""
        super().forget(id)
        with self._lock:
            for cache in (self._live, self._files, self._deltas):
                cache.pop(id, None)


_shared: LRUCache[tuple[str, str], History] = LRUCache(_MAX_TABLES)
_shared_lock: Any = threading.Lock()
