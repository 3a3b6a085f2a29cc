"""Files that show when they are damaged: checksums, and JSON with a format version and one.

A JSON file of a table begins with its format version and ends with a checksum of what stands before it. The
checksum also takes in whose file it is: the table's uuid and the file's name. So a changed byte is noticed,
and so is another table's file, or another one of the same table, under this name. It is an ordinary field,
which releases that know nothing of it pass over; files that they have written have none, and are read as
they are.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from io import RawIOBase
from typing import Any, BinaryIO, Final, TypeVar

import xxhash

from upsert.errors import ConfigurationError, CorruptTableError
from upsert.store.storage import storage_of


class ChecksummedFile(RawIOBase):
    """A new file that counts what is written to it, from front to end; its opener flushes and closes ``out``.

    >>> from io import BytesIO
    >>> file = ChecksummedFile(BytesIO())
    >>> file.write(b"rows"), file.tell(), file.checksum == checksum_of(b"rows")
    (4, 4, True)
    """

    def __init__(self, out: BinaryIO) -> None:
        super().__init__()
        self._out = out
        self._hash = xxhash.xxh3_64()
        self._at = 0

    @property
    def checksum(self) -> int:
        """The checksum of everything that was written so far; never 0, which means none."""
        return self._hash.intdigest() or 1

    def writable(self) -> bool:
        """True; nothing can be read, and no format seeks."""
        return True

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


def checksum_of(content: Any) -> int:
    """The checksum of bytes, or of what has the buffer protocol, as a mapped file; never 0."""
    return xxhash.xxh3_64_intdigest(content) or 1


FORMAT_VERSION: Final = 1
"""Version of the layout of a table's files; another one is refused."""

FORMAT_OF_RULES: Final = 2
"""Version of a definition with lengths, defaults or checks; earlier releases, which know none, refuse it."""

FORMAT_OF_TYPES: Final = 3
"""Version of a definition with types that earlier releases do not know, which refuse it: TIME."""

FORMAT_OF_INITIAL_VALUES: Final = 4
"""Version of a definition by which older rows have a value, where earlier releases would read NULL."""

FORMAT_OF_LATE_PROMISES: Final = 5
"""Version of a definition with a NOT NULL or UNIQUE INDEX that rows of older snapshots need not keep."""

FORMAT_OF_FUNCTIONS: Final = 6
"""Version of a definition with aggregate functions where earlier releases know none, and refuse it."""

FORMAT_OF_SNAPSHOTS: Final = FORMAT_OF_INITIAL_VALUES
"""Version of a snapshot; releases refuse it that would take small files without a sidecar for damaged.

Among them are all that take older states of a table to lie by its present number of buckets.
"""

_FORMATS: Final = (
    *(FORMAT_VERSION, FORMAT_OF_RULES, FORMAT_OF_TYPES, FORMAT_OF_INITIAL_VALUES),
    *(FORMAT_OF_LATE_PROMISES, FORMAT_OF_FUNCTIONS),
)
_FIELD: Final = "checksum"
_END: Final = re.compile(rb',\n "checksum": "([0-9a-f]{16})"\n\}')
_END_LENGTH: Final = len(b',\n "checksum": "0123456789abcdef"\n}')


def content_of(value: Mapping[str, Any], subject: str) -> bytes:
    """The content of a file that says ``value``; ``subject`` is whose file it is, see ``subject_of``."""
    # a line a field: Python's own encoder, which alone can indent what is within, takes ten times as long
    fields = {"format": FORMAT_VERSION, **value}.items()
    lines = ",\n ".join(f"{json.dumps(name)}: {json.dumps(said)}" for name, said in fields)
    body = f"{{\n {lines}".encode()
    return body + b',\n "checksum": "%016x"\n}' % _checksum(body, subject)


def subject_of(uuid: str, name: str) -> str:
    """Whose file it is: the table's uuid, and the file's name within the table."""
    return f"{uuid}/{name}"


def parse_versioned(content: bytes, where: str, subject: str) -> dict[str, Any]:
    """The JSON object of a table's file, with its format version, after a check of both and of its checksum.

    ``where`` is the file's path, for messages, ``subject`` whose file it must be.
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as cause:
        raise CorruptTableError(f"{where}: the file must hold JSON, got {cause}; restore it") from cause
    if not isinstance(value, dict) or "format" not in value:
        raise CorruptTableError(
            f"{where}: the file must name its format version, got {content[:60]!r}; restore it"
        )
    if type(value["format"]) is not int or value["format"] not in _FORMATS:
        raise CorruptTableError(
            f"{where}: this release reads format versions {', '.join(map(str, _FORMATS))}, got "
            f"{value['format']!r}; open the table with the release that wrote it"
        )
    if (stated := value.pop(_FIELD, None)) is not None:
        end = _END.fullmatch(content, max(0, len(content) - _END_LENGTH))
        found = f"{_checksum(content[:-_END_LENGTH], subject):016x}"
        if end is None or end[1].decode() != found:
            raise CorruptTableError(
                f"{where}: the file must have the checksum that stands in it, {stated!r}, got {found!r}; it "
                "is damaged, or another file lies under its name: restore it from a copy"
            )
    return value


def checksum_of_value(value: Mapping[str, Any]) -> int:
    """A checksum of JSON values, however they are laid out in a file."""
    return checksum_of(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())


def _checksum(body: bytes, subject: str) -> int:
    return checksum_of(subject.encode() + b"\0" + body)


T = TypeVar("T")


def read_file(
    root: str, uuid: str, name: str, make: Callable[[dict[str, Any]], T], must: str, remedy: str
) -> T | None:
    """What ``make`` makes of a file's JSON values; None if the file is not there.

    A damaged file, or values that ``make`` does not take, is a `CorruptTableError`; ``must`` and ``remedy``
    say in it what must hold of the values, and what to do where it does not.
    """
    path = os.path.join(root, name)
    try:
        content = storage_of(path).read(path)
    except FileNotFoundError:
        return None
    value = parse_versioned(content, path, subject_of(uuid, name))
    try:
        return make(value)
    except (KeyError, TypeError, ValueError, ConfigurationError) as cause:
        raise CorruptTableError(f"{path}: {must}, got {cause!r}; {remedy}") from cause
