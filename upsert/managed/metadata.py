"""METADATA columns of a managed table on the way to Spark: which ones a read has, and their values.

Of a batch ``snapshot-id`` is the state that is read, by the commit that made it; of a stream it is the commit
of the change, so the stream goes from commit to commit. Compaction has its own snapshots and is not seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow as pa
from pyspark.sql.types import StructType

from upsert import types
from upsert.errors import SnapshotExpiredError
from upsert.metadata_columns import MetadataKey
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import TableSchema
from upsert.store.metadata.history import History
from upsert.store.paths import BucketId
from upsert.store.predicate import Where, parse_where
from upsert.store.read.changes import data_commits, has_gap
from upsert.store.read.row_metadata import (
    BUCKET,
    COMMIT_TIMESTAMP,
    SEQUENCE_COLUMN,
    SEQUENCE_NUMBER,
    SNAPSHOT_ID,
    check_not_compacted,
    offered,
    rows_with_sequence,
)
from upsert.store.read.snapshot import PinnedTable, Snapshot
from upsert.store.version import Version


@dataclass(frozen=True)
class Commit:
    """A commit that changed rows: its id, and when it was published in ms since 1970, where that is asked."""

    id: int
    time_ms: int


@dataclass(frozen=True)
class RowMetadata:
    """The METADATA columns of one read.

    Attributes:
        keys: the key of each column, by its name.
        of: the table, for messages.
    """

    keys: Mapping[str, MetadataKey]
    of: str

    @classmethod
    def asked(cls, given: Mapping[str, str], schema: TableSchema, asked: StructType | None, of: str) -> Self:
        """The columns that the option ``metadata.columns`` names, and the read's schema has."""
        found = offered(given, schema, of)
        return cls({n: k for n, k in found.items() if asked is None or n in asked.names}, of)

    def added_to(self, own: StructType) -> StructType:
        """The table's columns, these ones, then ``_row_kind`` where it is there."""
        fields = [
            {"name": name, "type": types.to_json(key.type), "nullable": True, "metadata": {}}
            for name, key in self.keys.items()
        ]
        mine = StructType.fromJson({"type": "struct", "fields": fields}).fields
        has_kind = own.names[-1:] == [ROW_KIND_COLUMN]
        stored = own.fields[:-1] if has_kind else own.fields
        return StructType([*stored, *mine, *(own.fields[-1:] if has_kind else [])])

    def left_out_of(self, asked: StructType) -> StructType:
        """The read's columns without these ones."""
        return StructType([field for field in asked.fields if field.name not in self.keys])

    def needs(self, *keys: str) -> bool:
        """Whether a column has one of these keys."""
        return any(key.key in keys for key in self.keys.values())

    def commit(self, history: History, version: int) -> Commit:
        """The commit that made a state.

        Raises:
            SnapshotExpiredError: its time is asked for, and it has expired; only compactions of it are left.
        """
        if not version or not self.needs(COMMIT_TIMESTAMP):
            return Commit(version, 0)
        try:
            return Commit(version, history.info(version).time_ms)
        except SnapshotExpiredError as cause:
            raise SnapshotExpiredError(
                f"{self.of}: metadata {COMMIT_TIMESTAMP!r}: commit {version} must be there to tell its time, "
                "but has expired; leave the column out, or keep more states with 'snapshot.time-retained'"
            ) from cause

    def check_commits_known(self, snapshot: Snapshot, buckets: Iterable[BucketId]) -> None:
        """Refuse to read buckets for whose rows the last commit is no longer known."""
        if self.needs(SEQUENCE_NUMBER):
            check_not_compacted(snapshot, buckets)

    def scan(
        self,
        snapshot: Snapshot,
        columns: tuple[str, ...],
        where: Where | None,
        buckets: Sequence[BucketId],
        commit: Commit,
    ) -> pa.Table:
        """Rows of some buckets of one state, as ``check_commits_known`` let pass, then these columns."""
        if not self.needs(BUCKET, SEQUENCE_NUMBER) or not buckets:
            rows = snapshot.scan(columns, where, places=buckets)
            return self.with_values(rows, commit, 0)
        left = snapshot.places(parse_where(where, snapshot.layout.schema))
        pieces = {
            one: rows_with_sequence(snapshot, one, left[one], columns)
            if self.needs(SEQUENCE_NUMBER)
            else snapshot.scan(columns, where, places=[one])
            for one in buckets
        }
        whole = [self.with_values(rows, commit, bucket) for (_, bucket), rows in pieces.items()]
        return pa.concat_tables(whole)

    def with_values(self, rows: pa.Table, commit: Commit, bucket: int) -> pa.Table:
        """Rows of one bucket and one commit, with these columns after the others but before ``_row_kind``."""
        sequence = pa.scalar(commit.id, pa.int64())
        if SEQUENCE_COLUMN in rows.column_names:
            sequence = rows.column(SEQUENCE_COLUMN)
            rows = rows.drop_columns([SEQUENCE_COLUMN])
        values = {
            SNAPSHOT_ID: pa.scalar(commit.id, pa.int64()),
            COMMIT_TIMESTAMP: pa.scalar(commit.time_ms * 1000, pa.int64()).cast(types.TIMESTAMP),
            BUCKET: pa.scalar(bucket, pa.int32()),
            SEQUENCE_NUMBER: sequence,
        }
        for name, key in self.keys.items():
            value = values[key.key]
            column = pa.repeat(value, rows.num_rows) if isinstance(value, pa.Scalar) else value
            rows = rows.append_column(name, column)
        return rows

    # --- a stream --------------------------------------------------------------------------------------

    def until(self, table: PinnedTable, version: Version, until: int | None) -> int | None:
        """How far the next step may go: over one commit where the columns tell which one it is.

        Raises:
            SnapshotExpiredError: the commits that follow a tag have expired, so they are no longer known.
        """
        if not self.needs(SNAPSHOT_ID, COMMIT_TIMESTAMP, SEQUENCE_NUMBER) or not version.base:
            return until
        last = table.snapshot(until).info.data_version
        if not version.is_complete or last <= version.base:
            return until
        if has_gap(table, table.snapshot(version.base), last):
            raise SnapshotExpiredError(
                f"{self.of}: METADATA columns of a change must be those of its commit, but the commits after "
                f"{version.base} have expired; leave the columns out, or begin with 'scan.mode' = 'full'"
            )
        return data_commits(table, version.base, last)[0].id
