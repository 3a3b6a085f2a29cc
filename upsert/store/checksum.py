"""The checksum of a file: 64 bits of XXH3, taken while it is written (pure)."""

from __future__ import annotations

from typing import Any, BinaryIO

import xxhash


class ChecksummedFile:
    """A new file that counts what is written to it; whoever opened it flushes and closes it.

    It is written from front to end: no format seeks.

    >>> from io import BytesIO
    >>> file = ChecksummedFile(BytesIO())
    >>> file.write(b"rows"), file.tell(), file.checksum == checksum_of(b"rows")
    (4, 4, True)
    """

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._hash = xxhash.xxh3_64()
        self._at = 0

    @property
    def closed(self) -> bool:
        """False: who writes may go on until it has its checksum."""
        return False

    @property
    def checksum(self) -> int:
        """The checksum of everything that was written so far; never 0, which stands for none."""
        return _never_zero(self._hash.intdigest())

    def seekable(self) -> bool:
        """False: it is written from front to end."""
        return False

    def write(self, content: Any) -> int:
        """Write bytes, or what has the buffer protocol; all of them."""
        size = memoryview(content).nbytes
        self._out.write(content)
        self._hash.update(content)
        self._at += size
        return size

    def tell(self) -> int:
        """How many bytes were written."""
        return self._at

    def flush(self) -> None:
        """Hand on what is buffered."""
        self._out.flush()

    def close(self) -> None:
        """Nothing: the file is whoever's that opened it."""


def checksum_of(content: Any) -> int:
    """The checksum of bytes, or of what has the buffer protocol, as a mapped file."""
    return _never_zero(xxhash.xxh3_64_intdigest(content))


def _never_zero(digest: int) -> int:
    return digest or 1
