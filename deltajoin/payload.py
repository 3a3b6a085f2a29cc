"""Changes on their way to a shard: blobs of rows, labelled with the step that they belong to (pure).

See ``upsert.blobs`` and docs/decisions/0004.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from deltajoin.step import JoinStep
from upsert.blobs import BLOB_BYTES, from_blob, to_blobs
from upsert.errors import BrokenPayloadError, ConfigurationError


@dataclass(frozen=True)
class Label:
    """What every blob says: whose join it is, the step, and the number of the table that changed."""

    fingerprint: str
    step: JoinStep
    table: int

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {"fingerprint": self.fingerprint, "table": self.table, "step": self.step.to_json()}


@dataclass(frozen=True)
class Payload:
    """Changes of one table that lie in one shard."""

    label: Label
    rows: pa.Table


def encode(label: Label, rows: pa.Table, *, blob_bytes: int = BLOB_BYTES) -> Iterator[bytes]:
    """The rows as blobs of about ``blob_bytes`` at most; a single row may exceed it.

    >>> from upsert.store.version import Version
    >>> step = JoinStep((Version.EMPTY,), (Version.complete(1),))
    >>> blobs = list(encode(Label("2f6c", step, 0), pa.table({"k": [1, 2]})))
    >>> decode(blobs[0]).rows.to_pydict()
    {'k': [1, 2]}
    """
    return to_blobs(rows, label.to_json(), blob_bytes=blob_bytes)


def decode(blob: bytes | pa.Buffer) -> Payload:
    """The changes in a blob.

    Raises:
        BrokenPayloadError: the bytes are no blob of a delta join.
    """
    rows, about = from_blob(blob)
    try:
        match about:
            case {"fingerprint": str(fingerprint), "table": int(table), "step": dict(step)}:
                label = Label(fingerprint, JoinStep.from_json(step), table)
            case _:
                raise ValueError("it must have fingerprint, table and step")
        if not 0 <= table < len(label.step.old):
            raise ValueError(f"there is no table {table!r}")
    except (ValueError, ConfigurationError) as cause:
        raise BrokenPayloadError(
            "delta join: a shard must get changes from the join's own source, got rows labelled "
            f"{about!r} ({cause}); run the micro-batch again"
        ) from cause
    return Payload(label, rows)
