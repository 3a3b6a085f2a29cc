"""What one snapshot file says (pure): a published state of the table, and what led to it.

A snapshot names manifests, which name data files. It also remembers, for ever, the last transaction
of each writer, so that a replayed commit is recognised however long ago the first one was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, Literal, Self
from weakref import WeakValueDictionary

from upsert.codec import MAY_BE_MISSING, Jsonable, written_with
from upsert.errors import CorruptTableError
from upsert.store import paths
from upsert.store.checksums import FORMAT_OF_SNAPSHOTS, content_of, parse_versioned, subject_of
from upsert.store.metadata.partition_order import Ends, Values, key_of
from upsert.store.metadata.stands_for import Refresh
from upsert.store.paths import Partition

Kind = Literal["append", "overwrite", "delete", "compact", "expire", "clean", "alter"]


@dataclass(frozen=True)
class ManifestRef(Jsonable):
    """A manifest: its file name, how many entries it has, and the snapshot that published it.

    Added files without a sequence of their own get ``sequence``: a committer that loses a race
    for an id need not write its manifest again. ``checksum`` is that of its bytes; 0 where an older release
    has written the snapshot that names it. ``first`` and ``last`` are the values of the partitions between
    which its entries lie, in the order of ``partition_order``, and ``removed`` is how many of them are
    removals; where ``first`` is empty neither is known. ``part`` is above 0 where the manifest goes on with
    what the one before it in the snapshot has begun: a fold that is sorted by partition.
    """

    name: str
    entries: int
    sequence: int
    checksum: int = field(default=0, metadata=MAY_BE_MISSING)
    first: Values = field(default=(), metadata=written_with("first"))
    last: Values = field(default=(), metadata=written_with("first"))
    removed: int = field(default=0, metadata=written_with("first"))
    part: int = field(default=0, metadata=written_with("part"))

    def to_json(self) -> dict[str, Any]:
        """As of `Jsonable`; made once, for each later snapshot says it again."""
        return self._said

    @cached_property
    def _said(self) -> dict[str, Any]:
        return super().to_json()

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The same object for all snapshots that name it: a process may remember thousands of them."""
        if (found := _known.get(said := repr(value))) is None:
            found = super().from_json(value)
            found._check()
            _known[said] = found
        return found

    def _check(self) -> None:
        """Refuse what cannot be."""
        for number in (self.entries, self.sequence, self.checksum, self.removed, self.part):
            if number < 0:
                raise ValueError(f"{number} is no integer of at least 0")
        if not paths.is_manifest(self.name):
            raise ValueError(f"{self.name!r} is no name of a manifest")
        if self.removed > self.entries:
            raise ValueError(f"{self.name!r} has {self.removed} removals, of {self.entries} entries")
        if len(self.first) != len(self.last) or key_of(self.first) > key_of(self.last):
            raise ValueError(f"{self.name!r} has partitions from {self.first} to {self.last}")

    @property
    def ends(self) -> Ends | None:
        """The first and the last partition of its entries; None if they are not known."""
        return (self.first, self.last) if self.first else None


_known: Final[WeakValueDictionary[str, Any]] = WeakValueDictionary()


@dataclass(frozen=True)
class SnapshotInfo(Jsonable):
    """One published state of a table, without its rows; its text leaves out what only the store needs.

    ``data_version`` is the id of the newest snapshot up to this one that changed rows; compaction,
    expiry, clean-up and commits that only record a transaction keep their parent's. ``oldest`` is the
    earliest id that may be read, ``fence`` the lowest base a committer may have; both only grow.
    ``definition`` is the version of the table's definition that holds from this snapshot on.
    ``tracked`` says whether its changes show in change streams, ``untracked`` of which partitions they do
    not. ``rows`` counts stored rows of all live files, so a key that was updated counts once per file.
    ``states`` counts the commits up to this one that changed rows, ``last_untracked`` is the id of the newest
    of them that does not show as a whole (0: none). ``definition_checksum`` is that of what the definition
    says (0: an older release has written the snapshot). ``watermark`` is the newest value that the column of
    WATERMARK has had, see ``event_time``; None if that is not known, or below 0. ``base_versions`` are the
    snapshots of other tables that a materialized view stands for, by database and name; None of a table.
    ``refresh`` is how the newest rows of such a view were computed. ``conflicts`` counts the attempts
    that lost the race for an id to another writer and were made again, of all commits up to this one.
    ``base_uuids`` are the identities of the ``base_versions``, by the same names.
    ``data_uuid`` is the ``uuid`` of the snapshot that ``data_version`` names, where that is another one;
    empty where an older release has written the snapshots since then.
    """

    id: int
    uuid: str = field(repr=False)
    parent: str | None = field(repr=False)
    kind: Kind
    time_ms: int
    data_version: int
    tracked: bool
    writers: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    watermark: int | None = None
    log_offsets: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    manifests: tuple[ManifestRef, ...] = field(default=(), repr=False)
    delta: ManifestRef | None = field(default=None, repr=False)
    oldest: int = field(default=0, repr=False)
    fence: int = field(default=0, repr=False)
    files: int = 0
    rows: int = 0
    delta_rows: int = 0
    states: int = field(default=0, repr=False)
    last_untracked: int = field(default=0, repr=False)
    definition: int = 0
    untracked: tuple[Partition, ...] = ()
    definition_checksum: int = field(default=0, repr=False, metadata=MAY_BE_MISSING)
    base_versions: Mapping[str, int] | None = field(default=None, metadata=written_with("base_versions"))
    refresh: Refresh | None = field(default=None, repr=False, metadata=written_with("refresh"))
    conflicts: int = field(default=0, repr=False, metadata=written_with("conflicts"))
    data_uuid: str = field(default="", repr=False, metadata=written_with("data_uuid"))
    base_uuids: Mapping[str, str] | None = field(
        default=None, repr=False, metadata=written_with("base_uuids")
    )

    def __getstate__(self) -> dict[str, Any]:
        """For another process; Python pickles no read-only view of a dict."""
        return {**vars(self), "writers": dict(self.writers), "log_offsets": dict(self.log_offsets)}

    @property
    def changes_rows(self) -> bool:
        """Whether this snapshot holds other rows than its parent."""
        return self.data_version == self.id and self.id > 0

    @property
    def identity(self) -> str:
        """What tells its rows from those of the same number in another history; empty if not known."""
        return self.uuid if self.changes_rows else self.data_uuid

    def has_rows_of(self, id: int) -> bool:
        """Whether the table had these rows at snapshot ``id`` of the history too, this one or one before."""
        return self.data_version <= id <= self.id

    @property
    def is_shown(self) -> bool:
        """Whether change streams show all of its changes."""
        return self.tracked and not self.untracked

    def __post_init__(self) -> None:
        """Refuse what cannot be: a snapshot speaks of itself and of what was before it."""
        numbers = vars(self).values()
        named = (self.writers, self.log_offsets, self.base_versions or {})
        for number in (*numbers, *(number for each in named for number in each.values())):
            if isinstance(number, int) and number < 0:
                raise ValueError(f"{number} is no integer of at least 0")
        for name in ("oldest", "fence", "data_version", "last_untracked", "states"):
            if (number := getattr(self, name)) > self.id:
                raise ValueError(f"{name!r} is {number}, ahead of snapshot {self.id}")
        if self.delta_rows > self.rows:
            raise ValueError(f"'delta_rows' is {self.delta_rows}, of {self.rows} rows")
        for ref in refs_of(self):
            if ref.sequence > self.id:
                raise ValueError(f"{ref.name!r} is of snapshot {ref.sequence}, ahead of snapshot {self.id}")
        for partition in self.log_offsets:
            if not partition.isdecimal():
                raise ValueError(f"{partition!r} is no partition of a log")

    def content(self, uuid: str) -> bytes:
        """The content of the snapshot's file, for the table with this uuid."""
        value = {"format": FORMAT_OF_SNAPSHOTS, **self.to_json()}
        return content_of(value, subject_of(uuid, paths.snapshot_file(self.id)))


def refs_of(info: SnapshotInfo) -> list[ManifestRef]:
    """All manifests that a snapshot needs."""
    return [*info.manifests, *([info.delta] if info.delta else [])]


EMPTY: Final = SnapshotInfo(0, "", None, "append", time_ms=0, data_version=0, tracked=True)
"""The table before its first commit."""


def parsed(content: bytes, where: str, uuid: str, id: int) -> SnapshotInfo:
    """The snapshot whose file has this content, written for the table and the file's name that are given."""
    value = parse_versioned(content, where, subject_of(uuid, paths.snapshot_file(id)))
    try:
        found = SnapshotInfo.from_json(value)
    except (KeyError, TypeError, ValueError) as cause:
        raise CorruptTableError(
            f"{where}: a snapshot must have valid fields, got {cause!r}; restore the file"
        ) from cause
    if found.id != id:
        raise CorruptTableError(
            f"{where}: the file must hold snapshot {id}, got snapshot {found.id}; restore the file"
        )
    return found
