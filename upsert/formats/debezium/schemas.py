"""The schema that Kafka Connect writes before the payload of a message (pure)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert.arrays import Positions
from upsert.formats.debezium.values import MALFORMED

Schema = Mapping[str, Mapping[str, Any]]
"""What Kafka Connect says of each column of a change."""

_BEHIND: Final = b',"payload":'
"""In no text, for there a quote has a backslash before it."""


class Group(NamedTuple):
    """Messages with one schema, None for none: their positions, and what is left without it."""

    schema: Schema | None
    positions: Positions
    messages: pa.Array


def groups_of(messages: pa.Array) -> Iterator[Group]:
    """All of some messages, by schema. One that another member comes before is in its message still.

    >>> schema = b'{"schema":{"fields":[{"field":"after","fields":[{"field":"n","type":"int32"}]}]}'
    >>> first, second = groups_of(pa.array([schema + b',"payload":{}}', None, schema + b',"payload":1}']))
    >>> first.schema, first.positions.tolist(), first.messages.to_pylist()
    ({'n': {'field': 'n', 'type': 'int32'}}, [0, 2], [b'{"payload":{}}', b'{"payload":1}'])
    >>> second.schema, second.positions.tolist(), second.messages.to_pylist()
    (None, [1], [None])
    """
    positions: dict[tuple[bytes, bool], list[int]] = {}
    for position, message in enumerate(messages.to_pylist()):
        before, comma, _ = (message or b"").partition(_BEHIND)
        positions.setdefault((before, bool(comma)), []).append(position)
    for (before, is_first), own in positions.items():
        schema, found = _schema(before + b"}" if is_first else before), messages.take(pa.array(own))
        if schema is not None and is_first:
            found = pc.binary_replace_slice(found, 0, len(before) + 1, b"{")
        yield Group(schema, np.array(own), found)


@lru_cache(maxsize=64)
def _schema(text: bytes) -> Schema | None:
    """That of a message, with or without its payload; None where it has none."""
    try:
        parts = json.loads(text)["schema"]["fields"]
        image = next(part for part in parts if part["field"] in ("before", "after"))
        return {field["field"]: field for field in image["fields"]}
    except (*MALFORMED, StopIteration):
        return None
