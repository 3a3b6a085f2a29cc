"""The live files of a table of very many, of which entries are made when their bucket is asked for.

An entry as a Python object takes 6 microseconds and more than a kilobyte: a million of them take seconds and
more memory than many executors have. A reader of one partition needs a few. So manifests stay what they are,
columns, in which numpy finds the rows of each bucket; who asks for one bucket after the other soon gets all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa

from upsert.store.metadata.file_entry import FileEntry, by_bucket
from upsert.store.metadata.manifest import ManifestRows, Run, runs_of
from upsert.store.paths import BucketId

FEWEST: Final = 20_000
"""With fewer files all entries are made at once."""

_MOST_ASKED: Final = 256
"""After so many buckets all entries are made: one by one they cost fifty times as much."""


class StoredFiles(Mapping[BucketId, tuple[Run, ...]]):
    """The runs of each bucket."""

    def __init__(self, manifests: Sequence[ManifestRows]) -> None:
        """The files that manifests leave, oldest first."""
        gone = pa.array([], pa.string())
        left: list[ManifestRows] = []
        for manifest in reversed(manifests):
            left.append(manifest.added(gone))
            gone = pa.concat_arrays([gone, manifest.removed])
        self._manifests = [(manifest, manifest.buckets()) for manifest in reversed(left)]
        self._ids = self._manifests[0][1].ranks
        for _, buckets in self._manifests[1:]:
            self._ids = self._ids | buckets.ranks
        self._made: dict[BucketId, tuple[Run, ...]] = {}

    @property
    def count(self) -> int:
        """How many files there are."""
        return sum(manifest.rows.num_rows for manifest, _ in self._manifests)

    def __getitem__(self, bucket_id: BucketId) -> tuple[Run, ...]:
        if (found := self._made.get(bucket_id)) is not None:
            return found
        if bucket_id not in self._ids:
            raise KeyError(bucket_id)
        if len(self._made) >= _MOST_ASKED:
            self._made = self._all()
            return self._made[bucket_id]
        entries: list[FileEntry] = []
        for manifest, buckets in self._manifests:
            if len(rows := buckets.of(bucket_id)):
                entries += manifest.entries(pa.array(rows))
        self._made[bucket_id] = runs = runs_of(entries)
        return runs

    def _all(self) -> dict[BucketId, tuple[Run, ...]]:
        entries = [entry for manifest, _ in self._manifests for entry in manifest.entries()]
        return {bucket_id: runs_of(files) for bucket_id, files in by_bucket(entries).items()}

    def __contains__(self, bucket_id: object) -> bool:
        return bucket_id in self._ids

    def __iter__(self) -> Iterator[BucketId]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)
