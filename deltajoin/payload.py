"""Changes on their way to a shard: blobs of rows, labelled with the versions to look up at (pure).

See ``upsert.blobs`` and docs/decisions/0004.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from upsert.blobs import BLOB_BYTES, from_blob, to_blobs
from upsert.errors import BrokenPayloadError, ConfigurationError
from upsert.store.version import Version


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
    return to_blobs(rows, {"side": side, **step.to_json()}, blob_bytes=blob_bytes)


def decode(blob: bytes | pa.Buffer) -> Payload:
    """The changes in a blob.

    Raises:
        BrokenPayloadError: the bytes are no blob of a delta join.
    """
    rows, about = from_blob(blob)
    try:
        if about["side"] not in (0, 1) or not isinstance(about["fingerprint"], str):
            raise ValueError(f"side and fingerprint are {about['side']!r} and {about['fingerprint']!r}")
        old, new = Version.from_json(about["left_old"]), Version.from_json(about["right_new"])
    except (ValueError, KeyError, TypeError, ConfigurationError) as cause:
        raise BrokenPayloadError(
            "delta join: a shard must get changes from the join's own source, got rows labelled "
            f"{about!r} ({cause}); run the micro-batch again"
        ) from cause
    return Payload(Step(about["fingerprint"], old, new), about["side"], rows)
