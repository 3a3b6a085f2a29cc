"""A table at a version: lookups for a reader that has read part of a step.

A row is looked up in both snapshots of the version and believed from the one that its own key says:
below the cursor the target, else the base.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upsert.arrays import Positions
from upsert.store.change_files import VersionedTable
from upsert.store.layout import Layout
from upsert.store.snapshot import Snapshot
from upsert.store.version import Version, has_arrived


@dataclass(frozen=True)
class View:
    """The rows of a table at one version; reads like a ``Snapshot``."""

    version: Version
    _layout: Layout
    _base: Snapshot
    _target: Snapshot

    def scan(self, columns: Sequence[str] | None = None, where: Any = None) -> pa.Table:
        """The rows, as ``Snapshot.scan`` gives them."""
        if self.version.is_complete:
            return self._target.scan(columns, where)
        names = list(self._layout.schema.names if columns is None else columns)
        return self._from_both(lambda snapshot: snapshot.scan(self._with_key(names), where)).select(names)

    def lookup(
        self, columns: Sequence[str], keys: pa.Table, *, select: Sequence[str] | None = None
    ) -> pa.Table:
        """Each row that equals any of the keys once, as ``Snapshot.lookup`` gives them."""
        if self.version.is_complete:
            return self._target.lookup(columns, keys, select=select)
        names = list(self._layout.schema.names if select is None else select)
        read = self._with_key(names)
        return self._from_both(lambda snapshot: snapshot.lookup(columns, keys, select=read)).select(names)

    def match(
        self,
        columns: Sequence[str],
        keys: pa.Table,
        *,
        select: Sequence[str] | None = None,
        where: Any = None,
    ) -> tuple[Positions, pa.Table]:
        """Pairs of a key and a row that matches it, as ``Snapshot.match`` gives them."""
        if self.version.is_complete:
            return self._target.match(columns, keys, select=select, where=where)
        names = list(self._layout.schema.names if select is None else select)
        read = self._with_key(names)
        positions, tables = [], []
        for snapshot, is_wanted in ((self._target, self._has_arrived), (self._base, self._is_left)):
            found, rows = snapshot.match(columns, keys, select=read, where=where)
            wanted = np.flatnonzero(is_wanted(rows))
            positions.append(found[wanted])
            tables.append(rows.select(names).take(pa.array(wanted)))
        return np.concatenate(positions), pa.concat_tables(tables)

    def rows_per_key(self, columns: Sequence[str]) -> float:
        """About how many rows one key finds, as ``Snapshot.rows_per_key`` says of the target."""
        return self._target.rows_per_key(columns)

    def _from_both(self, read: Callable[[Snapshot], pa.Table]) -> pa.Table:
        new, old = read(self._target), read(self._base)
        arrived, left = new.filter(pa.array(self._has_arrived(new))), old.filter(pa.array(self._is_left(old)))
        return pa.concat_tables([arrived, left])

    def _with_key(self, names: Sequence[str]) -> list[str]:
        """The columns and those that say where a row is: its key or the hash of all of it, its bucket."""
        return list(dict.fromkeys([*names, *self._layout.key, *self._layout.bucket_key]))

    def _has_arrived(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        layout, cursor = self._layout, self.version.cursor
        assert cursor is not None
        return has_arrived(cursor, layout.buckets_of(rows), layout.key_hashes(rows))

    def _is_left(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        return ~self._has_arrived(rows)


def view_at(table: VersionedTable, version: Version) -> View:
    """The table at a version.

    Raises:
        SnapshotExpiredError: base or target has expired.
    """
    target = table.snapshot(version.target)
    base = target if version.is_complete else table.snapshot(version.base)
    return View(version, table.layout, base, target)
