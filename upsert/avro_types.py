"""Avro's names and scalar types, and the door to the package that knows its bytes (pure).

Records of topics and data files of tables share these; what they do with lists, structs, maps and NULL
differs, for a topic follows Flink and a data file gives everything back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from upsert import types
from upsert.errors import ConfigurationError

NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""What Avro takes for the name of a field."""

_SCALARS: Final[Mapping[pa.DataType, Any]] = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    types.TIMESTAMP: {"type": "long", "logicalType": "timestamp-micros"},
    types.TIMESTAMP_NTZ: {"type": "long", "logicalType": "local-timestamp-micros"},
}


def scalar(type_: pa.DataType) -> Any | None:
    """The Avro type of a scalar's values; None if the type is no scalar that has one without a name.

    >>> scalar(pa.int16()), scalar(pa.list_(pa.int16()))
    ('int', None)
    """
    if pa.types.is_decimal128(type_):
        return {"type": "bytes", "logicalType": "decimal", "precision": type_.precision, "scale": type_.scale}
    return _SCALARS.get(type_)


def fastavro(user: str, extra: str) -> Any:
    """The package ``fastavro``.

    Args:
        user: what needs it, for the message.
        extra: the extra of the distribution that installs it.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        import fastavro as package
    except ImportError as cause:
        raise ConfigurationError(
            f"{user} needs the package fastavro, which is missing; pip install 'deltajoin[{extra}]'"
        ) from cause
    return package
