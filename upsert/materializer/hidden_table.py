"""The hidden table of one query into one sink: the rows of each of the sink's keys, which one is the newest.

The table belongs to the query, whose id is its name: a query that begins again with another checkpoint reads
everything again, and begins with an empty one. It lies with the sink's files, or with the state of a table
with a connector, and so is deleted when that table is dropped.

The rows of a key are a multiset. Equal rows are one *entry* with a count and an *arrival*: the micro-batch
that last added one of them. The newest row of a key is the one with the highest arrival. Rows that came in
one micro-batch have no order, for after a shuffle there is none; of them the highest by its columns counts as
the newest, the table's first column first, NULL lowest. So a micro-batch that is repeated gives the same.
What cancels within a micro-batch leaves an entry as it was. A row that is taken away and was never there, as
when a query began with later changes only, is ignored.

The table's commit is that of the micro-batch's rows; the sink's commit comes after it. A micro-batch that is
repeated finds its own number in the hidden table and takes the step from the snapshot before it to its own
again, whatever rows Spark gives it this time. So a crash between the two commits repeats the second one as it
was.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.arrays import one_array
from upsert.changelog.normalizer import with_kinds
from upsert.errors import ConfigurationError, MissingStateError, SnapshotExpiredError, TableNotFoundError
from upsert.schema import Column, TableSchema
from upsert.store import paths
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.read.snapshot import Snapshot
from upsert.store.rows.conform import Signs, conform
from upsert.store.rows.hashing import row_hashes
from upsert.store.rows.keys import last_of_each, order_by, sequence_codes
from upsert.store.rows.layout import Layout
from upsert.store.rows.merge import gather
from upsert.store.table import Table

COUNT: Final = "count"
ARRIVAL: Final = "arrival"
IDENTITY: Final = "identity"


@dataclass(frozen=True)
class KeptRows:
    """The form in which the rows of a sink are kept.

    The columns of the kept rows are named by the ids of the sink's, which a rename leaves alone.

    Attributes:
        schema: the sink's columns, those that are written.
        key: the columns by which a row replaces another there.
        sequence: a column of which the highest value wins before the arrival does; () for none.
    """

    schema: TableSchema
    key: tuple[str, ...]
    sequence: tuple[str, ...] = ()

    def own(self, name: str) -> str:
        """The name under which a column is kept."""
        return f"c{self.schema.column(name).id}"

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which the columns are kept, in the sink's order."""
        return tuple(self.own(name) for name in self.schema.names)

    @property
    def kept_key(self) -> tuple[str, ...]:
        """The key by these names."""
        return tuple(self.own(name) for name in self.key)

    def table_schema(self) -> TableSchema:
        """The schema of the hidden table: entries are found by the sink's key, which theirs begins with."""
        columns = [Column(self.own(column.name), column.type, id=column.id) for column in self.schema.columns]
        last = max(column.id for column in columns)
        added = ((IDENTITY, pa.binary()), (COUNT, pa.int64()), (ARRIVAL, pa.int64()))
        columns += [Column(name, type_, id=last + n) for n, (name, type_) in enumerate(added, 1)]
        return TableSchema(tuple(columns), (*self.kept_key, IDENTITY))

    def conformed(self, given: pa.Table, of: str) -> tuple[pa.Table, Signs | None]:
        """Rows named as they are kept, in the sink's types, and their signs; errors use the sink's names."""
        others = given.column_names[len(self.names) :]
        layout = Layout.of(TableSchema(self.schema.columns, self.key))
        rows, weights = conform(layout, given.rename_columns([*self.schema.names, *others]), of)
        return rows.rename_columns(list(self.names)), weights

    def entries(self, base: Snapshot, rows: pa.Table, weights: Signs | None, batch: int) -> pa.Table:
        """What changes make of the entries: those to write, ``+U``, and to delete, ``-D``.

        ``base`` is the hidden table before the micro-batch, ``rows`` all rows of some keys in it, in the
        columns that are kept, ``weights`` their signs (None if all are positive), ``batch`` its number.
        """
        identity = row_hashes(rows.columns, rows.num_rows).cast(pa.binary())
        order = order_by([identity])
        signs = np.ones(rows.num_rows, np.int64) if weights is None else weights.astype(np.int64)
        sums = np.add.reduceat(signs[order.rows], order.starts) if rows.num_rows else signs
        changed = np.flatnonzero(sums)
        sums, positions = sums[changed], order.firsts[changed]
        found = gather(rows, positions).append_column(IDENTITY, identity.take(pa.array(positions)))
        probes, there = base.match(
            (*self.kept_key, IDENTITY), found.select([*self.kept_key, IDENTITY]), select=[COUNT, ARRIVAL]
        )
        before, arrival = (np.zeros(found.num_rows, np.int64) for _ in range(2))
        before[probes] = one_array(there.column(COUNT)).to_numpy()
        arrival[probes] = one_array(there.column(ARRIVAL)).to_numpy()
        after = np.maximum(before + sums, 0)
        arrival = np.where(sums > 0, batch, arrival)
        found = found.append_column(COUNT, pa.array(after)).append_column(ARRIVAL, pa.array(arrival))
        return gather(with_kinds(found, after > 0), np.flatnonzero((after > 0) | (before > 0)))

    def written(self, base: Snapshot, target: Snapshot, keys: pa.Table) -> pa.Table:
        """What the sink is to write of keys that a micro-batch touched, each once, as they are kept.

        It gives the sink's columns and ``_row_kind``: ``+U`` with another row than before, or ``-D`` with the
        last one that there was. ``base`` and ``target`` are the table before and after the micro-batch.
        """
        before, after = (self._newest(snapshot, keys) for snapshot in (base, target))
        both = pa.concat_tables([before, after])
        order = order_by([both.column(name) for name in self.kept_key])
        # a stable order: of a key that has two rows, the one before comes first
        identity = both.column(IDENTITY).combine_chunks()
        firsts, lasts = (identity.take(pa.array(rows)) for rows in (order.firsts, order.lasts))
        is_alone = order.firsts == order.lasts
        is_other = pc.not_equal(firsts, lasts).to_numpy(zero_copy_only=False)
        chosen = order.lasts[is_alone | is_other]
        rows = gather(both, chosen).select(list(self.names)).rename_columns(list(self.schema.names))
        return with_kinds(rows, chosen >= before.num_rows)

    def _newest(self, snapshot: Snapshot, keys: pa.Table) -> pa.Table:
        """The newest row of each of some keys that has one."""
        rows = snapshot.lookup(self.kept_key, keys)
        group_of = order_by([rows.column(name) for name in self.kept_key]).numbers
        compared = [own for own in self.names if types.is_scalar(rows.column(own).type)]
        codes = [
            *sequence_codes(rows, [self.own(name) for name in self.sequence]),
            rows.column(ARRIVAL),
            *sequence_codes(rows, compared),
            rows.column(IDENTITY),  # where only nested columns differ
        ]
        ordered = order_by([pa.array(group_of), *codes]).rows
        return gather(rows, ordered[last_of_each(group_of[ordered])])


FOLDER: Final = paths.KEPT_ROWS_FOLDER
"""Folder of the hidden tables of a sink, one for each query."""


@dataclass(frozen=True)
class HiddenTable:
    """What one query keeps of the rows of a sink, in a table below ``folder``, as other queries do.

    Attributes:
        sink: the sink, for messages.
        buckets: how many buckets the table gets when it is made: the sink's number of that time.
        bucket_key: the sink's columns whose hash gives the bucket.
    """

    sink: str
    folder: str
    rows: KeptRows
    buckets: int
    bucket_key: tuple[str, ...]

    def opened(self, query: str, batch: int) -> Table:
        """The table of a query at one of its micro-batches; the first one makes it, and no other."""
        path = os.path.join(self.folder, query)
        try:
            table = Table.open(path)
        except TableNotFoundError as cause:
            if batch > 0:
                raise MissingStateError(
                    f"{self.sink}: the rows of its keys must be kept since micro-batch 0, got none in "
                    f"{path!r} at micro-batch {batch}; begin with a new checkpoint and an empty sink; only a "
                    "query that has never kept them goes on right with 'sink.materialize' = 'none'"
                ) from cause
            bucket_key = ",".join(map(self.rows.own, self.bucket_key))
            options = {"bucket": str(self.buckets), "bucket-key": bucket_key}
            table = Table.create(path, self.rows.table_schema(), options, if_not_exists=True)
        wanted = self.rows.table_schema()
        if table.schema.arrow != wanted.arrow or table.schema.primary_key != wanted.primary_key:
            raise ConfigurationError(
                f"{self.sink}: a query must continue with the columns and the PRIMARY KEY of its start, "
                f"for the rows of its keys are kept with them, got {self._others(table.schema)}; begin with "
                "a new checkpoint and an empty sink"
            )
        return table

    def _others(self, kept: TableSchema) -> str:
        """What of the sink differs from what its rows are kept with."""
        if kept.primary_key != self.rows.table_schema().primary_key:
            return "another PRIMARY KEY"
        for column in self.rows.schema.columns:
            own = self.rows.own(column.name)
            if own not in kept.names:
                return f"column {column.name!r}, which was added meanwhile"
            if kept.type_of(own) != column.type:
                was = types.sql_name(kept.type_of(own))
                return f"column {column.name!r} of type {types.sql_name(column.type)}, which was {was}"
        if set(kept.names) == set(self.rows.table_schema().names):
            return "them in another order, which ALTER COLUMN … AFTER takes back"
        return "fewer columns, of which one was dropped meanwhile"

    def base(self, table: Table, query: str, batch: int) -> SnapshotInfo:
        """The newest snapshot before a micro-batch; it may have expired, or the checkpoint was set back."""
        published = table.published
        head = published.latest()
        if head.writers.get(query, -1) > batch:
            raise self._diverged(f"those of micro-batch {head.writers[query]}", batch)
        try:
            for info in published.backwards(head):
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
