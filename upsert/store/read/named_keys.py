"""The keys that a filter names: rows that have them are looked up, and no others are read (pure)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert.schema import TableSchema
from upsert.store.predicate import Filter, equal_to
from upsert.store.rows.layout import Layout, LookupIndex

_MOST_OF_BUCKETS: Final = 100_000
"""Of more keys it is not asked which buckets they are in: they are in most."""


@dataclass(frozen=True)
class NamedKeys:
    """Values of an index's columns: each row of which the filter is true has one of these."""

    index: LookupIndex
    values: pa.Table


def named_keys(where: Filter, layout: Layout, most: int) -> NamedKeys | None:
    """The keys, of an index of the table, that a filter names; None if it names none, or more than ``most``.

    >>> from upsert.store.predicate import parse_where
    >>> schema = TableSchema.of({"a": pa.int32(), "b": pa.string()}, primary_key=["a"])
    >>> where = parse_where([("a", "in", [7, 3, 7]), ("b", ">", "x")], schema)
    >>> named_keys(where, Layout.of(schema), 10).values.to_pydict()
    {'a': [7, 3]}
    >>> named_keys(where, Layout.of(schema), 1) is None
    True
    """
    values = _values(where, layout.schema)
    index = layout.best_index(values)
    if index is None or (found := _combined(index.columns, values, most)) is None:
        return None
    return NamedKeys(index, found)


def named_buckets(where: Filter, layout: Layout) -> frozenset[int] | None:
    """The buckets of a partition in which rows are of which a filter is true; None if it does not say.

    >>> from upsert.store.predicate import parse_where
    >>> schema = TableSchema.of({"a": pa.int32(), "b": pa.string()}, primary_key=["a"])
    >>> len(named_buckets(parse_where([("a", "=", 7)], schema), Layout.of(schema, 16)))
    1
    """
    if layout.buckets == 1 or not layout.bucket_key:
        return None
    found = _combined(layout.bucket_key, _values(where, layout.schema), _MOST_OF_BUCKETS)
    return None if found is None else frozenset(layout.buckets_of(found).tolist())


def _values(where: Filter, schema: TableSchema) -> Mapping[str, pa.Array]:
    """Of each column that a filter says so of, the values of which it has one."""
    if len(where.alternatives) != 1:
        return {}
    found: dict[str, pa.Array] = {}
    for predicate in where.alternatives[0]:
        values = equal_to(predicate, schema)
        if values is not None and len(values) <= len(found.get(predicate.column, values)):
            found[predicate.column] = values
    return found


def _combined(columns: Sequence[str], values: Mapping[str, pa.Array], most: int) -> pa.Table | None:
    """Each value of a column with each of the others; None for more rows than ``most``."""
    if not set(columns) <= values.keys():
        return None
    each = [pc.unique(values[name]) for name in columns]
    count = math.prod(map(len, each))
    if count > most:
        return None
    places = np.unravel_index(np.arange(count), [max(1, len(one)) for one in each])
    arrays = [one.take(pa.array(place)) for one, place in zip(each, places, strict=True)]
    return pa.table(arrays, names=list(columns))
