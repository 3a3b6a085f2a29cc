"""What is kept of a shard: in Spark's state, and, where every kind of change is given, the emitted rows.

Spark's state has an epoch of the shard's caches, the rows that wait, and how many steps the shard made. A
lookup reads what is newest, so a micro-batch that is run again would not emit the rows that it emitted
before, and a sink may have these already. So the first attempt settles what the micro-batch is, by the commit
of its images to a managed table; every other attempt emits the changes between the images before and after.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltajoin.errors import CheckpointMismatchError
from deltajoin.latest.spec import SIDES, LatestJoin
from deltajoin.latest.step import Waiting, change_schema
from upsert.blobs import from_blob, to_blobs
from upsert.changelog.image_log import ImageLog
from upsert.errors import BrokenPayloadError
from upsert.schema import TableSchema

_WHOLE: Final = 1 << 62


class ShardState(NamedTuple):
    """The columns of the state: a few bytes, unless rows wait.

    Attributes:
        epoch: of the caches that have seen all of the shard's changes.
        label: which join and number of shards the shard belongs to; empty for upserts while no rows wait.
        left, right: waiting rows of each side as Arrow bytes; empty if there are none.
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
        left, right = (
            b"" if rows is None else next(to_blobs(rows, {}, blob_bytes=_WHOLE)) for rows in waiting
        )
        return cls(epoch, label_of(join, shards), left, right, position)

    def check_is_of(self, join: LatestJoin, shards: int) -> None:
        """Refuse to go on with a join that the state does not know, or knows as another one."""
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
                "given upserts, which are not recorded; go on with changelog='upsert', or start with a new "
                "checkpoint"
            )

    def waiting(self, join: LatestJoin) -> Waiting:
        """The rows that wait."""
        return _waiting_rows(join, 0, self.left), _waiting_rows(join, 1, self.right)


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


def _waiting_rows(join: LatestJoin, side: int, blob: bytes) -> pa.Table | None:
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


_MISSING: Final = "_missing"
"""Part of the images' key where rows may be padded: which side a row has not, as its key is NULL there."""
_NEITHER: Final = -1


@dataclass(frozen=True)
class EmittedRows:
    """Where the shards of a query keep the rows that they have given.

    Each query has a folder of its own below ``folder``, by its id; ``keep`` micro-batches can be run again.
    """

    join: LatestJoin
    folder: str
    shards: int
    keep: int

    def of_shard(self, query: str, shard: int, position: int) -> EmittedRowsOfShard:
        """Those of one shard at a position: the number of steps that it has made."""
        parent, own = os.path.join(self.folder, query), f"{self.shards}-shards"
        others = [] if position or not os.path.isdir(parent) else sorted({*os.listdir(parent)} - {own})
        if others:
            raise CheckpointMismatchError(
                f"lookup join: rows that were given, in {parent!r}, must go on with the shards of their "
                f"checkpoint, {others[0]}, got shards={self.shards}; restore them, or start with a new "
                "checkpoint"
            )
        images, name = _images(self.join), f"shard-{shard}"
        log = ImageLog.open(os.path.join(parent, own, name), images, name, beginning=0, keep=self.keep)
        return EmittedRowsOfShard(self.join, images, log, position)


@dataclass(frozen=True, eq=False)
class EmittedRowsOfShard:
    """The rows that one shard has given by the steps before ``position``; used for one step."""

    _join: LatestJoin
    _images: TableSchema
    _log: ImageLog
    position: int

    def settled(self) -> pa.Table | None:
        """What the next step gives, if an attempt at it has settled that; columns as ``join.output``."""
        changes = self._log.settled(self.position, self.position + 1)
        return None if changes is None else self._decoded(changes)

    def settle(self, upserts: Iterable[pa.Table]) -> pa.Table | None:
        """Every kind of change that the upserts of the next step come to; None if it has been settled.

        ``+I`` for a new key; ``-U``, with the row that was given, and ``+U``; ``-D`` with that row; nothing
        for a row that equals it, or for a delete of a key that has none. Upserts have each key once.
        """
        rows = pa.concat_tables([self._join.output.empty_table(), *upserts]).combine_chunks()
        compare = [name for name in self._images.names if name not in self._images.primary_key]
        changes = self._log.settle(self.position, self.position + 1, self._encoded(rows), compare=compare)
        return None if changes is None else self._decoded(changes)

    def _encoded(self, rows: pa.Table) -> pa.Table:
        """Rows whose key is nowhere NULL."""
        if not self._join.pads_are_keys:
            return rows
        missing = np.full(rows.num_rows, _NEITHER, np.int8)
        for side, names in enumerate(_keys_by_side(self._join)):
            missing[pc.is_null(rows.column(names[0])).to_numpy()] = side
            for name in names:
                column = rows.column(name)
                at = rows.column_names.index(name)
                rows = rows.set_column(at, name, column.fill_null(_any_value(column.type)))
        return rows.append_column(_MISSING, pa.array(missing))

    def _decoded(self, changes: pa.Table) -> pa.Table:
        """The rows as they are given."""
        if self._join.pads_are_keys:
            missing = changes.column(_MISSING)
            for side, names in enumerate(_keys_by_side(self._join)):
                is_null = pc.equal(missing, side)
                for name in names:
                    column = changes.column(name)
                    nulled = pc.if_else(is_null, pa.scalar(None, column.type), column)
                    changes = changes.set_column(changes.column_names.index(name), name, nulled)
        columns = [changes.column(name) for name in self._join.output.names]
        return pa.Table.from_arrays(columns, schema=self._join.output)


def _images(join: LatestJoin) -> TableSchema:
    if not join.pads_are_keys:
        return TableSchema.of(join.columns, primary_key=join.output_key)
    return TableSchema.of(join.columns.append(pa.field(_MISSING, pa.int8())), (*join.output_key, _MISSING))


def _keys_by_side(join: LatestJoin) -> tuple[list[str], list[str]]:
    """The columns of the key in the names of the result, by side."""
    left = len(join.upsert_key[0])
    return list(join.output_key[:left]), list(join.output_key[left:])


def _any_value(type_: pa.DataType) -> pa.Scalar:
    """Some value of a scalar type: 0, or an empty text."""
    zeros = pa.py_buffer(bytes(16))
    has_offsets = type_ in (pa.string(), pa.binary())
    buffers = [None, zeros, pa.py_buffer(b"")] if has_offsets else [None, zeros]
    return pa.Array.from_buffers(type_, 1, buffers)[0]
