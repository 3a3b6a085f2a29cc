"""Reading a table as it is now, beside writers whose expiry may take files that have not been opened yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from upsert.errors import SnapshotExpiredError
from upsert.store.read.snapshot import Snapshot
from upsert.store.table import Table

T = TypeVar("T")


class Newest:
    """The newest snapshot of a table, for as long as it can be read; then the newest there is then.

    A lookup of what is newest needs no hold on a snapshot: one expires only after a newer one has come.

    >>> import tempfile, pyarrow as pa
    >>> from upsert.schema import TableSchema
    >>> table = Table.create(tempfile.mkdtemp() + "/t", TableSchema.of({"id": pa.int64()}, ["id"]))
    >>> _ = table.write(pa.table({"id": [1]}))
    >>> Newest(table).read(lambda snapshot: snapshot.row_count)
    1
    """

    def __init__(self, table: Table, id: int | None = None) -> None:
        """Of an opened table; with ``id`` that snapshot and no other."""
        self._table = table
        self._is_fixed = id is not None
        self._snapshot = table.snapshot(id)

    def read(self, read: Callable[[Snapshot], T]) -> T:
        """What ``read`` gives of the snapshot.

        Raises:
            SnapshotExpiredError: the snapshot that was asked for by its id is gone.
        """
        while True:
            try:
                return read(self._snapshot)
            except SnapshotExpiredError:
                if self._is_fixed:
                    raise
                self._snapshot = self._table.snapshot()
