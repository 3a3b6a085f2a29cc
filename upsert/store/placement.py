"""Where rows belong: their partition and their bucket within it (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upsert.store.hashing import normalised_floats, one_array
from upsert.store.layout import Layout
from upsert.store.paths import Partition
from upsert.store.rows import Signs


class Portion(NamedTuple):
    """Rows of one bucket, in input order, and the sign of each (None: all positive)."""

    partition: Partition
    bucket: int
    rows: pa.Table
    weights: Signs | None


def split(layout: Layout, rows: pa.Table, weights: Signs | None) -> Iterator[Portion]:
    """The rows of each bucket that has any; ``rows`` as ``rows.conform`` returns them."""
    if not rows.num_rows:
        return
    buckets = layout.buckets_of(rows)
    columns = [_partition_codes(rows.column(name)) for name in layout.schema.partitioned_by]
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


Codes = tuple[npt.NDArray[np.int64], list[str | None]]


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


def _partition_codes(column: pa.ChunkedArray) -> Codes:
    """A number for each row's value, and the text of each number; equal values have one number."""
    array = one_array(column)
    if pa.types.is_floating(array.type):
        mask = pc.is_null(array).to_numpy(zero_copy_only=False)
        array = pa.array(normalised_floats(array), type=array.type, mask=mask)
    encoded = array.dictionary_encode(null_encoding="encode")
    codes = encoded.indices.to_numpy().astype(np.int64)
    return codes, partition_texts(encoded.dictionary)


def partition_texts(values: pa.Array) -> list[str | None]:
    """The text of partition values, as folders and manifests show them; binaries as hexadecimal digits.

    >>> partition_texts(pa.array([b"a/", None]))
    ['612f', None]
    """
    if pa.types.is_binary(values.type):
        return [None if value is None else value.hex() for value in values.to_pylist()]
    texts: list[str | None] = values.cast(pa.string()).to_pylist()
    return texts
