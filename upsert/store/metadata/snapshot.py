"""What one snapshot file says (pure): a published state of the table, and what led to it.

A snapshot names manifests, which name data files. It also remembers, for ever, the last transaction
of each writer, so that a replayed commit is recognised however long ago the first one was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, cast, get_args

from upsert.errors import CorruptTableError
from upsert.store import paths
from upsert.store.checksums import content_of, parse_versioned, subject_of
from upsert.store.paths import Partition, partition_from_json

Kind = Literal["append", "overwrite", "delete", "compact", "expire", "clean", "alter"]


@dataclass(frozen=True)
class ManifestRef:
    """A manifest: its file name, how many entries it has, and the snapshot that published it.

    Added files without a sequence of their own get ``sequence``: a committer that loses a race
    for an id need not write its manifest again. ``checksum`` is that of its bytes; 0 where an older release
    has written the snapshot that names it.
    """

    name: str
    entries: int
    sequence: int
    checksum: int = 0


@dataclass(frozen=True)
class SnapshotInfo:
    """One published state of a table, without its rows.

    ``data_version`` is the id of the newest snapshot up to this one that changed rows; compaction,
    expiry, clean-up and commits that only record a transaction keep their parent's. ``oldest`` is the
    earliest id that may be read, ``fence`` the lowest base a committer may have; both only grow.
    ``definition`` is the version of the table's definition that holds from this snapshot on.
    ``tracked`` says whether its changes show in change streams, ``untracked`` of which partitions they do
    not. ``rows`` counts stored rows of all live files, so a key that was updated counts once per file.
    ``states`` counts the commits up to this one that changed rows, ``last_untracked`` is the id of the newest
    of them that does not show as a whole (0: none). ``definition_checksum`` is that of what the definition
    says (0: an older release has written the snapshot). ``watermark`` is the newest value that the column of
    WATERMARK has had, see ``event_time``; None if that is not known, or below 0.
    """

    id: int
    uuid: str
    parent: str | None
    kind: Kind
    time_ms: int
    data_version: int
    tracked: bool
    writers: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    watermark: int | None = None
    log_offsets: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    manifests: tuple[ManifestRef, ...] = ()
    delta: ManifestRef | None = None
    oldest: int = 0
    fence: int = 0
    files: int = 0
    rows: int = 0
    delta_rows: int = 0
    states: int = 0
    last_untracked: int = 0
    definition: int = 0
    untracked: tuple[Partition, ...] = ()
    definition_checksum: int = 0

    @property
    def changes_rows(self) -> bool:
        """Whether this snapshot holds other rows than its parent."""
        return self.data_version == self.id and self.id > 0

    @property
    def is_shown(self) -> bool:
        """Whether change streams show all of its changes."""
        return self.tracked and not self.untracked

    @property
    def value(self) -> dict[str, Any]:
        """What it says, as JSON values."""
        return {name: _plain(getattr(self, name)) for name in _FIELDS}

    def to_json(self, uuid: str) -> bytes:
        """The content of the snapshot's file, for the table with this uuid."""
        return content_of(self.value, subject_of(uuid, paths.snapshot_file(self.id)))


EMPTY: Final = SnapshotInfo(0, "", None, "append", time_ms=0, data_version=0, tracked=True)
"""The table before its first commit."""


def from_json(content: bytes, where: str, uuid: str, id: int) -> SnapshotInfo:
    """The snapshot whose file has this content.

    Args:
        content: the whole file.
        where: the file's path, for messages.
        uuid: of the table, which must be that of which the file was written.
        id: the id in the file's name, which must be the one inside.

    Raises:
        CorruptTableError: the content is no snapshot, is another one, or is of another format version.
    """
    value = parse_versioned(content, where, subject_of(uuid, paths.snapshot_file(id)))
    found = from_value(value, where)
    if found.id != id:
        raise CorruptTableError(
            f"{where}: the file must hold snapshot {id}, got snapshot {found.id}; restore the file"
        )
    return found


def from_value(value: Mapping[str, Any], where: str) -> SnapshotInfo:
    """The snapshot that JSON values say.

    Raises:
        CorruptTableError: they say none, or one that cannot be.
    """
    try:
        given = {name: value[name] for name in _FIELDS if name in value or name not in _NEWER}
        found = SnapshotInfo(**{name: _FIELDS[name](each) for name, each in given.items()})
        _check_possible(found)
    except (KeyError, TypeError, ValueError) as cause:
        raise CorruptTableError(
            f"{where}: a snapshot must have valid fields, got {cause!r}; restore the file"
        ) from cause
    return found


def _check_possible(info: SnapshotInfo) -> None:
    """A snapshot speaks of itself and of what was before it."""
    for name in ("oldest", "fence", "data_version", "last_untracked", "states"):
        if (number := getattr(info, name)) > info.id:
            raise ValueError(f"{name!r} is {number}, ahead of snapshot {info.id}")
    if info.delta_rows > info.rows:
        raise ValueError(f"'delta_rows' is {info.delta_rows}, of {info.rows} rows")
    for ref in refs_of(info):
        if ref.sequence > info.id:
            raise ValueError(f"{ref.name!r} is of snapshot {ref.sequence}, ahead of snapshot {info.id}")


def refs_of(info: SnapshotInfo) -> list[ManifestRef]:
    """All manifests that a snapshot needs."""
    return [*info.manifests, *([info.delta] if info.delta else [])]


def _plain(value: Any) -> Any:
    if isinstance(value, ManifestRef):
        names = ("name", "entries", "sequence", "checksum")
        return {name: getattr(value, name) for name in names}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def _integer(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no integer of at least 0")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _kind(value: Any) -> Kind:
    if value not in get_args(Kind):
        raise ValueError(f"{value!r} is none of {', '.join(get_args(Kind))}")
    return cast(Kind, value)


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is no object")
    return MappingProxyType(value)


def _writers(value: Any) -> Mapping[str, int]:
    return MappingProxyType({writer: _integer(last) for writer, last in _mapping(value).items()})


def _offsets(value: Any) -> Mapping[str, int]:
    for partition in _mapping(value):
        if not partition.isdecimal():
            raise ValueError(f"{partition!r} is no partition of a log")
    return _writers(value)


def _ref(value: Any) -> ManifestRef:
    fields = _mapping(value)
    entries, sequence = _integer(fields["entries"]), _integer(fields["sequence"])
    if not paths.is_manifest(name := _text(fields["name"])):
        raise ValueError(f"{name!r} is no name of a manifest")
    return ManifestRef(name, entries, sequence, _integer(fields.get("checksum", 0)))


_FIELDS: Final[dict[str, Any]] = {
    "id": _integer,
    "uuid": _text,
    "parent": lambda value: None if value is None else _text(value),
    "kind": _kind,
    "time_ms": _integer,
    "data_version": _integer,
    "tracked": _flag,
    "writers": _writers,
    "watermark": lambda value: None if value is None else _integer(value),
    "log_offsets": _offsets,
    "manifests": lambda value: tuple(_ref(item) for item in value),
    "delta": lambda value: None if value is None else _ref(value),
    "oldest": _integer,
    "fence": _integer,
    "files": _integer,
    "rows": _integer,
    "delta_rows": _integer,
    "states": _integer,
    "last_untracked": _integer,
    "definition": _integer,
    "untracked": lambda value: tuple(partition_from_json(item) for item in value),
    "definition_checksum": _integer,
}

_NEWER: Final = frozenset({"definition_checksum"})
"""Fields that older releases do not write."""
