"""What a file format is (pure): rows to bytes, and bytes to rows that can be decoded part by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

Bounds = tuple[pa.Array, pa.Array]
"""Of each part of a file, a value that is no larger than any of a column, and one that is no smaller.

NULL where that is not known; NULL and NaN in the column do not count.
"""


@dataclass(frozen=True)
class Compression:
    """How a file's content is compressed: the name of a codec, or ``none``; and how hard it tries.

    ``level`` is None where the codec has no levels, or the library's own default is wanted.
    """

    codec: str = "none"
    level: int | None = None


@dataclass(frozen=True)
class FileForm:
    """How a table's new files are written: the name of a format, and how it compresses."""

    format: str = "arrow"
    compression: Compression = field(default_factory=Compression)


class StoredRows(Protocol):
    """The rows of one open file.

    They come in parts, one or more, that can be decoded apart from each other: record batches, row groups,
    stripes, blocks.
    """

    @property
    def schema(self) -> pa.Schema:
        """The schema that was written, with the metadata of its fields."""

    @property
    def rows(self) -> int:
        """Number of rows."""

    @property
    def starts(self) -> tuple[int, ...]:
        """Number of the first row of each part, and after these the number of rows."""

    @property
    def is_mapped(self) -> bool:
        """Whether reading gives views of the content: it costs nothing, however often it is done."""

    def bounds(self, name: str) -> Bounds | None:
        """What the file says about the values of a column in each of its parts; None if it says nothing.

        Raises:
            ValueError: the content is damaged.
        """

    def read(self, part: int, names: Sequence[str]) -> pa.RecordBatch:
        """Some columns, in this order, of one part.

        Raises:
            OSError: the content is damaged.
            ValueError: likewise; this includes ``pa.ArrowInvalid``.
        """


class Output(Protocol):
    """Where a file is written to, from front to end; what ``pyarrow`` needs of a Python file."""

    @property
    def closed(self) -> bool:
        """Whether nothing can be written any more."""

    def seekable(self) -> bool:
        """Whether one can go back; no format may."""

    def write(self, content: Any, /) -> int:
        """Write bytes, or what has the buffer protocol; all of them."""

    def tell(self) -> int:
        """How many bytes were written."""

    def flush(self) -> None:
        """Hand on what is buffered."""

    def close(self) -> None:
        """A format need not, and must not have to, call it."""


class FileFormat(Protocol):
    """One way to keep rows in a file.

    Attributes:
        name: what option ``file.format`` calls it.
        suffix: how the names of its files end.
        codecs: what ``file.compression`` may be; the first one is what it is by default.
        has_levels: whether it can be told how hard zstd tries.
    """

    name: str
    suffix: str
    codecs: tuple[str, ...]
    has_levels: bool

    def refusal(self, field: pa.Field) -> str | None:
        """Why a column cannot be stored exactly, and what to do instead; None if it can."""

    def write(self, out: Output, rows: pa.RecordBatch, compression: Compression) -> None:
        """Write rows, at least one, as a whole file."""

    def open(self, content: pa.Buffer) -> StoredRows:
        """The rows of a whole file, which may be a memory map; what it returns keeps it alive.

        Raises:
            OSError: this is no such file, or a damaged one.
            ValueError: likewise; this includes ``pa.ArrowInvalid``.
        """
