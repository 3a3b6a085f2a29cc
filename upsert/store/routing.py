"""Which buckets may hold matches of which keys (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from upsert.arrays import Positions
from upsert.store.file_set import FileSet, Run
from upsert.store.hashing import bucket_of
from upsert.store.layout import Layout
from upsert.store.partitions import partition_codes
from upsert.store.paths import Partition
from upsert.store.probe import Probe


def buckets_for(layout: Layout, files: FileSet, probe: Probe) -> Iterator[tuple[Sequence[Run], Probe]]:
    """The runs of each bucket that may hold matches, with the keys that may match there.

    Keys that contain the bucket key go to one bucket, those with partition columns to one partition; others
    go everywhere.
    """
    numbers = None
    if layout.buckets > 1 and set(layout.bucket_key) <= set(probe.columns):
        numbers = bucket_of(probe.hashes(layout.bucket_key), layout.buckets)
    by_partition = [
        _partition_codes(position, files, probe.column(name))
        for position, name in enumerate(layout.schema.partitioned_by)
        if name in probe.columns
    ]
    for (partition, bucket), runs in files.groups.items():
        wanted = [(codes, of_partition[partition]) for codes, of_partition in by_partition]
        if any(code < 0 for _, code in wanted):
            continue
        mask = np.ones(len(probe), dtype=np.bool_) if numbers is None else numbers == bucket
        for codes, code in wanted:
            mask &= codes == code
        if mask.any():
            yield runs, probe if mask.all() else probe.take(np.flatnonzero(mask))


def _partition_codes(
    position: int, files: FileSet, keys: pa.Array
) -> tuple[Positions, Mapping[Partition, int]]:
    """A number for each key's value of a partition column, and for each partition's; -1 if no key has it."""
    codes, texts = partition_codes(keys)
    code_of = {text: code for code, text in enumerate(texts)}
    partitions = {partition for partition, _ in files.groups}
    return codes, {partition: code_of.get(partition[position][1], -1) for partition in partitions}
