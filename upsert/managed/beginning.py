"""Which state of a table a read begins with, or is of: what the scan options name."""

from __future__ import annotations

from upsert.errors import SnapshotExpiredError
from upsert.managed.options import ReadOptions
from upsert.store.table import Table


def state_named_by(options: ReadOptions, table: Table) -> int:
    """Data version of the snapshot that the scan options name.

    Raises:
        SnapshotExpiredError: it has expired.
    """
    if options.scan_mode == "from-snapshot":
        return table.snapshot(options.tag or options.snapshot_id).info.data_version
    if options.scan_mode == "from-timestamp" and options.timestamp_ms is not None:
        return _state_at(options.timestamp_ms, table)
    if options.pinned is not None:
        return table.snapshot(options.pinned[0]).info.data_version
    return table.snapshot().info.data_version


def _state_at(timestamp_ms: int, table: Table) -> int:
    """Data version of the newest snapshot that was published at the time or before."""
    history = table.history()
    for info in reversed(history):
        if info.time_ms <= timestamp_ms:
            return info.data_version
    if not history or history[0].id <= 1:
        return 0
    raise SnapshotExpiredError(
        f"table {table.name!r}: the state at {timestamp_ms} ms has expired; the earliest snapshot left is "
        f"{history[0].id}, published at {history[0].time_ms} ms: ask for that time or a later one"
    )
