"""All that a table's folder says of its history, read once and whatever its condition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Self, TypeVar

from upsert.errors import ConfigurationError, CorruptTableError, StorageError
from upsert.store import paths
from upsert.store.metadata import tag_file
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.metadata.history import History
from upsert.store.metadata.manifest import Manifest, read_manifest
from upsert.store.metadata.snapshot import ManifestRef, SnapshotInfo, refs_of
from upsert.store.metadata.tag_file import Tag
from upsert.store.retention import consumers
from upsert.store.retention.consumers import Consumer
from upsert.store.storage import storage_of

K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True)
class Published:
    """A snapshot whose file can be read, and what its own commit did; None if that cannot be read."""

    info: SnapshotInfo
    name: str
    delta: Manifest | None


@dataclass(frozen=True)
class Moment:
    """A snapshot on its way through a history, and what its commit did to the files before it.

    Where the way begins there is none ``before``, ``live`` are its own files, and ``delta`` is nothing.
    ``live`` changes as the way goes on.
    """

    before: SnapshotInfo | None
    live: Mapping[str, FileEntry]
    one: Published
    delta: Manifest


@dataclass
class DiskState:
    """What was found, by a history that remembers nothing from before; what cannot be read, with the reason.

    Attributes:
        published: the retained snapshots that can be read, oldest first; ``head`` is the latest of all.
        expired: ids below the boundary whose files exist.
        tagged: the snapshots of tags that have expired.
        unread: files and folders that the disk or the store did not give: nothing says that they are damaged.
        misfits: data files that are not what was written, or cannot be opened; found by the rules of data.
    """

    history: History
    now_ms: int
    head: SnapshotInfo | None = None
    published: list[Published] = field(default_factory=list)
    unreadable: dict[int, str] = field(default_factory=dict)
    expired: list[int] = field(default_factory=list)
    bad_manifests: dict[str, str] = field(default_factory=dict)
    tags: list[Tag] = field(default_factory=list)
    tagged: list[Published] = field(default_factory=list)
    bad_tags: dict[str, str] = field(default_factory=dict)
    consumers: list[Consumer] = field(default_factory=list)
    bad_consumers: dict[str, str] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    misfits: set[str] = field(default_factory=set)
    _manifests: dict[str, Manifest] = field(default_factory=dict)

    @classmethod
    def read(cls, history: History, now_ms: int) -> Self:
        """Look at the table in the history's folder."""
        state = cls(history, now_ms)
        with suppress(CorruptTableError, StorageError):  # what cannot be read is found below, one by one
            history.latest()  # files are read in the form of the newest definition
        state._read_snapshots()
        state._read_tags()
        folder = paths.CONSUMER_FOLDER
        for name in state._listed(folder, lambda: paths.named_files(history.root, folder, "consumer-")):
            read = partial(consumers.read, history.root, history.uuid, name)
            found = state._tried(paths.consumer_file(name), read, state.bad_consumers, name)
            state.consumers += [found] if found else []
        return state

    def _listed(self, folder: str, ask: Callable[[], list[T]]) -> list[T]:
        """What lies in a folder; nothing if it cannot be listed, which is noted."""
        try:
            return ask()
        except StorageError as reason:
            self.unread[folder] = str(reason)
            return []

    def _tried(self, file: str, read: Callable[[], T | None], bad: dict[K, str], key: K) -> T | None:
        """What a file says; None if it says nothing, which is noted in ``unread`` or ``bad``."""
        try:
            return read()
        except StorageError as reason:
            self.unread[file] = str(reason)
        except FileNotFoundError:
            bad[key] = "it is missing"
        except (ConfigurationError, CorruptTableError) as reason:
            bad[key] = str(reason)
        return None

    def _read_snapshots(self) -> None:
        ids = self._listed(paths.SNAPSHOT_FOLDER, self.history.listed_ids)
        infos: dict[int, SnapshotInfo] = {}
        for id in ids:
            read = partial(self.history.content, id)
            if info := self._tried(paths.snapshot_file(id), read, self.unreadable, id):
                infos[id] = info
        if not ids or ids[-1] not in infos:
            return
        self.head = infos[ids[-1]]
        first = max(self.head.oldest, 1)
        self.expired = [id for id in ids if id < first]
        self.unreadable = {id: reason for id, reason in self.unreadable.items() if id >= first}
        for id in range(first, self.head.id + 1):
            if id in infos:
                self.published.append(self._published(infos[id], f"snapshot {id}"))
            elif paths.snapshot_file(id) not in self.unread:
                self.unreadable.setdefault(id, "its file is missing")

    def _read_tags(self) -> None:
        oldest = self.head.oldest if self.head else 0
        for name in self._listed(paths.TAG_FOLDER, lambda: tag_file.names(self.history.root)):
            read = partial(tag_file.read, self.history.root, self.history.uuid, name)
            if found := self._tried(paths.tag_file(name), read, self.bad_tags, name):
                self.tags.append(found)
                if found.snapshot.id < oldest:
                    self.tagged.append(self._published(found.snapshot, f"tag {name!r}"))

    def _published(self, info: SnapshotInfo, name: str) -> Published:
        for ref in info.manifests:
            self.manifest_of(ref)
        return Published(info, name, self.manifest_of(info.delta) if info.delta else Manifest((), ()))

    def manifest_of(self, ref: ManifestRef) -> Manifest | None:
        """What a manifest says; None if it cannot be read."""
        if not any(ref.name in known for known in (self._manifests, self.bad_manifests, self.unread)):
            read = partial(read_manifest, self.history.root, ref)
            if (found := self._tried(ref.name, read, self.bad_manifests, ref.name)) is not None:
                self._manifests[ref.name] = found
        return self._manifests.get(ref.name)

    def files_of(self, info: SnapshotInfo) -> dict[str, FileEntry] | None:
        """Live files of a snapshot by its own manifests; None if one cannot be read."""
        live: dict[str, FileEntry] = {}
        for ref in info.manifests:
            if (found := self.manifest_of(ref)) is None:
                return None
            _apply(live, found)
        return live

    def walk(self) -> Iterator[Moment]:
        """Through the retained snapshots, oldest first, reread after each gap; then the tagged ones."""
        live: dict[str, FileEntry] | None = None
        before: SnapshotInfo | None = None
        for one in self.published:
            goes_on = before is not None and one.info.id == before.id + 1 and one.delta is not None
            if live is not None and goes_on and one.delta is not None:
                yield Moment(before, live, one, one.delta)
                _apply(live, one.delta)
            elif (live := self.files_of(one.info)) is not None:
                yield Moment(None, live, one, Manifest((), ()))
            before = one.info
        for one in self.tagged:
            if (live := self.files_of(one.info)) is not None:
                yield Moment(None, live, one, Manifest((), ()))

    @cached_property
    def entries(self) -> list[FileEntry]:
        """All data files that a retained or tagged snapshot needs, each once."""
        found: dict[str, FileEntry] = {}
        for moment in self.walk():
            new = moment.live.values() if moment.before is None else moment.delta.added
            found |= {entry.file: entry for entry in new}
        return [found[name] for name in sorted(found)]

    @property
    def is_partial(self) -> bool:
        """Whether something could not be read, so that it is not known what is needed."""
        return bool(self.unreadable or self.bad_manifests or self.bad_tags or self.unread)

    @cached_property
    def needed(self) -> set[str]:
        """Names of the files that retained and tagged snapshots need."""
        found = {entry.file for entry in self.entries}
        found |= {entry.file for one in self.published if one.delta for entry in one.delta.added}
        manifests = {ref.name for one in (*self.published, *self.tagged) for ref in refs_of(one.info)}
        return {*found, *(paths.index_file(name) for name in found), *manifests}

    def size_of(self, name: str) -> int | None:
        """Size of a file in bytes; None if there is none."""
        found = storage_of(self.history.root).stat(paths.resolve(self.history.root, name))
        return None if found is None else found.size


def _apply(live: dict[str, FileEntry], delta: Manifest) -> None:
    """``manifest.apply``, but what cannot be removed is passed over: a rule of its own says so."""
    for entry in delta.removed:
        live.pop(entry.file, None)
    for entry in delta.added:
        live[entry.file] = entry
