"""Tables that are multisets of tuples in memory: the truth that a delta join is compared with."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from deltajoin.core.deltas import Match
from deltajoin.core.rows import Changes
from upsert.arrays import Ints
from upsert.rowkind import ROW_KIND_COLUMN, RowKind

Row = tuple[Any, ...]
Rows = Counter[Row]


NAN = "NaN"


def hashable(value: Any) -> Any:
    """The value such that equal stored values are equal in Python: there is one NaN, lists are tuples."""
    if isinstance(value, float) and math.isnan(value):
        return NAN
    return tuple(map(hashable, value)) if isinstance(value, list) else value


def plain(value: Any) -> Any:
    """A value that ``hashable`` makes equal to the given one."""
    return math.nan if value == NAN else value


def join_key(row: Row, positions: Sequence[int]) -> Row | None:
    """The row's key, or None if a part of it is NULL and it matches nothing."""
    key = tuple(row[i] for i in positions)
    return None if any(part is None for part in key) else key


def joined(left: Rows, right: Rows, left_keys: Sequence[int], right_keys: Sequence[int]) -> Rows:
    """The whole join of two multisets."""
    result: Rows = Counter()
    for a, n in left.items():
        for b, m in right.items():
            key = join_key(a, left_keys)
            if key is not None and key == join_key(b, right_keys):
                result[(*a, *b)] += n * m
    return result


def counted(rows: Iterable[Row]) -> Rows:
    """Rows as a multiset, made of values that compare as the store compares them."""
    return Counter(tuple(map(hashable, row)) for row in rows)


def signed(rows: Iterable[Row]) -> Rows:
    """Net weight of each row of a changelog, whose last column is the kind; no row of weight zero."""
    weights: Rows = Counter()
    for *row, kind in rows:
        weights[tuple(map(hashable, row))] += RowKind(kind).sign
    return Counter({row: weight for row, weight in weights.items() if weight})


def is_net(rows: Sequence[Row]) -> bool:
    """Whether no row comes with both signs; -0.0 is another value than 0.0."""
    told_apart = [tuple(repr(v) if isinstance(v, float) else v for v in row) for row in rows]
    return len(rows) == sum(map(abs, signed(told_apart).values()))


def difference(new: Rows, old: Rows) -> Rows:
    """Net weight of each row when a multiset becomes another."""
    weights = Counter(new)
    weights.subtract(old)
    return Counter({row: weight for row, weight in weights.items() if weight})


def table_of(schema: pa.Schema, rows: Iterable[Row]) -> pa.Table:
    """An Arrow table of rows."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [
        pa.array(list(map(plain, column)), field.type) for column, field in zip(columns, schema, strict=True)
    ]
    return pa.table(arrays, schema=schema)


def changes_of(schema: pa.Schema, new: Rows, old: Rows) -> Changes:
    """What turns one multiset into another; updates where a row of equal first column goes and one comes."""
    lost, gained = list((old - new).elements()), list((new - old).elements())
    gone, come = {row[0] for row in lost}, {row[0] for row in gained}
    rows = [(*row, "-U" if row[0] in come else "-D") for row in lost]
    rows += [(*row, "+U" if row[0] in gone else "+I") for row in gained]
    with_kind = schema.append(pa.field(ROW_KIND_COLUMN, pa.string()))
    return Changes(table_of(with_kind, rows))


def match_in(schema: pa.Schema, state: Rows) -> Match:
    """A lookup in a multiset, which asks for distinct keys without NULL."""

    def match(by: Sequence[str], keys: pa.Table, select: Sequence[str]) -> tuple[Ints, pa.Table]:
        columns = [map(hashable, keys.column(name).to_pylist()) for name in by]
        asked = list(zip(*columns, strict=True))
        wanted = {key: i for i, key in enumerate(asked)}
        assert len(wanted) == len(asked), "a lookup asks for each key once"
        assert not any(None in key for key in asked), "a NULL matches nothing"
        at = [schema.names.index(name) for name in by]
        rows = [(wanted[k], row) for row in state.elements() if (k := tuple(row[i] for i in at)) in wanted]
        found = table_of(schema, [row for _, row in rows]).select(list(select))
        return np.array([i for i, _ in rows], np.int64), found

    return match
