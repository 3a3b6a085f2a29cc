"""Where rows belong: their partition and their bucket within it (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upsert.store.layout import Layout
from upsert.store.partitions import Codes, check_reads_back, partition_codes
from upsert.store.paths import Partition
from upsert.store.rows import Signs


class Portion(NamedTuple):
    """Rows of one bucket, in input order, and the sign of each (None: all positive)."""

    partition: Partition
    bucket: int
    rows: pa.Table
    weights: Signs | None


def split(layout: Layout, rows: pa.Table, weights: Signs | None) -> Iterator[Portion]:
    """The rows of each bucket that has any; ``rows`` as ``rows.conform`` returns them.

    Raises:
        SchemaError: a partition value has no text that reads back.
    """
    if not rows.num_rows:
        return
    buckets = layout.buckets_of(rows)
    columns = [_codes(layout, name, rows) for name in layout.schema.partitioned_by]
    groups, group_of = _groups([buckets, *(codes for codes, _ in columns)])
    if len(groups) == 1:
        yield Portion(_partition(layout, columns, groups[0]), int(groups[0][0]), rows, weights)
        return
    order = np.argsort(group_of, kind="stable")
    ends = np.cumsum(np.bincount(group_of, minlength=len(groups)))
    whole = rows.combine_chunks()
    for number, group in enumerate(groups):
        own = order[(ends[number - 1] if number else 0) : ends[number]]
        signs = None if weights is None else weights[own]
        yield Portion(_partition(layout, columns, group), int(group[0]), whole.take(pa.array(own)), signs)


def _codes(layout: Layout, name: str, rows: pa.Table) -> Codes:
    codes, texts = partition_codes(rows.column(name))
    check_reads_back(texts, layout.schema.type_of(name), name)
    return codes, texts


def _groups(columns: list[npt.NDArray[np.int64]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Distinct combinations of codes, and which one each row has."""
    if len(columns) == 1:
        values, group_of = np.unique(columns[0], return_inverse=True)
        return values.reshape(-1, 1), group_of
    values, group_of = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    return values, group_of.reshape(-1)


def _partition(layout: Layout, columns: list[Codes], group: npt.NDArray[np.int64]) -> Partition:
    names = layout.schema.partitioned_by
    values = (texts[code] for (_, texts), code in zip(columns, group[1:], strict=True))
    return tuple(zip(names, values, strict=True))
