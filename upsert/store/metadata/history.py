"""The published snapshots of one table: which is the latest, what each says, and the files of each.

Neither a snapshot nor a manifest ever changes, so what was read once is remembered for the life of the
process; only "which is the latest" is asked of the disk each time. The name of the latest snapshot is found
by stepping on from the last known one. That is right as long as the known one still exists, for expiry
removes snapshot files in ascending order: so if it is there, none after it has gone. Otherwise the folder
is listed. If it shows that the known one is another now, or that it was to come yet, then the folder was
replaced by an older copy of the table: ids are given again there, and all that was remembered is forgotten.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from cachetools import LRUCache

from upsert.errors import ConfigurationError, CorruptTableError, SnapshotExpiredError, TableNotFoundError
from upsert.store import paths
from upsert.store.kept import Kept
from upsert.store.metadata import file_set, table_file, tag_file
from upsert.store.metadata.definition import Definition, has_same_values
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.metadata.file_set import FileSet, Manifests, OpenManifest, StoredFiles
from upsert.store.metadata.looks import looks
from upsert.store.metadata.manifest import Manifest, after, apply, read_manifest, read_manifests, read_rows
from upsert.store.metadata.shared_mapping import SharedMapping
from upsert.store.metadata.snapshot import EMPTY, ManifestRef, SnapshotInfo, parsed
from upsert.store.metadata.table_file import TableFile
from upsert.store.metadata.tag_file import Tag
from upsert.store.rows.layout import Layout
from upsert.store.storage import read_each, storage_of

_T = TypeVar("_T")
_K = TypeVar("_K", bound=Hashable)

_OTHER_STATE: Final = "choose one of them, or a snapshot id; a time is written TIMESTAMP '…'"
_MAX_INFOS: Final = 4_096
"""Of so many snapshots what their files say is remembered, of fewer if these name many writers."""
_WRITERS: Final = 32
"""So many writers of a snapshot take as much as all else that its file says."""
_MAX_FILE_SETS: Final = 64
_MAX_ENTRIES: Final = 100_000
"""Of so many files the entries of manifests are remembered, each of which counts as some more."""
_OF_MANIFEST: Final = 200
_IDS_TOGETHER: Final = 256
"""Of so many snapshots files are read together."""
_MAX_TABLES: Final = 256
_MAX_STEPS: Final = 256
"""A reader that is further behind lists the folder instead of stepping on."""
_MOST_LISTED: Final = 1_000
"""Of a table with more snapshots each expiry looks at those before the boundary alone."""

_LOCK: Final = threading.RLock()
"""Held for a moment while what is remembered changes. A fork waits for that: a child finds it whole, and the
lock free."""
os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


class History:
    """The snapshots of a table and their files; threads may share it.

    ``folder`` has its ``table.json``, ``root`` all its other files. ``definition`` is what the table is, as
    of the last look at its latest snapshot in this process; ``indexed`` the version of it of which all files
    have been seen to have all indexes, if any.
    """

    def __init__(self, file: TableFile) -> None:
        self.folder = file.folder
        self.root = file.root
        self.uuid = file.uuid
        self.definition = file.definition
        self.indexed: int | None = None
        self._storage = storage_of(file.root)
        self._definitions = {file.definition.version: file.definition}
        self._checked: Hashable = None
        self._known: tuple[int, bytes] | None = None
        self._seen: SnapshotInfo | None = None
        self._infos: LRUCache[int, SnapshotInfo] = LRUCache(_MAX_INFOS, _size)
        # by the uuids of snapshots, whose ids may come again
        self._live: LRUCache[str | None, SharedMapping[str, FileEntry]] = LRUCache(_MAX_FILE_SETS)
        self._files: LRUCache[str | None, FileSet] = LRUCache(_MAX_FILE_SETS)
        self._row_counts: LRUCache[str, int] = LRUCache(_MAX_INFOS)
        self._manifests: LRUCache[ManifestRef, Manifest] = LRUCache(_MAX_ENTRIES, _weight)
        # manifests of which file sets have columns: those of several snapshots share them
        self._opened: WeakValueDictionary[ManifestRef, OpenManifest] = WeakValueDictionary()

    @classmethod
    def shared(cls, file: TableFile) -> History:
        """The process-wide history of a table; one that replaces it in its folder has another uuid."""
        return _shared.made((file.folder, file.uuid), lambda: cls(file))

    @classmethod
    def opened(cls, folder: str, uuid: str) -> History:
        """The process-wide history of the table in a folder, which must still be the one with this uuid."""
        file = table_file.read(folder)
        file.check_is(uuid)
        history = cls.shared(file)
        history.latest()
        return history

    def __reduce__(self) -> tuple[Callable[..., History], tuple[str, str]]:
        """Another process opens the table; what this one remembers of it stays here."""
        return History.opened, (self.folder, self.uuid)

    def reread(self) -> History:
        """The same history, with nothing remembered."""
        return History(table_file.read(self.folder))

    @property
    def layout(self) -> Layout:
        """The physical form that ``definition`` means."""
        return self.definition.layout

    def definition_at(self, version: int) -> Definition:
        """One version of the table's definition; read once in the life of a process."""
        if version not in self._definitions:
            self._definitions[version] = table_file.read_definition(self.root, self.uuid, version)
        return self._definitions[version]

    def latest(self, *, has_just_read_table: bool = False) -> SnapshotInfo:
        """The latest snapshot at this moment; ``EMPTY`` before the first commit.

        From here on ``definition`` is the one that it names. ``has_just_read_table`` says that the caller
        knows that the table is there; else it may be a `TableNotFoundError` that it is gone.
        """
        if not has_just_read_table:
            self.check_identity()
        try:
            info = self._latest()
        except CorruptTableError:
            self.check_identity()  # what was read may be another table's
            raise
        self._look_at(info)
        if (seen := looks()) is not None:
            seen.note(self, True)
        return info

    def looked(self, *, has_just_read_table: bool = False) -> SnapshotInfo:
        """``latest``; within ``looking_once`` what this thread has seen a moment ago."""
        seen = looks()
        if seen is not None and seen.recent(self) and self._seen is not None:
            return self._seen
        return self.latest(has_just_read_table=True) if has_just_read_table else self.latest()

    def looked_before_commit(self) -> SnapshotInfo:
        """``latest``; of a table in an object store as ``looked``.

        There a table that was dropped and created again has its files in another folder; a look is three
        requests; and a commit on a snapshot that is not the latest any more looks when it has lost.
        """
        return self.latest() if self._storage.is_local else self.looked()

    def _look_at(self, info: SnapshotInfo) -> None:
        if info.definition > self.definition.version:
            self.definition = self.definition_at(info.definition)
        if info.definition == self.definition.version:
            self._check_definition(info)
        self._seen = info

    @property
    def seen(self) -> SnapshotInfo:
        """The latest snapshot as of the last look of this process; it looks if there was none."""
        return self._seen or self.latest()

    def seen_just_now(self) -> SnapshotInfo:
        """The latest snapshot, for an operation that has looked when it began.

        In an object store, where a look is three requests, it does not look again: who builds on a snapshot
        that is not the latest any more loses the race for the next id, and looks then.
        """
        return self.looked() if self._storage.is_local else self.seen

    def seen_from(self, id: int) -> SnapshotInfo:
        """``seen``, after another look if that is older than a snapshot which must be there."""
        seen = self.seen
        return seen if id <= seen.id else self.latest()

    def has_successor(self, id: int) -> bool:
        """Whether there is a snapshot after this one; one request at most.

        If not, the table may still have been dropped, or have moved on so far that both have expired.
        """
        return self.seen.id > id or self._storage.exists(self._path(id + 1))

    def remember(self, id: int, content: bytes, delta: Manifest) -> None:
        """A snapshot that this process has published, and its own manifest: neither is read again."""
        info = parsed(content, self._path(id), self.uuid, id)
        with _LOCK:
            self._infos[id] = info
            if info.delta is not None:
                _keep(self._manifests, info.delta, delta)
            is_newest = self._known is None or self._known[0] < id
            if is_newest:
                self._known = id, content
        if is_newest:
            self._look_at(info)

    def _check_definition(self, info: SnapshotInfo) -> None:
        stated, found = info.definition_checksum, self.definition.checksum
        if stated and found != stated:
            path = os.path.join(self.folder, paths.TABLE_FILE)
            if info.definition:
                path = os.path.join(self.root, paths.definition_file(info.definition))
            raise CorruptTableError(
                f"{path}: the definition must have the checksum that snapshot {info.id} names, "
                f"{stated:016x}, got {found:016x}; restore the file from a copy"
            )

    def _latest(self) -> SnapshotInfo:
        while True:
            newest, content = self._newest()
            if newest == 0:
                return EMPTY
            # between listing the names and reading the file it may have expired: look again
            if content is None:
                content = self._content(newest)
            if content is not None:
                self._known = (newest, content)
                make = partial(parsed, content, self._path(newest), self.uuid, newest)
                return self._once(self._infos, newest, make)

    def check_identity(self) -> None:
        """Refuse a table that was dropped and created again: it would take these files for its own."""
        path = os.path.join(self.folder, paths.TABLE_FILE)
        if (found := self._storage.stat(path)) is None:
            raise TableNotFoundError(f"no table lies at {self.folder!r}; was it dropped?")
        if found.version != self._checked:
            table_file.read(self.folder).check_is(self.uuid)
            self._checked = found.version

    def publishing(self, path: str) -> AbstractContextManager[None]:
        """A block that publishes a file; in another table, created in this one's place, it never appears."""
        return self._storage.publishing_into(os.path.dirname(path), self.check_identity)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A block that writes into the table's folder; a ``TableNotFoundError`` if that goes meanwhile."""
        try:
            yield
        except FileNotFoundError:
            self.check_identity()
            raise

    def _newest(self) -> tuple[int, bytes | None]:
        """Id of the latest snapshot, 0 for none, and its content if that was read just now."""
        known = self._known
        if known is None:
            return max(self.listed_ids(), default=0), None
        newest, content = known
        while newest < known[0] + _MAX_STEPS and (following := self._content(newest + 1)) is not None:
            newest, content = newest + 1, following
        # compared after the steps, and by content: a stalled writer may have put its own file there
        now = self._content(known[0])
        if newest < known[0] + _MAX_STEPS and now == known[1]:
            return newest, content
        newest = max(self.listed_ids(), default=0)
        if newest < known[0] or now not in (None, known[1]):
            self.forget()
        return newest, None

    def forget(self) -> None:
        """Remember nothing of what ids and definitions meant: they mean something else now.

        The folder was replaced by an older copy, or a snapshot of this process turned out not to be one.
        """
        file = table_file.read(self.folder)
        file.check_is(self.uuid)
        with _LOCK:
            self._infos.clear()
            self._definitions = {file.definition.version: file.definition}
            self.definition = file.definition
            self._known = self._seen = self.indexed = None

    @property
    def is_there(self) -> bool:
        """Whether the folder of the snapshots is."""
        try:
            self.listed_ids()
        except TableNotFoundError:
            return False
        return True

    def listed_ids(self) -> list[int]:
        """Ids of all snapshot files in the folder, ascending; also of ones below the boundary."""
        try:
            names = self._storage.names(os.path.join(self.root, paths.SNAPSHOT_FOLDER))
        except FileNotFoundError as cause:
            raise TableNotFoundError(f"no table lies at {self.root!r}; was it dropped?") from cause
        return sorted(found for name in names if (found := paths.snapshot_id(name)) is not None)

    def expired_ids(self, head: SnapshotInfo) -> list[int]:
        """Ids below the boundary of which the files are there, ascending.

        Where very many snapshots are retained the folder is not listed for this. Expiry deletes in ascending
        order, so what it has left lies without a gap before the boundary; what a stalled writer has put
        further below is left to ``clean``.
        """
        if head.id - head.oldest < _MOST_LISTED:
            return [number for number in self.listed_ids() if number < head.oldest]
        first = head.oldest
        while first > 1 and self._storage.exists(self._path(first - 1)):
            first -= 1
        return list(range(first, head.oldest))

    def info(self, id: int, head: SnapshotInfo | None = None) -> SnapshotInfo:
        """What a retained snapshot says, or one that a tag keeps; id 0 is the table before its first commit.

        ``head`` is the latest snapshot, if the caller has just asked for it.
        """
        if id == 0:
            return EMPTY
        head = head or self._looked_for(id)
        self._check_id(id, head)
        if id < head.oldest:
            return self._tagged(id, head)
        return self._info(id)

    def infos(self, first: int, until: int, head: SnapshotInfo) -> list[SnapshotInfo]:
        """``info`` of each id from ``first`` to ``until``; of those not remembered many are read together."""
        return [*self.infos_in_turn(first, until, head)]

    def infos_in_turn(self, first: int, until: int, head: SnapshotInfo) -> Iterator[SnapshotInfo]:
        """``infos``, of which no more are read than are asked for, but for some that are read together."""
        return (info for low, high in _ranges(first, until) for info in self._infos_of(low, high, head))

    def _infos_of(self, first: int, until: int, head: SnapshotInfo) -> list[SnapshotInfo]:
        ids = range(max(first, head.oldest), until + 1)
        unread = [id for id in ids if self._remembered(self._infos, id) is None]
        with suppress(FileNotFoundError):  # `info` says which one is missing, and why
            contents = read_each(self._storage, [self._path(id) for id in unread])
            for id, content in zip(unread, contents, strict=True):
                self._once(self._infos, id, partial(parsed, content, self._path(id), self.uuid, id))
        return [self.info(id, head) for id in range(first, until + 1)]

    def since(self, base: int, head: SnapshotInfo) -> list[SnapshotInfo]:
        """The snapshots after ``base`` up to ``head``; a `SnapshotExpiredError` if one of them has expired.

        A tag keeps the rows of an expired one, but does not say what its commit has changed.
        """
        if base + 1 < head.oldest:
            raise self.expired(base + 1, head)
        return self.infos(base + 1, head.id, head)

    def _tagged(self, id: int, head: SnapshotInfo) -> SnapshotInfo:
        """An expired snapshot that a tag keeps, with the rows of snapshot ``id``."""
        for tag in tag_file.read_all(self.root, self.uuid):
            if tag.snapshot.has_rows_of(id):
                return tag.snapshot
        raise self.expired(id, head)

    def tag(self, name: str, instead: str = _OTHER_STATE) -> Tag:
        """The tag of a name; if there is none, a ``ConfigurationError`` that says what to do ``instead``."""
        if (found := tag_file.read(self.root, self.uuid, name)) is None:
            known = ", ".join(tag_file.names(self.root)) or "none"
            raise ConfigurationError(
                f"table {self.root!r}: there must be a tag {name!r}, tags are: {known}; {instead}"
            )
        return found

    def is_readable(self, info: SnapshotInfo) -> bool:
        """Whether a snapshot that was readable still is: it has not expired, or a tag keeps it."""
        if info.id >= self.latest().oldest:
            return True
        return any(tag.snapshot.uuid == info.uuid for tag in tag_file.read_all(self.root, self.uuid))

    def _info(self, id: int) -> SnapshotInfo:
        return self._once(self._infos, id, partial(self._read_info, id))

    def _read_info(self, id: int) -> SnapshotInfo:
        if (found := self.content(id)) is not None:
            return found
        head = self.latest()
        if id < head.oldest:
            raise self.expired(id, head)
        raise CorruptTableError(f"snapshot file {self._path(id)!r} is missing; restore it from a copy")

    def equal_to(self, id: int, head: SnapshotInfo | None = None) -> SnapshotInfo:
        """The newest retained snapshot with the rows of snapshot ``id``: it has the fewest files to read.

        Its rows lie in the buckets and in the order in which they lay then, see `lie_alike`, so a reader that
        has got through some of them goes on with the others.
        """
        head = head or self._looked_for(id)
        if id == 0:
            return EMPTY
        self._check_id(id, head)
        if head.data_version <= id and (head.id == id or not head.definition):
            return head
        found = self._info(max(id, head.oldest))
        if found.data_version > id:
            return self._tagged(id, head)
        if head.data_version <= id and self.lie_alike(found, head):
            return head
        while found.id < head.id:
            following = self._info(found.id + 1)
            if following.data_version != found.data_version or not self.lie_alike(found, following):
                break
            found = following
        return found

    def buckets_of(self, info: SnapshotInfo) -> int:
        """How many buckets each partition has in a snapshot."""
        return self.definition_at(info.definition).options.bucket

    def lie_alike(self, one: SnapshotInfo, other: SnapshotInfo) -> bool:
        """Whether a row that both have lies in the same bucket, by the same hash.

        Not so if ALTER TABLE has changed the number of buckets in between; or the columns of a table without
        primary key, whose rows are their own keys.
        """
        return self._place_alike(one.definition, other.definition)

    def _place_alike(self, one: int, other: int) -> bool:
        """Whether rows lie alike under two versions of the definition."""
        if one == other:
            return True
        old, new = map(self.definition_at, (one, other))
        if old.options.bucket != new.options.bucket:
            return False
        return not self.layout.is_counted or has_same_values(old.schema, new.schema)

    def may_have_moved(self, head: SnapshotInfo) -> bool:
        """Whether rows lie otherwise in a snapshot than they ever did before."""
        return not all(self._place_alike(version, head.definition) for version in range(head.definition))

    def identity_of(self, data_version: int) -> str | None:
        """The ``identity`` of a data version; empty if it is not known, None if the table has none such.

        The snapshots that are looked at are those that a reader of its rows looks at.
        """
        head = self.seen_from(data_version)
        if data_version > head.data_version:
            return None
        if data_version == head.data_version:
            return head.identity
        if data_version >= head.oldest:
            return self._info(data_version).identity
        oldest = self._info(head.oldest)
        return oldest.identity if oldest.data_version == data_version else ""

    def _check_id(self, id: int, head: SnapshotInfo) -> None:
        if not 0 < id <= head.id:
            raise ConfigurationError(
                f"table {self.root!r}: a snapshot id must be between 0 and the latest, {head.id}, got {id!r}"
            )

    def expired(self, id: int, head: SnapshotInfo) -> SnapshotExpiredError:
        """The error that says since when the table can be read."""
        earliest = self._info(head.oldest)
        at = datetime.fromtimestamp(earliest.time_ms / 1000, UTC).isoformat(timespec="milliseconds")
        return SnapshotExpiredError(
            f"table {self.root!r}: snapshot {id} has expired; the earliest that is left is {head.oldest} of "
            f"{at}, start from it or read the table again"
        )

    def retained(self, head: SnapshotInfo | None = None) -> tuple[SnapshotInfo, ...]:
        """All snapshots that may be read, oldest first; `SnapshotExpiredError` if one expired meanwhile."""
        head = head or self.looked()
        return tuple(self.infos(max(head.oldest, 1), head.id, head))

    def backwards(self, head: SnapshotInfo | None = None) -> Iterator[SnapshotInfo]:
        """``retained``, newest first, one at a time."""
        head = head or self.looked()
        return (self._info(number) for number in range(head.id, max(head.oldest, 1) - 1, -1))

    def first(self, is_true: Callable[[SnapshotInfo], bool], head: SnapshotInfo) -> int:
        """Id of the first retained snapshot up to ``head`` of which something is true, as of all that follow.

        The one after ``head`` if there is none. Few are read.
        """
        ids = range(max(head.oldest, 1), head.id + 1)
        return ids.start + bisect_left(ids, True, key=lambda id: is_true(self._info(id)))

    def at_time(self, time_ms: int) -> SnapshotInfo:
        """The newest snapshot that was published by a time; few are read, for times ascend.

        Raises:
            SnapshotExpiredError: it has expired.
        """
        head = self.looked()
        following = self.first(lambda info: info.time_ms > time_ms, head)
        if following > max(head.oldest, 1):
            return self._info(following - 1)
        if head.oldest <= 1:
            return EMPTY
        earliest = self._info(head.oldest)
        raise SnapshotExpiredError(
            f"table {paths.name_of(self.root)!r}: the state at {time_ms} ms has expired; the earliest "
            f"snapshot left is {earliest.id}, published at {earliest.time_ms} ms: ask for that time or a "
            "later one"
        )

    def _looked_for(self, id: int) -> SnapshotInfo:
        """``looked``, or the latest snapshot if that must be newer."""
        looked = self.looked()
        return looked if id <= looked.id else self.latest()

    def check_kept(self, head: SnapshotInfo) -> None:
        """Make sure that a boundary keeps the newest snapshot, before anything below it is deleted."""
        newest = head.id
        if not self._storage.exists(self._path(head.id)):
            newest = max(self.listed_ids(), default=head.id)
        if not head.oldest <= head.id <= newest:
            raise CorruptTableError(
                f"table {self.root!r}: the newest snapshot, {newest}, must be among what is kept, got "
                f"{head.oldest} to {head.id}; nothing was deleted, restore the files"
            )

    def content(self, id: int) -> SnapshotInfo | None:
        """The snapshot in the file of this id as it is on disk now, whether it may be read or not."""
        found = self._content(id)
        if found is not None and self._known == (id, found):
            return self._once(self._infos, id, partial(parsed, found, self._path(id), self.uuid, id))
        return None if found is None else parsed(found, self._path(id), self.uuid, id)

    def contents(self, ids: Sequence[int]) -> Iterator[SnapshotInfo | None]:
        """``content`` of each; many are read together."""
        for at in range(0, len(ids), _IDS_TOGETHER):
            some = ids[at : at + _IDS_TOGETHER]
            try:
                read = read_each(self._storage, [self._path(id) for id in some])
            except FileNotFoundError:
                yield from map(self.content, some)
            else:
                for id, found in zip(some, read, strict=True):
                    yield parsed(found, self._path(id), self.uuid, id)

    def _path(self, id: int) -> str:
        return _path_of(self.root, id)

    def _content(self, id: int) -> bytes | None:
        try:
            return self._storage.read(self._path(id))
        except FileNotFoundError:
            return None

    def _remembered(self, cache: LRUCache[_K, _T], key: _K) -> _T | None:
        with _LOCK:
            return cache.get(key)

    def _once(self, cache: LRUCache[_K, _T], key: _K, make: Callable[[], _T]) -> _T:
        """What a cache has under a key; made if it has nothing, by two threads at once if need be."""
        if (found := self._remembered(cache, key)) is None:
            found = make()
            with _LOCK:
                _keep(cache, key, found)
        return found

    def manifest(self, ref: ManifestRef) -> Manifest:
        """What a manifest says; ``FileNotFoundError`` as of ``read_manifest``."""
        return self._once(self._manifests, ref, partial(read_manifest, self.root, ref))

    def _manifests_of(self, refs: Sequence[ManifestRef]) -> list[Manifest]:
        """``manifest`` of each; those that are not remembered are read together."""
        found = {ref: self._remembered(self._manifests, ref) for ref in refs}
        unread = [ref for ref, known in found.items() if known is None]
        read = dict(zip(unread, read_manifests(self.root, unread), strict=True))
        with _LOCK:
            for ref, manifest in read.items():
                _keep(self._manifests, ref, manifest)
        return [found[ref] or read[ref] for ref in refs]

    def delta(self, info: SnapshotInfo) -> Manifest:
        """Files that a snapshot's own commit added and removed."""
        if info.delta is None:
            return Manifest((), ())
        return self._reading(info, partial(self.manifest, info.delta))

    def deltas(self, infos: Sequence[SnapshotInfo]) -> list[Manifest]:
        """``delta`` of each, read together."""
        try:
            return self._deltas_there(infos)
        except FileNotFoundError:
            return [self.delta(info) for info in infos]  # says of which snapshot, and why

    def deltas_left(self, infos: Sequence[SnapshotInfo]) -> Iterator[Manifest]:
        """``delta`` of snapshots that may have expired, many read together; nothing where it is gone."""
        for at in range(0, len(infos), _IDS_TOGETHER):
            some = infos[at : at + _IDS_TOGETHER]
            try:
                yield from self._deltas_there(some)
            except FileNotFoundError:
                yield from map(self._delta_left, some)

    def _delta_left(self, info: SnapshotInfo) -> Manifest:
        with suppress(FileNotFoundError):
            return self._deltas_there([info])[0]
        return Manifest((), ())

    def _deltas_there(self, infos: Sequence[SnapshotInfo]) -> list[Manifest]:
        refs = [info.delta for info in infos if info.delta is not None]
        found = dict(zip(refs, self._manifests_of(refs), strict=True))
        return [Manifest((), ()) if info.delta is None else found[info.delta] for info in infos]

    def live(self, info: SnapshotInfo) -> Mapping[str, FileEntry]:
        """Live files of a snapshot by name."""
        return self._once(self._live, info.uuid, lambda: self._reading(info, partial(self._load_live, info)))

    def _load_live(self, info: SnapshotInfo) -> SharedMapping[str, FileEntry]:
        if (parent := self._remembered(self._live, info.parent)) is not None:
            live = parent if info.delta is None else after(parent, self.manifest(info.delta))
        else:
            read: dict[str, FileEntry] = {}
            for manifest in self._manifests_of(info.manifests):
                apply(read, manifest)
            live = SharedMapping(read)
        self._check_count(info, len(live))
        return live

    def _check_count(self, info: SnapshotInfo, found: int) -> None:
        if found != info.files:
            raise CorruptTableError(
                f"table {self.root!r}: snapshot {info.id} must have {info.files} files, got {found} from its "
                "manifests; restore them"
            )

    def files_since(self, base: int, head: SnapshotInfo) -> set[str]:
        """Names of all data files begun at ``base`` or later that snapshots up to ``head``, or tags, need.

        Others may be among them. With ``base=0`` these are all files that these need.
        """
        first = max(base + 1, head.oldest, 1)
        needed: set[str] = set()
        if first <= head.id and base < head.oldest:
            needed |= self.live(self._info(first)).keys()
        for low, high in _ranges(first, head.id):
            for delta in self.deltas(self.infos(low, high, head)):
                needed |= {entry.file for entry in delta.added}
        for info in self.kept_by_tags(head):
            if info.id > base:
                needed |= self.live(info).keys()
        return needed

    def kept_by_tags(self, head: SnapshotInfo) -> list[SnapshotInfo]:
        """The snapshots that have expired in ``head`` and can be read by a tag."""
        # asked after the head: a snapshot that has expired in it was tagged before, or is not tagged
        tags = tag_file.read_all(self.root, self.uuid)
        return [tag.snapshot for tag in tags if tag.snapshot.id < head.oldest]

    def removed_since(self, base: int, head: SnapshotInfo) -> set[str]:
        """Names of the data files that retained snapshots after ``base`` up to ``head`` have removed."""
        ranges = _ranges(max(base + 1, head.oldest), head.id)
        deltas = (delta for ends in ranges for delta in self.deltas(self.infos(*ends, head)))
        return {entry.file for delta in deltas for entry in delta.removed}

    def files(self, info: SnapshotInfo) -> FileSet:
        """Live files of a snapshot by bucket and run."""
        return self._once(self._files, info.uuid, partial(self._load_files, info))

    def row_count(self, info: SnapshotInfo, count: Callable[[], int]) -> int:
        """How many rows a snapshot has; counted once, for that looks into all of its buckets."""
        return self._once(self._row_counts, info.uuid, count)

    def _load_files(self, info: SnapshotInfo) -> FileSet:
        before = self._remembered(self._files, info.parent)
        if before is not None and isinstance(before.groups, StoredFiles):
            delta = self.delta(info)
            try:
                found = before.after(delta.added, delta.removed)
            except SnapshotExpiredError:  # of the one before, which this one does not need
                return FileSet(StoredFiles(self._stored(info)))
            assert isinstance(found.groups, StoredFiles)
            return FileSet(found.groups.of(partial(self._stored, info)))
        if info.files >= file_set.FEWEST:
            return FileSet(StoredFiles(self._stored(info)))
        if before is None:
            return FileSet.of(self.live(info).values())
        if self._remembered(self._live, info.parent) is not None:
            self.live(info)  # checks the number of files
        delta = self.delta(info)
        return before.after(delta.added, delta.removed)

    def _stored(self, info: SnapshotInfo) -> Manifests:
        """The manifests of a snapshot, each of which is read when it is needed."""
        return Manifests(
            info.manifests,
            lambda ref: self._reading(info, partial(self._open, ref)),
            partial(self._check_count, info),
        )

    def _open(self, ref: ManifestRef) -> OpenManifest:
        if (found := self._opened.get(ref)) is None:
            found = self._opened[ref] = OpenManifest(read_rows(self.root, ref))
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


def _ranges(first: int, until: int) -> Iterator[tuple[int, int]]:
    """The ids from ``first`` to ``until`` in ranges, for which memory has room."""
    for low in range(first, until + 1, _IDS_TOGETHER):
        yield low, min(low + _IDS_TOGETHER - 1, until)


def _size(info: SnapshotInfo) -> int:
    """How many snapshots with few writers take as much; the newest one must find room."""
    return min(1 + len(info.writers) // _WRITERS, _MAX_INFOS // 4)


def _weight(manifest: Manifest) -> int:
    return _OF_MANIFEST + len(manifest.added) + len(manifest.removed)


def _keep(cache: LRUCache[_K, _T], key: _K, value: _T) -> None:
    with suppress(ValueError):  # it is larger than all that is remembered
        cache[key] = value


@lru_cache(_MAX_INFOS)
def _path_of(root: str, id: int) -> str:
    """Where a snapshot's file lies; each look at a table asks twice for the same ones."""
    return os.path.join(root, paths.snapshot_file(id))


_shared = Kept[tuple[str, str], History](lambda: LRUCache(_MAX_TABLES), is_inherited=True)
