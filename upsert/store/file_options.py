"""The options ``file.…`` of a table: the format of its data files, and how they are compressed (pure).

``file.format`` follows FLIP-188, the others have the names that they have in Paimon, its successor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from upsert import options
from upsert.errors import ConfigurationError, SchemaError
from upsert.options import Option
from upsert.schema import TableSchema
from upsert.store.file_formats import FORMATS, Compression, FileForm, format_called
from upsert.store.file_formats.refusals import refuse_depth

_ZSTD: Final = "zstd"
_GREATEST_LEVEL: Final = 22

_CODECS: Final = tuple(dict.fromkeys(codec for format_ in FORMATS for codec in format_.codecs))


def _zstd_level(value: str) -> int:
    level = options.positive_int(value)
    if level > _GREATEST_LEVEL:
        raise ValueError(f"an integer from 1 to {_GREATEST_LEVEL}")
    return level


FILE_OPTIONS: Final = (
    Option(
        "file.format",
        options.one_of(*(format_.name for format_ in FORMATS)),
        "format of new data files: arrow is mapped, for lookups; the others are smaller, and read by others",
        FORMATS[0].name,
    ),
    Option(
        "file.compression",
        options.one_of(*_CODECS),
        "codec of new data files; default: none for arrow, zstd for parquet and orc, deflate for avro",
        None,
    ),
    Option(
        "file.compression.zstd-level",
        _zstd_level,
        "how hard zstd tries, for arrow and parquet; default: what the format's library takes",
        None,
    ),
)
"""The options of files; a change holds for new files, and compaction brings the others to it."""


def file_form(owner: str, values: Mapping[str, Any], schema: TableSchema) -> FileForm:
    """What converted options say of new files.

    Raises:
        ConfigurationError: the format does not have the codec, or the level belongs to none.
        SchemaError: the format cannot store a column exactly.
    """
    format_ = format_called(values["file.format"])
    codec = values["file.compression"] or format_.codecs[0]
    if codec not in format_.codecs:
        raise ConfigurationError(
            f"{owner}: option 'file.compression' of format {format_.name!r} must be one of "
            f"{', '.join(format_.codecs)}, got {codec!r}"
        )
    level = values["file.compression.zstd-level"]
    if level is not None and (codec != _ZSTD or not format_.has_levels):
        raise ConfigurationError(
            f"{owner}: option 'file.compression.zstd-level' must go with zstd in arrow or parquet, got "
            f"{codec!r} in {format_.name!r}; leave it out"
        )
    for column in schema.arrow:
        if reason := refuse_depth(column, format_.name) or format_.refusal(column):
            raise SchemaError(f"{owner}: file.format {format_.name!r}: {reason}")
    return FileForm(format_.name, Compression(codec, level))
