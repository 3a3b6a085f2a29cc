"""What Spark keeps for a shard: an epoch of its caches, the rows that wait, how many steps it made (pure)."""

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
        label: which join and number of shards the shard belongs to; empty for upserts while no rows wait.
        left: waiting rows of the left side as Arrow bytes; empty if there are none.
        right: those of the right side.
        position: steps that the shard has made, of a join whose result is whole; else 0.
    """

    epoch: int
    label: str = ""
    left: bytes = b""
    right: bytes = b""
    position: int = 0

    @classmethod
    def of(cls, join: LatestJoin, shards: int, epoch: int, waiting: Waiting, position: int = 0) -> ShardState:
        """The state after a step."""
        if waiting == (None, None) and not position:
            return cls(epoch)
        left, right = (b"" if rows is None else _blob(rows) for rows in waiting)
        return cls(epoch, label_of(join, shards), left, right, position)

    def check_is_of(self, join: LatestJoin, shards: int) -> None:
        """Refuse to go on with a join of which the state knows nothing, or something else.

        Raises:
            CheckpointMismatchError: rows wait, or have been given, that belong to another join or to another
                number of shards; or upserts were given that nobody remembers.
        """
        if self.label and self.label != label_of(join, shards):
            what, until = ("wait for a lookup", " until nothing waits any more")
            if self.position:
                what, until = "were given", ""
            raise CheckpointMismatchError(
                f"lookup join: rows that {what} must go on with the join and shards of their checkpoint, "
                f"{self.label}, got {label_of(join, shards)}; restore these{until}, or start with a new "
                "checkpoint"
            )
        if join.is_whole and self.epoch and not self.position:
            raise CheckpointMismatchError(
                "lookup join: changelog = 'all' must be so from the beginning of a checkpoint, this one has "
                "given upserts, which nobody remembers; go on with changelog='upsert', or start with a new "
                "checkpoint"
            )

    def waiting(self, join: LatestJoin) -> Waiting:
        """The rows that wait.

        Raises:
            BrokenPayloadError: the state is damaged.
        """
        return _rows(join, 0, self.left), _rows(join, 1, self.right)


COLUMNS: Final = "epoch BIGINT, label STRING, left BINARY, right BINARY, position BIGINT"
"""`ShardState` as Spark's schema."""


def label_of(join: LatestJoin, shards: int) -> str:
    """What must be the same for waiting rows to be joined as they would have been, and given ones known."""
    sides = {
        name: {
            "columns": [[column.name, str(column.type)] for column in side.columns],
            "upsert_key": side.upsert_key,
            "order_by": side.order_by,
        }
        for name, side in zip(SIDES, join.sides, strict=True)
    }
    whole = {"changelog": "all"} if join.is_whole else {}
    about = {"kind": join.kind, "on": join.on, "where": str(join.where), "shards": shards}
    return json.dumps({**about, **whole, **sides})


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
