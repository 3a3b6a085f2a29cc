"""What a managed table is as a sink of changes: its key, and whether it combines the rows of a key itself."""

from __future__ import annotations

import os

from upsert.materializer.choice import Sink
from upsert.materializer.hidden_table import FOLDER, HiddenTable
from upsert.materializer.rows import KeptRows
from upsert.schema import TableSchema
from upsert.store.merge_rules import DEDUPLICATE
from upsert.store.table import Table
from upsert.store.table_options import TableOptions


def sink_of(table: Table, materialize: str | None = None) -> Sink:
    """A table as a sink.

    Args:
        table: the table.
        materialize: ``sink.materialize`` of one write; None: the table's own.
    """
    return described_sink(table.name, table.schema, table.options, materialize)


def described_sink(
    name: str, schema: TableSchema, options: TableOptions, materialize: str | None = None
) -> Sink:
    """A table that may not be there yet as a sink; see ``sink_of``."""
    merge = options.merge
    combined = "merge-engine" if merge.engine != DEDUPLICATE else "sequence.field" if merge.sequence else None
    return Sink(f"table {name!r}", schema.primary_key, materialize or options.materialize, combined)


def hidden_table(table: Table) -> HiddenTable:
    """Where the rows of its keys are kept: with its files, in as many buckets, by the same hash."""
    return HiddenTable(
        f"table {table.name!r}",
        os.path.join(table.root, FOLDER),
        KeptRows(table.schema, table.schema.primary_key),
        table.options.bucket,
        table.options.bucket_key or table.schema.primary_key,
    )
