"""What Spark's checkpoint folder says about a query, read from outside, be the query alive or dead."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoint folder of a query with one source; the folder need not be there yet."""

    path: Path

    @property
    def planned(self) -> int | None:
        """Number of the newest micro-batch whose offset Spark has written down, None if there is none."""
        return _newest(self.path / "offsets")

    @property
    def committed(self) -> int | None:
        """Number of the newest micro-batch that is complete, None if there is none."""
        return _newest(self.path / "commits")

    @property
    def is_in_flight(self) -> bool:
        """Whether a micro-batch has begun and is not complete."""
        # commits first: a batch that completes between the two looks may be missed, but never invented
        committed, planned = self.committed, self.planned
        return planned is not None and (committed is None or planned > committed)

    @property
    def offset(self) -> dict[str, Any] | None:
        """The source's offset at the end of the newest complete micro-batch, None if there is none."""
        committed = self.committed
        return None if committed is None else self.offset_of(committed)

    def offset_of(self, number: int) -> dict[str, Any] | None:
        """The source's offset at the end of a micro-batch, None if Spark keeps it no longer."""
        try:
            text = (self.path / "offsets" / str(number)).read_text()
        except FileNotFoundError:
            return None
        # one line each: the log's version, metadata of the batch, the offset of the one source
        _version, _metadata, offset = text.splitlines()
        found: dict[str, Any] = json.loads(offset)
        return found

    @property
    def size(self) -> int:
        """Bytes in all files of the folder."""
        return folder_size(self.path)


def folder_size(folder: Path) -> int:
    """Bytes in all files of a folder; 0 if there is none."""
    return sum(_sizes(folder))


def _newest(folder: Path) -> int | None:
    # Spark's temporary and checksum files begin with a dot
    return max((int(file.name) for file in folder.glob("[0-9]*") if file.name.isdigit()), default=None)


def _sizes(folder: Path) -> Iterator[int]:
    for file in folder.rglob("*"):
        # Spark renames and removes files while we walk
        with suppress(FileNotFoundError):
            if file.is_file():
                yield file.stat().st_size
