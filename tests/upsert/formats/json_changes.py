"""What the tests of formats of changes in JSON share: messages in, rows with their kinds out."""

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from upsert.formats.base import Decoded, Format, FormatContext
from upsert.options import parse


def decode(
    format: Format,
    fields: pa.Schema,
    messages: Sequence[object],
    metadata: tuple[str, ...] = (),
    **given: str,
) -> Decoded:
    """What messages give; bytes and None stand for themselves. Options with `_` for `-` and `__` for `.`."""
    options = {name.replace("__", ".").replace("_", "-"): text for name, text in given.items()}
    context = FormatContext(fields, parse(format.name, format.options, options), metadata=metadata)
    format.check(context)
    wire = [m if m is None or isinstance(m, bytes) else json.dumps(m).encode() for m in messages]
    return format.decoder(context).decode(pa.array(wire, pa.binary()))


def changes(found: Decoded) -> list[list[Any]]:
    """Each row's kind, and its values."""
    assert found.kinds is not None
    rows = [list(row.values()) for row in found.rows.to_pylist()]
    return [[kind, *row] for kind, row in zip(found.kinds.to_pylist(), rows, strict=True)]


def reason(format: Format, fields: pa.Schema, message: object, **given: str) -> str:
    """Why a message gives nothing."""
    found = decode(format, fields, [message], **given)
    assert found.rows.num_rows == 0
    (bad,) = found.bad
    return bad.reason
