"""What Spark keeps for a shard of the operator: an epoch of its caches, and the rows that wait (pure)."""

from __future__ import annotations

import json
from typing import Final, NamedTuple

import pyarrow as pa

from deltajoin.errors import CheckpointMismatchError
from deltajoin.latest.drivers import change_schema
from deltajoin.latest.spec import SIDES, LatestJoin
from deltajoin.latest.step import Waiting
from upsert.blobs import from_blob, to_blobs
from upsert.errors import BrokenPayloadError

_WHOLE: Final = 1 << 62


class ShardState(NamedTuple):
    """The columns of the state: a few bytes, unless rows wait.

    Attributes:
        epoch: of the caches that have seen all of the shard's changes.
        label: which join and number of shards the waiting rows belong to; empty while none wait.
        left: waiting rows of the left side as Arrow bytes; empty if there are none.
        right: those of the right side.
    """

    epoch: int
    label: str = ""
    left: bytes = b""
    right: bytes = b""

    @classmethod
    def of(cls, join: LatestJoin, shards: int, epoch: int, waiting: Waiting) -> ShardState:
        """The state after a step."""
        if waiting == (None, None):
            return cls(epoch)
        left, right = (b"" if rows is None else _blob(rows) for rows in waiting)
        return cls(epoch, label_of(join, shards), left, right)

    def waiting(self, join: LatestJoin, shards: int) -> Waiting:
        """The rows that wait.

        Raises:
            CheckpointMismatchError: they belong to another join, or to another number of shards.
            BrokenPayloadError: the state is damaged.
        """
        if self.label and self.label != label_of(join, shards):
            raise CheckpointMismatchError(
                "lookup join: rows that wait for a lookup must go on with the join and shards of their "
                f"checkpoint, {self.label}, got {label_of(join, shards)}; restore these until nothing waits "
                "any more, or start with a new checkpoint"
            )
        return _rows(join, 0, self.left), _rows(join, 1, self.right)


COLUMNS: Final = "epoch BIGINT, label STRING, left BINARY, right BINARY"
"""`ShardState` as Spark's schema."""


def label_of(join: LatestJoin, shards: int) -> str:
    """What must be the same for waiting rows to be joined as they would have been."""
    sides = {
        name: {
            "columns": [[column.name, str(column.type)] for column in side.columns],
            "upsert_key": side.upsert_key,
            "order_by": side.order_by,
        }
        for name, side in zip(SIDES, join.sides, strict=True)
    }
    return json.dumps({"kind": join.kind, "on": join.on, "where": str(join.where), "shards": shards, **sides})


def _blob(rows: pa.Table) -> bytes:
    (blob,) = to_blobs(rows, {}, blob_bytes=_WHOLE)
    return blob


def _rows(join: LatestJoin, side: int, blob: bytes) -> pa.Table | None:
    if not blob:
        return None
    rows, _ = from_blob(blob)
    schema = change_schema(join.sides[side])
    if rows.schema != schema:
        raise BrokenPayloadError(
            f"lookup join: waiting rows of the {SIDES[side]} side must have the columns "
            f"{schema.to_string()!r}, got {rows.schema.to_string()!r}; restore the checkpoint"
        )
    return rows
