"""Changes on their way to a shard: one Arrow IPC stream per blob, with the versions to look up at (pure).

Spark then moves a few binary values instead of rows, and the JVM converts none of them. What comes out of
a shuffle is parsed and checked like any other input, never unpickled; see docs/decisions/0004.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from deltajoin.errors import BrokenPayloadError
from upsert.errors import ConfigurationError
from upsert.store.version import Version

BLOB_BYTES: Final = 4 << 20
"""Bytes of a blob about: the JVM allocates each one whole, so a few large ones exhaust its direct memory."""

_METADATA: Final = b"deltajoin"


@dataclass(frozen=True)
class Step:
    """What every blob of a micro-batch says: whose join it is, and the versions its changes meet."""

    fingerprint: str
    left_old: Version
    right_new: Version

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        versions = {"left_old": self.left_old.to_json(), "right_new": self.right_new.to_json()}
        return {"fingerprint": self.fingerprint, **versions}


@dataclass(frozen=True)
class Payload:
    """Changes of one side (0 = left, 1 = right) that lie in one shard."""

    step: Step
    side: int
    rows: pa.Table


def encode(step: Step, side: int, rows: pa.Table, *, blob_bytes: int = BLOB_BYTES) -> Iterator[bytes]:
    """The rows as blobs of about ``blob_bytes`` at most; a single row may exceed it.

    >>> version = Version.complete(1)
    >>> blobs = list(encode(Step("2f6c", version, version), 1, pa.table({"k": [1, 2]})))
    >>> decode(blobs[0]).rows.to_pydict()
    {'k': [1, 2]}
    """
    text = json.dumps({"side": side, **step.to_json()})
    schema = rows.schema.with_metadata({_METADATA: text.encode()})
    count = max(1, rows.num_rows * blob_bytes // max(rows.nbytes, 1))
    for batch in rows.combine_chunks().to_batches(max_chunksize=count):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(batch)
        yield sink.getvalue().to_pybytes()


def decode(blob: bytes | pa.Buffer) -> Payload:
    """The changes in a blob.

    Raises:
        BrokenPayloadError: the bytes are no blob of a delta join.
    """
    try:
        with pa.ipc.open_stream(blob) as reader:
            rows = reader.read_all()
        rows.validate(full=True)
        return _with_metadata(rows)
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, ConfigurationError) as cause:
        raise BrokenPayloadError(
            "delta join: a shard must get Arrow streams from the join's own source, got "
            f"{len(blob)} bytes that are none ({cause}); run the micro-batch again"
        ) from cause


def _with_metadata(rows: pa.Table) -> Payload:
    value = json.loads((rows.schema.metadata or {})[_METADATA])
    if value["side"] not in (0, 1) or not isinstance(value["fingerprint"], str):
        raise ValueError(f"side and fingerprint are {value['side']!r} and {value['fingerprint']!r}")
    old, new = Version.from_json(value["left_old"]), Version.from_json(value["right_new"])
    return Payload(Step(value["fingerprint"], old, new), value["side"], rows.replace_schema_metadata(None))
