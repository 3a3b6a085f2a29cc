"""The file of a tag: a copy of the snapshot that it names, for the snapshot's own file may expire.

``tag/tag-<name>`` appears by put-if-absent, so a name is taken once until it is deleted, and never changes.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

from upsert.codec import Jsonable
from upsert.errors import ConfigurationError
from upsert.store import paths
from upsert.store.checksums import FORMAT_VERSION, content_of, read_file, subject_of
from upsert.store.metadata.snapshot import SnapshotInfo

_NAME: Final = re.compile(r"(?!\d+$)[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class Tag(Jsonable):
    """A name for a snapshot, which can be read as long as the tag is there.

    Attributes:
        name: its name.
        snapshot: what was tagged.
        created_ms: when, in milliseconds since 1970.
    """

    name: str
    snapshot: SnapshotInfo
    created_ms: int

    def __post_init__(self) -> None:
        if self.created_ms < 0:
            raise ValueError(f"{self.created_ms!r} is no time")

    def content(self, uuid: str) -> bytes:
        """The content of the tag's file, for the table with this uuid."""
        snapshot = {"format": FORMAT_VERSION, **self.snapshot.to_json()}
        value = {"created_ms": self.created_ms, "snapshot": snapshot}
        return content_of(value, subject_of(uuid, paths.tag_file(self.name)))


def checked_name(kind: str, name: str) -> str:
    """The name of a tag or consumer, which becomes a part of a file's name.

    >>> checked_name("tag", "2013-01-end")
    '2013-01-end'
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{kind}: a name must be of 1 to 100 letters, digits, '.', '_' and '-', begin with a letter or "
            f"digit and not be a number, got {name!r}"
        )
    return name


def path_of(root: str, name: str) -> str:
    """Absolute path of the file of a tag."""
    return os.path.join(root, paths.tag_file(checked_name("tag", name)))


def names(root: str) -> list[str]:
    """Names of all tags, in alphabetical order."""
    return paths.named_files(root, paths.TAG_FOLDER, "tag-")


def read(root: str, uuid: str, name: str) -> Tag | None:
    """A tag of the table with this uuid, or None if there is none of this name."""
    return read_file(
        root,
        uuid,
        paths.tag_file(checked_name("tag", name)),
        lambda value: Tag.from_json({**value, "name": name}),
        "a tag must have its snapshot and a time",
        "restore the file, or delete it",
    )


def read_all(root: str, uuid: str) -> tuple[Tag, ...]:
    """All tags of the table with this uuid, that of the oldest snapshot first."""
    found = (read(root, uuid, name) for name in names(root))
    return tuple(sorted((tag for tag in found if tag), key=lambda tag: (tag.snapshot.id, tag.name)))
