"""What the groups that changes touch were before a step and are after it, as a changelog (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from deltajoin.aggregate.spec import DeltaAggregateSpec, Measure
from upsert.arrays import Ints, Mask, one_array
from upsert.conditions.evaluate import mask
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.schema import TableSchema
from upsert.store.rows.codes import codes_of_keys, codes_of_rows, first_of_each
from upsert.store.rows.keys import as_key
from upsert.store.rows.measures import measured, result_type


def computed(measure: Measure, rows: pa.Table, groups: Ints, count: int) -> pa.Array:
    """The measure for each group; ``groups`` has each row's group, and a group may have no row."""
    values = [one_array(rows.column(name)) for name in measure.columns]
    if measure.where is not None:
        kept = mask(measure.where, lambda ref: one_array(rows.column(ref.column)), rows.num_rows)
        values, groups = [value.filter(pa.array(kept)) for value in values], groups[kept]
    return measured(measure.function, values, groups, count, is_distinct=measure.is_distinct)


Lookup = Callable[[pa.Table], pa.Table]
"""All rows of the groups with these keys, with the columns of ``spec.read``; NULL is a key like others."""


def output_schema(spec: DeltaAggregateSpec, schema: TableSchema) -> pa.Schema:
    """Columns that come out, without the kind."""
    groups = [schema.type_of(name, "an aggregate") for name in spec.groups]
    results = [
        result_type(measure.function, [schema.type_of(name, "an aggregate") for name in measure.columns])
        for measure in spec.measures
    ]
    return pa.schema(list(zip(spec.columns, (*groups, *results), strict=True)))


def wanted(spec: DeltaAggregateSpec, rows: pa.Table) -> pa.Table:
    """The rows that count."""
    if spec.where is None or not rows.num_rows:
        return rows
    keeps = mask(spec.where, lambda ref: one_array(rows.column(ref.column)), rows.num_rows)
    return rows.filter(pa.array(keeps))


def touched_groups(spec: DeltaAggregateSpec, images: pa.Table) -> pa.Table:
    """The group keys of some rows, each once, as Spark gives them: 0.0 for -0.0."""
    keys = images.select(list(spec.groups))
    if not keys.num_rows:
        return keys
    columns = [as_key(one_array(column)) for column in keys.columns]
    return pa.table(columns, schema=keys.schema).take(pa.array(first_of_each(codes_of_keys(columns))))


def differences(
    spec: DeltaAggregateSpec, schema: pa.Schema, keys: pa.Table, old: Lookup, new: Lookup
) -> Iterator[pa.RecordBatch]:
    """What becomes of the groups with these keys, each once, whose rows ``old`` and ``new`` look up.

    Batches have ``schema`` and ``_row_kind``; ``-U`` is just before ``+U``.
    """
    before, was = _results(spec, schema, keys, old)
    after, is_there = _results(spec, schema, keys, new)
    both = codes_of_rows(pa.concat_tables([before, after])) if keys.num_rows else np.empty(0, np.int64)
    is_same = both[: keys.num_rows] == both[keys.num_rows :]
    kinds: list[tuple[RowKind, pa.Table, Ints]] = [
        (RowKind.DELETE, before, np.flatnonzero(was & ~is_there)),
        (RowKind.INSERT, after, np.flatnonzero(is_there & ~was)),
    ]
    for kind, rows, at in kinds:
        if len(at):
            yield from _of_kind(rows.take(pa.array(at)), np.full(len(at), kind.value, dtype=object))
    changed = np.flatnonzero(was & is_there & ~is_same)
    if len(changed):
        pairs = np.column_stack([changed, changed + keys.num_rows]).ravel()
        marks = np.tile([RowKind.UPDATE_BEFORE.value, RowKind.UPDATE_AFTER.value], len(changed))
        yield from _of_kind(pa.concat_tables([before, after]).take(pa.array(pairs)), marks.astype(object))


def _results(
    spec: DeltaAggregateSpec, schema: pa.Schema, keys: pa.Table, lookup: Lookup
) -> tuple[pa.Table, Mask]:
    """The aggregate of each group, and whether it has any row."""
    rows = wanted(spec, lookup(keys))
    count = keys.num_rows
    names = list(spec.groups)
    joined = pa.concat_tables([keys, rows.select(names).cast(keys.schema)])
    codes = (
        codes_of_keys([one_array(column) for column in joined.columns]) if count else np.empty(0, np.int64)
    )
    groups = codes[count:]  # keys come first, each once, so a group's code is its position among them
    inside = np.flatnonzero(groups < count)
    rows, groups = rows.take(pa.array(inside)), groups[inside]
    results = [computed(measure, rows, groups, count) for measure in spec.measures]
    columns = [*(one_array(keys.column(name)) for name in names), *results]
    return pa.table(columns, schema=schema), np.bincount(groups, minlength=count) > 0


def _of_kind(rows: pa.Table, kinds: npt.NDArray[np.object_]) -> Iterator[pa.RecordBatch]:
    marked = rows.append_column(ROW_KIND_COLUMN, pa.array(kinds, pa.string()))
    yield from marked.combine_chunks().to_batches(max_chunksize=65_536)
