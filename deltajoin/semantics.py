"""What a delta join emits when its tables move from old to new versions (pure).

With the tables in some order, and table k moving while those before it are new and those after it old,

    T(new …) − T(old …)  =  Σ_k  T(…, new_k, old …) − T(…, old_k, old …)

holds for any tree T of joins, since each term's old part is the next one's new part. With one table moving,
its changes go up the tree and look the others up: see `deltajoin.deltas`. Deletes anywhere, updates of join
keys, NULL keys and equal rows in tables without primary key need no rule of their own.

Two paths may emit the same row with opposite signs. Rows of which that cannot be excluded (`deltajoin.marks`)
are held back until all paths have run, and cancel then; all others leave at once. Where all joins share
one key, this is done for a bounded number of keys at a time, so memory holds the changes, the rows that one
lookup brought, one piece of output, and the held rows of some keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import pyarrow as pa

from deltajoin.bundles import Bundle, Marks
from deltajoin.cancel import net
from deltajoin.changes import KINDS, Changes
from deltajoin.deltas import Match, World
from deltajoin.key_chunks import KeyChunks
from deltajoin.marks import ChangedKeys, opposes
from deltajoin.paths import TableFacts, delta_of, moving_order
from deltajoin.plans import Delta
from deltajoin.row_codes import codes_of_keys, key_columns
from deltajoin.shards import Split
from deltajoin.spec import DeltaJoinSpec, output_name, present_name
from deltajoin.tree import Node, Outer, flattened, nodes
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.store.hashing import one_array

__all__ = ["OUTPUT_ROWS", "Join", "Match", "evaluate", "output_schema"]

OUTPUT_ROWS: Final = 65_536
ROUND_ROWS: Final = 65_536
"""Changed rows from which on keys are done a bounded number at a time."""


@dataclass(frozen=True)
class Join:
    """A tree with all that follows from it, its tables' schemas and their indexes.

    Args:
        tree: the flattened tree.
        schemas: rows of each table as the join carries them.
        visible: tables that come out.
        present: tables with a flag.
        output: schema of the output.
        plans: the plan of each table, in the order in which they move.
        split: how the work is cut.
    """

    tree: Node
    schemas: tuple[pa.Schema, ...]
    visible: tuple[int, ...]
    present: tuple[int, ...]
    output: pa.Schema
    plans: tuple[tuple[int, Delta], ...]
    split: Split

    @classmethod
    def of(cls, spec: DeltaJoinSpec, schemas: Sequence[pa.Schema], split: Split, facts: TableFacts) -> Self:
        """The join of a spec.

        Raises:
            SchemaError: a path needs a lookup that no index serves.
        """
        tree = flattened(spec.tree)
        plans = tuple((table, delta_of(tree, table, facts)) for table in moving_order(tree))
        output = output_schema(spec, schemas)
        return cls(tree, tuple(schemas), spec.visible, spec.present, output, plans, split)

    @property
    def is_inner(self) -> bool:
        """Whether there are only INNER joins."""
        return not any(isinstance(node, Outer) for node in nodes(self.tree))


def output_schema(spec: DeltaJoinSpec, schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The output's columns, all nullable: those of the visible tables, the flags, and ``_row_kind`` last."""
    of_tables = [
        pa.field(output_name(table, field.name), field.type)
        for table in spec.visible
        for field in schemas[table]
    ]
    flags = [pa.field(present_name(table), pa.bool_()) for table in spec.present]
    return pa.schema([*of_tables, *flags, pa.field(ROW_KIND_COLUMN, pa.string())])


def evaluate(
    join: Join,
    changes: Sequence[Changes],
    old: Sequence[Match],
    new: Sequence[Match],
    *,
    output_rows: int = OUTPUT_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Net signed rows of the join for one step of all tables, in batches of bounded size.

    For one shard: pass the changes that ``join.split`` gives it, and lookups cut by ``Split.cut_lookup``.

    Args:
        join: what to join.
        changes: of each table, consolidated.
        old: lookups in each table before the step.
        new: lookups in each table after it.
        output_rows: rows of a batch at most.

    Yields:
        Batches of exactly ``join.output``. The kind of a row is that of the changed row that drove it, or
        ``+I`` and ``-D`` for rows that a change of others' matches brings. Over all batches, no row comes
        with both signs.
    """
    moving = [table for table, _ in join.plans if changes[table].rows.num_rows]
    can_cancel = len(moving) > 1 and not (join.is_inner and _have_one_sign([changes[t] for t in moving]))
    rounds = _by_key(join, changes) if can_cancel and join.split.is_by_key else None
    if rounds is None:
        for rows in _paths(join, changes, old, new, can_cancel, output_rows, []):
            yield from batches(join, rows, output_rows)
        return
    chunks, some = rounds
    for part in some:
        held: list[Bundle] = []
        for rows in _paths(join, part, old, new, can_cancel, output_rows, held):
            yield from batches(join, rows, output_rows)
        chunks.found(sum(map(len, held)))


def _paths(
    join: Join,
    changes: Sequence[Changes],
    old: Sequence[Match],
    new: Sequence[Match],
    can_cancel: bool,
    piece: int,
    held: list[Bundle],
) -> Iterator[Bundle]:
    """Rows of all paths; those that may cancel are collected in ``held`` and come net, at the end."""
    match = dict(enumerate(old))
    schemas = dict(enumerate(join.schemas))
    changed = {table: ChangedKeys(some) for table, some in enumerate(changes) if some.rows.num_rows}
    for table, plan in join.plans:
        if table in changed:
            marks = _marks_of(changed, table) if can_cancel else None
            for rows in World(dict(match), marks, schemas, piece).changes(plan, changes[table]):
                if marks is None:
                    yield rows
                    continue
                may_cancel = opposes(rows.marks, rows.signs) if join.is_inner else rows.marks != 0
                held.append(rows.where(may_cancel).compact())
                yield rows.where(~may_cancel)
        match[table] = new[table]
    yield from net(held, join.visible)


def _marks_of(
    changed: dict[int, ChangedKeys], moving: int
) -> Callable[[int, Sequence[str], pa.Table], Marks]:
    def marks(table: int, by: Sequence[str], keys: pa.Table) -> Marks:
        if table == moving or table not in changed:
            return np.zeros(keys.num_rows, np.uint8)
        return changed[table].marks(by, keys)

    return marks


def _by_key(join: Join, changes: Sequence[Changes]) -> tuple[KeyChunks, Iterator[list[Changes]]] | None:
    """The changes of all tables, a bounded number of keys at a time; None if they are few."""
    ends = np.cumsum([some.rows.num_rows for some in changes])
    if ends[-1] <= ROUND_ROWS:
        return None
    split = join.split
    keys = [
        key_columns(some.rows, columns or (), types or ())
        for some, columns, types in zip(changes, split.columns, split.types, strict=True)
    ]
    chunks = KeyChunks(codes_of_keys([pa.concat_arrays(column) for column in zip(*keys, strict=True)]))

    def parts() -> Iterator[list[Changes]]:
        for chunk in chunks:
            positions = np.sort(chunk.positions)
            of_tables = np.split(positions, np.searchsorted(positions, ends[:-1]))
            starts = [0, *ends[:-1].tolist()]
            yield [some.take(at - start) for some, at, start in zip(changes, of_tables, starts, strict=True)]

    return chunks, parts()


def _have_one_sign(changes: Sequence[Changes]) -> bool:
    signs = np.concatenate([some.signs for some in changes])
    return bool((signs == signs[0]).all())


def batches(join: Join, rows: Bundle, output_rows: int) -> Iterator[pa.RecordBatch]:
    """The rows as batches of the output."""
    for start in range(0, len(rows), output_rows):
        some = rows.take(np.arange(start, min(start + output_rows, len(rows))))
        columns = [
            one_array(column)
            for table in join.visible
            for column in some.parts[table].rows.take(some.parts[table].positions).columns
        ]
        flags = [pa.array(some.parts[table].at >= 0) for table in join.present]
        kinds = KINDS.take(pa.array(some.kinds))
        yield pa.RecordBatch.from_arrays([*columns, *flags, kinds], schema=join.output)
