"""Which buckets may hold matches of which keys (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert.store.file_set import FileSet, Run
from upsert.store.hashing import bucket_of
from upsert.store.layout import Layout
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
        _partition_codes(name, layout.stored.field(name).type, files, probe)
        for name in layout.schema.partitioned_by
        if name in probe.columns and not pa.types.is_floating(layout.stored.field(name).type)
    ]
    for (partition, bucket), runs in files.groups.items():
        mask = np.ones(len(probe), dtype=np.bool_) if numbers is None else numbers == bucket
        for codes, of_partition in partitions:
            if partition in of_partition:
                mask &= codes == of_partition[partition]
        if mask.any():
            yield runs, probe if mask.all() else probe.take(np.flatnonzero(mask))


def _partition_codes(
    name: str, type_: pa.DataType, files: FileSet, probe: Probe
) -> tuple[Positions, dict[Partition, int]]:
    """A number for each key's value of a partition column, and for each partition's."""
    # all rows of a file have the partition's value; where its bounds do not know it, nothing is skipped
    values = {partition: runs[0][0].min.get(name) for (partition, _), runs in files.groups.items()}
    distinct = {value: code for code, value in enumerate(set(values.values()) - {None})}
    found = pc.index_in(probe.column(name), value_set=pa.array(list(distinct), type_))
    codes = pc.fill_null(found, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, {partition: distinct[value] for partition, value in values.items() if value is not None}
