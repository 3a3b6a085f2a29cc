"""What the planner knows of a managed table, from its files and the options of a read."""

from __future__ import annotations

from deltajoin.filters import normalized
from planner.plan.sources import ManagedTable
from upsert.managed.options import ReadOptions
from upsert.store.table import Table


def managed_table(table: Table, options: ReadOptions) -> ManagedTable:
    """The table as a query reads it, with the sizes that its newest snapshot tells."""
    snapshot = table.snapshot()
    latest = snapshot.info
    return ManagedTable(
        table.name,
        options.path,
        table.schema,
        table.options.bucket,
        table.options.bucket_key or table.schema.primary_key,
        options.scan_mode,
        options.max_rows,
        options.task_memory,
        changed_rows=latest.delta_rows if latest.changes_rows else None,
        rows=snapshot.row_count,
        rows_per_key={index.label: snapshot.rows_per_key(index.columns) for index in table.layout.indexes},
        consumer_id=options.consumer_id,
        lease_ms=options.lease_ms,
        changing=frozenset(options.metadata),
        where=normalized(options.where_of(table.schema)),
        asked=options.asked - ({"scan.source"} if options.source == "files" else set()),
    )
