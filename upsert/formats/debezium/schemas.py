"""The schema that Kafka Connect writes before the payload of a message (pure)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from upsert.arrays import Positions

Schema = Mapping[str, Mapping[str, Any]]
"""What Kafka Connect says of each column of a change."""

_BEHIND: Final = b',"payload":'
"""In no text, for there a quote has a backslash before it."""


def positions_of(messages: pa.Array) -> Iterator[tuple[Schema | None, Positions]]:
    """The schemas of some messages, each with the positions of its messages; None where there is none.

    >>> schema = b'{"schema":{"fields":[{"field":"after","fields":[{"field":"n","type":"int32"}]}]}'
    >>> found = positions_of(pa.array([schema + b',"payload":{}}', None, schema + b',"payload":null}']))
    >>> [(schema, own.tolist()) for schema, own in found]
    [({'n': {'field': 'n', 'type': 'int32'}}, [0, 2]), (None, [1])]
    """
    positions: dict[bytes, list[int]] = {}
    for position, message in enumerate(messages.to_pylist()):
        positions.setdefault((message or b"").partition(_BEHIND)[0], []).append(position)
    for text, own in positions.items():
        yield _schema(text), np.array(own)


@lru_cache(maxsize=64)
def _schema(text: bytes) -> Schema | None:
    """That of a text that ends before the payload, or of a whole message, its members in another order."""
    for end in (b"}", b""):
        try:
            parts = json.loads(text + end)["schema"]["fields"]
            image = next(part for part in parts if part["field"] in ("before", "after"))
            return {field["field"]: field for field in image["fields"]}
        except (ValueError, TypeError, LookupError, StopIteration):
            continue
    return None
