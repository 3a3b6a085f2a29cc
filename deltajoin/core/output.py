"""What of a join's rows comes out: those that a filter keeps, their emitted columns, consolidated (pure).

Rows are consolidated in all columns that the join has. Where columns that only the join compares do not come
out, rows that differ in no other column are one row, and an update that moves a row to another key would put
it out with both signs. Such rows are held until the task has all of them, and cancel then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from deltajoin.core import conditions
from deltajoin.core.consolidate import consolidate_batches
from deltajoin.expressions import Condition, Ref
from deltajoin.spec import DeltaJoinSpec, output_name, present_name
from deltajoin.tree import Inner, Node, equivalence_classes, nodes
from upsert.rowkind import ROW_KIND_COLUMN


@dataclass(frozen=True)
class Outgoing:
    """How rows with all columns become those that come out.

    Args:
        schema: of what comes out.
        keep: which rows do; None for all.
        is_all: whether all columns do.
        must_net: whether different rows may be equal in what comes out of them.
    """

    schema: pa.Schema
    keep: Condition | None
    is_all: bool
    must_net: bool

    @classmethod
    def of(cls, spec: DeltaJoinSpec, everything: pa.Schema) -> Self:
        """What comes out of rows that have all columns."""
        schema = pa.schema([everything.field(name) for name in (*spec.columns, ROW_KIND_COLUMN)])
        known = determined(spec.tree, emitted(spec))
        selected = {Ref(table, name) for table in spec.visible for name in spec.tables[table].select}
        must_net = spec.is_net and not selected <= known
        return cls(schema, spec.keep, schema.names == everything.names, must_net)

    def rows(self, batches: Iterable[pa.RecordBatch], *, can_cancel: bool) -> Iterator[pa.RecordBatch]:
        """What comes out of consolidated rows; ``can_cancel`` is false where all of them have one sign."""
        chosen = (some for batch in batches if (some := self._chosen(batch)).num_rows)
        if self.must_net and can_cancel:
            yield from consolidate_batches(list(chosen))
        else:
            yield from chosen

    def _chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.keep is not None:
            kept = conditions.mask(
                self.keep, lambda ref: batch.column(output_name(ref.table, ref.column)), batch.num_rows
            )
            batch = batch if kept.all() else batch.filter(pa.array(kept))
        return batch if self.is_all else batch.select(self.schema.names)


def emitted(spec: DeltaJoinSpec) -> frozenset[Ref]:
    """The columns that come out."""
    return frozenset(Ref(table, name) for table in spec.visible for name in spec.tables[table].emitted)


def determined(tree: Node, known: frozenset[Ref]) -> frozenset[Ref]:
    """Columns whose values follow from those of the known ones: INNER joins make theirs equal, or both NULL.

    >>> from deltajoin.tree import Leaf
    >>> tree = Inner((Leaf(0), Leaf(1)), ((Ref(0, "k"), Ref(1, "k")),))
    >>> sorted(map(str, determined(tree, frozenset([Ref(1, "k")]))))
    ['t0.k', 't1.k']
    """
    pairs = (pair for node in nodes(tree) if isinstance(node, Inner) for pair in node.on)
    equal = (members for members in equivalence_classes(pairs) if not known.isdisjoint(members))
    return known.union(*equal)


def output_schema(spec: DeltaJoinSpec, schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The output's columns, all nullable: those of ``spec.columns``, and ``_row_kind`` last."""
    return Outgoing.of(spec, rows_schema(spec, schemas)).schema


def rows_schema(spec: DeltaJoinSpec, schemas: Sequence[pa.Schema]) -> pa.Schema:
    """All columns of the join's rows: those of the visible tables, the flags, and ``_row_kind`` last."""
    of_tables = [
        pa.field(output_name(table, field.name), field.type)
        for table in spec.visible
        for field in schemas[table]
    ]
    flags = [pa.field(present_name(table), pa.bool_()) for table in spec.present]
    return pa.schema([*of_tables, *flags, pa.field(ROW_KIND_COLUMN, pa.string())])
