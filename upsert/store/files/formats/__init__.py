"""The formats that data files may have, by name and by the names of their files (pure).

Follows option ``file.format`` of FLIP-188. Every format gives back exactly what was written, to the type and
the metadata of a field; what it cannot hold, it refuses before anything is written.
"""

from __future__ import annotations

from typing import Final

from upsert.store.files.formats.arrow import ArrowFormat
from upsert.store.files.formats.avro import AvroFormat
from upsert.store.files.formats.base import FileFormat
from upsert.store.files.formats.orc import OrcFormat
from upsert.store.files.formats.parquet import ParquetFormat

ARROW: Final = ArrowFormat()

FORMATS: Final[tuple[FileFormat, ...]] = (ARROW, ParquetFormat(), OrcFormat(), AvroFormat())
"""Every format, the default one first."""

_BY_NAME: Final = {format_.name: format_ for format_ in FORMATS}


def format_called(name: str) -> FileFormat:
    """The format that option ``file.format`` calls so; the option has checked that there is one."""
    return _BY_NAME[name]


def format_of_file(name: str) -> FileFormat | None:
    """The format of a data file by its name; None if it is none that is known."""
    return next((format_ for format_ in FORMATS if name.endswith(format_.suffix)), None)
