"""The hidden table of one query into one sink: where it lies, and a micro-batch's snapshots of it.

The table belongs to the query, whose id is its name: a query that begins again with another checkpoint reads
everything again, and begins with an empty one. It lies with the sink's files, or with the state of a table
with a connector, and so goes when that table is dropped.

Its commit is that of the micro-batch's rows; the sink's commit comes after it. A micro-batch that is repeated
finds its own number in the hidden table and takes the step from the snapshot before it to its own again,
whatever rows Spark gives it this time. So a crash between the two commits repeats the second one as it was.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from upsert.errors import ConfigurationError, MissingStateError, SnapshotExpiredError, TableNotFoundError
from upsert.materializer.rows import KeptRows
from upsert.store.snapshot_info import SnapshotInfo
from upsert.store.table import Table

FOLDER: Final = "materialized"
"""Folder of the hidden tables of a sink, one for each query."""


@dataclass(frozen=True)
class HiddenTable:
    """What one query keeps of the rows of a sink.

    Attributes:
        sink: the sink, for messages.
        folder: in which the tables of all queries lie.
        rows: the form of its rows.
        buckets: how many buckets it has: the sink's number.
        bucket_key: the sink's columns whose hash gives the bucket.
    """

    sink: str
    folder: str
    rows: KeptRows
    buckets: int
    bucket_key: tuple[str, ...]

    def opened(self, query: str, batch: int) -> Table:
        """The table of a query at one of its micro-batches; the first one makes it.

        Raises:
            MissingStateError: it is not there, and the query has had micro-batches.
            ConfigurationError: the query writes other columns than before.
        """
        path = os.path.join(self.folder, query)
        try:
            table = Table.open(path)
        except TableNotFoundError as cause:
            if batch > 0:
                raise MissingStateError(
                    f"{self.sink}: the rows of its keys must be kept since micro-batch 0, got none in "
                    f"{path!r} at micro-batch {batch}; begin with a new checkpoint, or go on without "
                    "them as before: 'sink.materialize' = 'none'"
                ) from cause
            table = self._created(path)
        found, wanted = table.schema.arrow, self.rows.table_schema().arrow
        if found != wanted or table.schema.primary_key != self.rows.table_schema().primary_key:
            raise ConfigurationError(
                f"{self.sink}: a query must go on with the columns and the PRIMARY KEY that it began with, "
                "for the rows of its keys are kept with them, got others; begin with a new checkpoint"
            )
        return table

    def _created(self, path: str) -> Table:
        options = {
            "bucket": str(self.buckets),
            "bucket-key": ",".join(map(self.rows.own, self.bucket_key)),
        }
        return Table.create(path, self.rows.table_schema(), options, if_not_exists=True)

    def base(self, table: Table, query: str, batch: int) -> SnapshotInfo:
        """The newest snapshot before a micro-batch.

        Raises:
            MissingStateError: it has expired, or the query was further on: its checkpoint was set back.
        """
        published = table.published
        head = published.latest()
        if head.writers.get(query, -1) > batch:
            raise self._diverged(f"those of micro-batch {head.writers[query]}", batch)
        try:
            for id in range(head.id, max(head.oldest, 1) - 1, -1):
                info = published.info(id, head)
                if info.writers.get(query, -1) < batch:
                    return info
        except SnapshotExpiredError as cause:
            raise self._diverged("none that are older", batch) from cause
        if head.oldest > 1:
            raise self._diverged("none that are older", batch)
        return published.equal_to(0)

    def _diverged(self, found: str, batch: int) -> MissingStateError:
        return MissingStateError(
            f"{self.sink}: micro-batch {batch} must find the rows of its keys as they were before it, got "
            f"{found}; the checkpoint is older than the table: restore both together, or begin with a new "
            "checkpoint"
        )
