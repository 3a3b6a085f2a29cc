"""What a manifest says about one data file (pure)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from upsert.store.paths import Partition

Key = bytes


@dataclass(frozen=True, slots=True)
class FileEntry:
    """What a manifest knows about one data file.

    Attributes:
        file: path relative to the table.
        partition: partition columns and their values as text, None for NULL.
        bucket: number of the bucket within the partition.
        level: 0 for a flushed file; files of one higher level form one sorted run.
        sequence: id of the snapshot that published the rows; the higher is the newer.
        rows: number of rows, deletions included.
        deletes: number of deletions.
        bytes: size of the data file.
        base: id of the snapshot that its writer began at.
        min: smallest value of each scalar column by its field id; None if there is none or it is not known.
        max: largest value, likewise.
        first_key: key of the first row, in bytes that compare as keys do, see ``row_keys.key_bytes``; the
            beginning of a long one.
        last_key: key of the last row, likewise; what is a little above a long one.
        definition: version of the table's definition that it was written under.
        written_ms: when, in milliseconds since 1970, by the clock of the file system.
        memory: size of its rows in memory; 0 if it is not known.
        checksum: 64 bits of XXH3 of the file's bytes; 0 if it is not known.
        index_checksum: that of its sidecar.
    """

    file: str
    partition: Partition
    bucket: int
    level: int
    sequence: int
    rows: int
    deletes: int
    bytes: int
    base: int
    min: Mapping[int, Any] = field(repr=False)
    max: Mapping[int, Any] = field(repr=False)
    first_key: Key = field(default=b"", repr=False)
    last_key: Key = field(default=b"", repr=False)
    definition: int = 0
    written_ms: int = 0
    memory: int = 0
    checksum: int = 0
    index_checksum: int = 0

    @classmethod
    def many(cls, columns: Mapping[str, Sequence[Any]]) -> list[Self]:
        """Entries given column by column, with a value for every attribute: as many calls, much faster."""
        found = [object.__new__(cls) for _ in columns["file"]]
        for name, values in columns.items():
            # the slot itself: no step of the interpreter for each of a hundred thousand values
            deque(map(getattr(cls, name).__set__, found, values), maxlen=0)
        return found

    @property
    def age(self) -> tuple[int, int]:
        """Ascends from newer to older files of a bucket: level 0 by sequence, then level by level.

        The sequence says nothing above level 0: a file that was merged with others there keeps the highest
        one, whatever part of its keys that came from.
        """
        return self.level, 0 if self.level else -self.sequence

    @property
    def size(self) -> int:
        """What counts against ``target-file-size``: the rows in memory, however small they are on disk."""
        return self.memory or self.bytes

    def overlaps(self, other: FileEntry) -> bool:
        """Whether a key may lie in both files, by their first and last ones."""
        return self.first_key <= other.last_key and other.first_key <= self.last_key
