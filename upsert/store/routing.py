"""Which buckets may hold matches of which keys (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from upsert.store.file_set import FileSet, Run
from upsert.store.hashing import bucket_of
from upsert.store.layout import Layout
from upsert.store.partitions import partition_codes
from upsert.store.paths import Partition
from upsert.store.probe import Positions, Probe


def buckets_for(layout: Layout, files: FileSet, probe: Probe) -> Iterator[tuple[Sequence[Run], Probe]]:
    """The runs of each bucket that may hold matches, with the keys that may match there.

    Keys that contain the bucket key go to one bucket, those with partition columns to one partition; others
    go everywhere.
    """
    numbers = None
    if layout.buckets > 1 and set(layout.bucket_key) <= set(probe.columns):
        numbers = bucket_of(probe.hashes(layout.bucket_key), layout.buckets)
    partitions = [
        _partition_codes(name, files, probe) for name in layout.schema.partitioned_by if name in probe.columns
    ]
    for (partition, bucket), runs in files.groups.items():
        mask = np.ones(len(probe), dtype=np.bool_) if numbers is None else numbers == bucket
        for codes, of_partition in partitions:
            mask &= codes == of_partition[partition]
        if mask.any():
            yield runs, probe if mask.all() else probe.take(np.flatnonzero(mask))


def _partition_codes(name: str, files: FileSet, probe: Probe) -> tuple[Positions, dict[Partition, int]]:
    """A number for each key's value of a partition column, and for each partition's; -1 is nobody's."""
    codes, texts = partition_codes(probe.column(name))
    code_of = {text: code for code, text in enumerate(texts)}
    partitions = {partition for partition, _ in files.groups}
    return codes, {partition: code_of.get(dict(partition)[name], -1) for partition in partitions}
