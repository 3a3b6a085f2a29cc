"""The rows that a shard has given, in a managed table: what `-U` takes back, and what a replay says again.

A lookup reads what is newest, so a micro-batch that is run again would not give the rows that it gave before,
and a sink may have these already. So the first attempt settles what the micro-batch is, by the commit of its
images; every other attempt gives the changes between the images before and after. Spark's state has the
position, the number of steps that the shard has made.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltajoin.errors import CheckpointMismatchError
from deltajoin.latest.spec import LatestJoin
from upsert.changelog.image_log import ImageLog
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import TableSchema

_MISSING: Final = "_missing"
"""Part of the images' key where rows may be padded: which side a row has not, as its key is NULL there."""
_NEITHER: Final = -1


@dataclass(frozen=True)
class GivenRows:
    """Where the shards of a query keep the rows that they have given.

    Attributes:
        join: the join.
        folder: below it each query has a folder of its own, by its id.
        shards: how many shards share the join.
        keep: micro-batches that can still be run again.
    """

    join: LatestJoin
    folder: str
    shards: int
    keep: int

    def of_shard(self, query: str, shard: int, position: int) -> ShardRows:
        """Those of one shard at a position: the number of steps that it has made.

        Raises:
            CheckpointMismatchError: the query has been run with another number of shards.
            ConfigurationError: the folder holds rows of other columns.
        """
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
        return ShardRows(self.join, images, log, position)


@dataclass(frozen=True, eq=False)
class ShardRows:
    """The rows that one shard has given by the steps before ``position``; used for one step."""

    _join: LatestJoin
    _images: TableSchema
    _log: ImageLog
    position: int

    def settled(self) -> pa.Table | None:
        """What the next step gives, if an attempt at it has settled that; columns as ``join.output``.

        Raises:
            MissingStateError: the rows that were given are not as the checkpoint says.
        """
        changes = self._log.settled(self.position, self.position + 1)
        return None if changes is None else self._decoded(changes)

    def settle(self, upserts: Iterable[pa.Table]) -> pa.Table | None:
        """Every kind of change that the upserts of the next step come to; None if it has been settled.

        ``+I`` for a new key; ``-U``, with the row that was given, and ``+U``; ``-D`` with that row; nothing
        for a row that equals it, or for a delete of a key that has none.

        Args:
            upserts: ``join.output``, each key once.

        Raises:
            MissingStateError: the rows that were given are not as the checkpoint says.
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
    columns = pa.schema([field for field in join.output if field.name != ROW_KIND_COLUMN])
    if not join.pads_are_keys:
        return TableSchema.of(columns, primary_key=join.output_key)
    return TableSchema.of(columns.append(pa.field(_MISSING, pa.int8())), (*join.output_key, _MISSING))


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
