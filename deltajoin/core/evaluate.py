"""What a delta join emits when its tables move from old to new versions (pure).

With the tables in some order, and table k moving while those before it are new and those after it old,

    T(new …) − T(old …)  =  Σ_k  T(…, new_k, old …) − T(…, old_k, old …)

holds for any tree T of joins, since each term's old part is the next one's new part. With one table moving,
its changes go up the tree and look the others up: see `deltajoin.core.deltas`. Deletes anywhere, updates of
join keys, NULL keys and equal rows in tables without primary key need no rule of their own.

Two paths may emit the same row with opposite signs. Rows that may be such
(`deltajoin.core.consolidate`) are held back until all paths have run, and cancel then; all others leave at
once. Where all joins share one key, they are those of the keys that several tables changed, a bounded number
of keys at a time; so memory holds the changes, the rows that one lookup brought, one piece of output, and the
held rows of some keys.

Rows are consolidated in all columns that the join has. Where columns that only the join compares do not come
out, rows that differ in no other column are one row, and an update that moves a row to another key would put
it out with both signs. Such rows are held until the task has all of them, and cancel then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import pyarrow as pa

from deltajoin.core.consolidate import (
    ChangedKeys,
    consolidate_batches,
    consolidate_bundles,
    contested_keys,
    opposes,
)
from deltajoin.core.deltas import Match, PathVersions
from deltajoin.core.keys import FIRST_LOOKUP_KEYS, KeyChunks, key_columns
from deltajoin.core.plans import Delta, TableFacts, delta_of, moving_order
from deltajoin.core.rows import Bundle, Changes, Marks
from deltajoin.core.shards import Split, split_of
from deltajoin.expressions import Condition, Ref
from deltajoin.spec import DeltaJoinSpec, output_name, present_name
from deltajoin.tree import Inner, Node, Outer, equivalence_classes, flattened, nodes
from upsert.arrays import Ints, Mask, one_array
from upsert.conditions.evaluate import mask
from upsert.rowkind import ROW_KIND_COLUMN, every_kind
from upsert.store.rows.codes import dense, numbers_of_keys


@dataclass(frozen=True)
class Outgoing:
    """How rows with all columns become those that come out: which rows and columns do.

    ``must_consolidate``: whether different rows may be equal in what comes out of them.
    """

    schema: pa.Schema
    keep: Condition | None
    is_all: bool
    must_consolidate: bool

    @classmethod
    def of(cls, spec: DeltaJoinSpec, schemas: Sequence[pa.Schema]) -> Self:
        """What comes out of rows that have all columns of tables with these schemas."""
        everything = rows_schema(spec, schemas)
        schema = pa.schema([everything.field(name) for name in (*spec.columns, ROW_KIND_COLUMN)])
        known = identified(spec.tree, emitted(spec), lambda ref: schemas[ref.table].field(ref.column).type)
        selected = {Ref(table, name) for table in spec.visible for name in spec.tables[table].select}
        must_consolidate = spec.is_net and not selected <= known
        return cls(schema, spec.keep, schema.names == everything.names, must_consolidate)

    def rows(self, batches: Iterable[pa.RecordBatch], *, can_cancel: bool) -> Iterator[pa.RecordBatch]:
        """What comes out of consolidated rows; ``can_cancel`` is false where all of them have one sign."""
        chosen = (some for batch in batches if (some := self._chosen(batch)).num_rows)
        if self.must_consolidate and can_cancel:
            yield from consolidate_batches(list(chosen))
        else:
            yield from chosen

    def _chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.keep is not None:
            kept = mask(
                self.keep, lambda ref: batch.column(output_name(ref.table, ref.column)), batch.num_rows
            )
            batch = batch if kept.all() else batch.filter(pa.array(kept))
        return batch if self.is_all else batch.select(self.schema.names)


def emitted(spec: DeltaJoinSpec) -> frozenset[Ref]:
    """The columns that come out."""
    return frozenset(Ref(table, name) for table in spec.visible for name in spec.tables[table].emitted)


def determined(tree: Node, known: frozenset[Ref]) -> frozenset[Ref]:
    """Columns that equal known ones in each row: INNER joins make theirs equal, or both NULL."""
    pairs = (pair for node in nodes(tree) if isinstance(node, Inner) for pair in node.on)
    equal = (members for members in equivalence_classes(pairs) if not known.isdisjoint(members))
    return known.union(*equal)


def identified(tree: Node, known: frozenset[Ref], type_of: Callable[[Ref], pa.DataType]) -> frozenset[Ref]:
    """Columns whose very values follow from those of known ones; -0.0 equals 0.0, and is another float."""
    found = determined(tree, known)
    return known.union(ref for ref in found if not pa.types.is_floating(type_of(ref)))


def split_of_join(
    spec: DeltaJoinSpec, type_of: Callable[[Ref], pa.DataType], primary_keys: Sequence[Sequence[str]]
) -> Split:
    """How a step of a join is cut into shards; the primary keys are those of its tables."""
    known = determined(spec.tree, emitted(spec)) if spec.is_net else None
    identities = [
        key if key and set(key) <= set(part.select) else part.select
        for part, key in zip(spec.tables, primary_keys, strict=True)
    ]
    return split_of(spec.tree, type_of, identities, known)


def output_schema(spec: DeltaJoinSpec, schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The output's columns, all nullable: those of ``spec.columns``, and ``_row_kind`` last."""
    return Outgoing.of(spec, schemas).schema


def rows_schema(spec: DeltaJoinSpec, schemas: Sequence[pa.Schema]) -> pa.Schema:
    """All columns of the join's rows: those of the visible tables, the flags, and ``_row_kind`` last."""
    of_tables = [
        pa.field(output_name(table, field.name), field.type)
        for table in spec.visible
        for field in schemas[table]
    ]
    flags = [pa.field(present_name(table), pa.bool_()) for table in spec.present]
    return pa.schema([*of_tables, *flags, pa.field(ROW_KIND_COLUMN, pa.string())])


OUTPUT_ROWS: Final = 16_384
"""Spark is busy with one batch while the next one is made, so the last one should not be long."""


@dataclass(frozen=True)
class Join:
    """A flattened tree with all that follows from it, its tables' schemas and their indexes.

    ``rows`` have all columns, ``outgoing`` is what of them comes out. The tables' plans are in the order in
    which these move.
    """

    tree: Node
    schemas: tuple[pa.Schema, ...]
    visible: tuple[int, ...]
    present: tuple[int, ...]
    rows: pa.Schema
    outgoing: Outgoing
    plans: tuple[tuple[int, Delta], ...]
    split: Split

    @classmethod
    def of(cls, spec: DeltaJoinSpec, schemas: Sequence[pa.Schema], split: Split, facts: TableFacts) -> Self:
        """The join of a spec."""
        tree = flattened(spec.tree)
        plans = tuple((table, delta_of(tree, table, facts)) for table in moving_order(tree))
        rows = rows_schema(spec, schemas)
        outgoing = Outgoing.of(spec, schemas)
        return cls(tree, tuple(schemas), spec.visible, spec.present, rows, outgoing, plans, split)

    @property
    def is_inner(self) -> bool:
        """Whether there are only INNER joins."""
        return not any(isinstance(node, Outer) for node in nodes(self.tree))


def evaluate(
    join: Join,
    changes: Sequence[Changes],
    old: Sequence[Match],
    new: Sequence[Match],
    *,
    output_rows: int = OUTPUT_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Consolidated signed rows of the join for one step of all tables, in batches of bounded size.

    For one shard: pass the changes that ``join.split`` gives it, and lookups cut by ``Split.cut_lookup``.
    Changes are those of each table, consolidated; lookups are in each table before the step and after it.

    Batches have exactly ``join.outgoing.schema``. The kind of a row is that of the changed row that drove it,
    or ``+I`` and ``-D`` for rows that a change of others' matches brings. Over all batches, no row comes with
    both signs.
    """
    moving = [table for table, _ in join.plans if changes[table].rows.num_rows]
    has_one_sign = join.is_inner and _have_one_sign([changes[table] for table in moving])
    step = _AllPaths(join, old, new, output_rows)
    if len(moving) < 2 or has_one_sign:
        found = step.rows(changes)
    elif join.split.is_by_key:
        found = step.rows_by_key(changes)
    else:
        found = step.rows_by_marks(changes)
    whole = (batch for rows in found for batch in batches(join, rows, output_rows))
    yield from join.outgoing.rows(whole, can_cancel=not has_one_sign)


@dataclass(frozen=True)
class _AllPaths:
    """One step of all tables: the rows of all paths, consolidated in the way that the join allows."""

    join: Join
    old: Sequence[Match]
    new: Sequence[Match]
    piece: int

    def rows(
        self, changes: Sequence[Changes], changed: Mapping[int, ChangedKeys] | None = None
    ) -> Iterator[Bundle]:
        """Rows of all paths as they come, with marks where keys that changed are given."""
        yield from (rows for _, rows in self._paths(changes, changed))

    def _paths(
        self, changes: Sequence[Changes], changed: Mapping[int, ChangedKeys] | None = None
    ) -> Iterator[tuple[int, Bundle]]:
        """The rows of each path, with the table whose changes drive it."""
        match = dict(enumerate(self.old))
        schemas = dict(enumerate(self.join.schemas))
        for table, plan in self.join.plans:
            if changes[table].rows.num_rows:
                marks = None if changed is None else _marks_of(changed, table)
                path = PathVersions(dict(match), marks, schemas, self.piece)
                yield from ((table, rows) for rows in path.changes(plan, changes[table]))
            match[table] = self.new[table]

    def rows_by_marks(self, changes: Sequence[Changes]) -> Iterator[Bundle]:
        """Consolidated rows: those with marks are held back until all paths have run."""
        changed = {table: ChangedKeys(some) for table, some in enumerate(changes) if some.rows.num_rows}
        held: list[Bundle] = []
        for rows in self.rows(changes, changed):
            may_cancel = opposes(rows.marks, rows.signs) if self.join.is_inner else rows.marks != 0
            held.append(rows.where(may_cancel).compact())
            yield rows.where(~may_cancel)
        yield from consolidate_bundles(held, self.join.visible)

    def rows_by_key(self, changes: Sequence[Changes]) -> Iterator[Bundle]:
        """Consolidated rows: what other tables did to the keys of a change is known before any lookup."""
        codes = self._key_codes(changes)
        contested = contested_keys([some.signs for some in changes], codes, only_opposite=self.join.is_inner)
        if self.join.is_inner and np.count_nonzero(contested) <= FIRST_LOOKUP_KEYS:
            yield from self._at_once(changes, [contested[own] for own in codes])
            return
        plain = [some.where(~contested[own]) for some, own in zip(changes, codes, strict=True)]
        yield from self.rows(plain)
        rest = [some.where(contested[own]) for some, own in zip(changes, codes, strict=True)]
        left = np.concatenate([own[contested[own]] for own in codes])
        chunks = KeyChunks(dense(left))
        ends = np.cumsum([some.rows.num_rows for some in rest])
        for chunk in chunks:
            positions = np.sort(chunk.positions)
            of_tables = np.split(positions, np.searchsorted(positions, ends[:-1]))
            starts = [0, *ends[:-1].tolist()]
            some = [part.take(at - start) for part, at, start in zip(rest, of_tables, starts, strict=True)]
            held = list(self.rows(some))
            chunks.found(sum(map(len, held)))
            yield from consolidate_bundles(held, self.join.visible)

    def _at_once(self, changes: Sequence[Changes], contested: Sequence[Mask]) -> Iterator[Bundle]:
        """Consolidated rows of INNER joins: each table is asked once for all keys, the contested ones too."""
        held: list[Bundle] = []
        for table, rows in self._paths(changes):
            may_cancel = contested[table][rows.parts[table].at]
            held.append(rows.where(may_cancel).compact())
            yield rows.where(~may_cancel)
        yield from consolidate_bundles(held, self.join.visible)

    def _key_codes(self, changes: Sequence[Changes]) -> list[Ints]:
        """For each table the codes of its changes' keys, dense over all tables."""
        split = self.join.split
        keys = [
            key_columns(some.rows, columns or (), types or ())
            for some, columns, types in zip(changes, split.columns, split.types, strict=True)
        ]
        codes = numbers_of_keys([pa.concat_arrays(column) for column in zip(*keys, strict=True)])
        return np.split(codes, np.cumsum([some.rows.num_rows for some in changes])[:-1])


def _marks_of(
    changed: Mapping[int, ChangedKeys], moving: int
) -> Callable[[int, Sequence[str], pa.Table], Marks]:
    def marks(table: int, by: Sequence[str], keys: pa.Table) -> Marks:
        if table == moving or table not in changed:
            return np.zeros(keys.num_rows, np.uint8)
        return changed[table].marks(by, keys)

    return marks


def _have_one_sign(changes: Sequence[Changes]) -> bool:
    signs = np.concatenate([np.zeros(0, np.int8), *(some.signs for some in changes)])
    return bool((signs == signs[:1]).all())


def batches(join: Join, rows: Bundle, output_rows: int) -> Iterator[pa.RecordBatch]:
    """The rows as batches with all columns."""
    for start in range(0, len(rows), output_rows):
        is_all = len(rows) <= output_rows
        some = rows if is_all else rows.take(np.arange(start, min(start + output_rows, len(rows))))
        columns = [one_array(column) for table in join.visible for column in some.parts[table].values.columns]
        flags = [pa.array(some.parts[table].at >= 0) for table in join.present]
        kinds = every_kind().take(pa.array(some.kinds))
        yield pa.RecordBatch.from_arrays([*columns, *flags, kinds], schema=join.rows)
