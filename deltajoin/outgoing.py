"""What of a join's rows comes out: those that a filter keeps, the emitted columns of them, and net (pure).

Rows are net in all columns that the join has. Where columns that only the join compares do not come out, rows
that differ in no other column are one row, and an update that moves a row to another key would put it out
with both signs. Such rows are held until all of a task are there, and cancel then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from deltajoin import conditions
from deltajoin.changes import Signs, stay_after_netting
from deltajoin.equalities import classes
from deltajoin.expressions import Condition, Ref
from deltajoin.row_codes import Ints, codes_of_values, dense, paired
from deltajoin.spec import DeltaJoinSpec, output_name
from deltajoin.tree import Inner, Node, nodes
from upsert.rowkind import ROW_KIND_COLUMN, signs


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
        """What comes out of net rows; ``can_cancel`` is false where all of them have one sign."""
        chosen = (some for batch in batches if (some := self._chosen(batch)).num_rows)
        if self.must_net and can_cancel:
            yield from net(list(chosen))
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
    equal = (members for members in classes(pairs) if not known.isdisjoint(members))
    return known.union(*equal)


def net(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches without rows that cancel: equal ones of opposite sign.

    >>> batch = pa.record_batch({"a": [1, 2, 1], "_row_kind": ["-U", "+I", "+U"]})
    >>> [rows.to_pylist() for rows in net([batch])]
    [[{'a': 2, '_row_kind': '+I'}]]
    """
    if not batches:
        return
    rows = pa.Table.from_batches(batches)
    sign = signs(rows.column(ROW_KIND_COLUMN))
    at, codes = _with_both_signs(rows, sign)
    stays = np.ones(len(sign), np.bool_)
    if len(at):
        stays[at] = stay_after_netting(codes, sign[at])
    start = 0
    for batch in batches:
        own = stays[start : start + batch.num_rows]
        start += batch.num_rows
        if own.any():
            yield batch if own.all() else batch.filter(pa.array(own))


def _with_both_signs(rows: pa.Table, sign: Signs) -> tuple[Ints, Ints]:
    """Rows of which an equal one has the other sign: their positions, and a code for each row's value.

    Column by column, so that rows which one column tells apart are not looked at in the next.
    """
    at, codes = np.arange(len(sign)), np.zeros(len(sign), np.int64)
    names = [name for name in rows.column_names if name != ROW_KIND_COLUMN]
    for name in (None, *names):
        if name is not None:
            values = rows.column(name).take(pa.array(at)).combine_chunks()
            codes = paired(codes, codes_of_values([values]))
        both = _have_both_signs(codes, sign[at])
        at, codes = at[both], dense(codes[both])
        if not len(at):
            break
    return at, codes


def _have_both_signs(codes: Ints, sign: Signs) -> npt.NDArray[np.bool_]:
    plus, minus = np.zeros((2, int(codes.max(initial=-1)) + 1), np.bool_)
    plus[codes[sign > 0]] = True
    minus[codes[sign < 0]] = True
    both: npt.NDArray[np.bool_] = (plus & minus)[codes]
    return both
