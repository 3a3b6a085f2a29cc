"""Lookups in a managed table as it is now, for joins with ``consistency = latest``.

Writers beside them may expire files that have not been opened yet; then the newest snapshot is opened again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa

from deltajoin.errors import LookupFailedError
from deltajoin.lookup.protocol import Answer, RequestLimits, check_columns
from upsert.errors import SchemaError, SnapshotExpiredError, UpsertError
from upsert.store.read.snapshot import Snapshot
from upsert.store.table import Table

T = TypeVar("T")


class Newest:
    """The newest snapshot of a table, for as long as it can be read; then the one that is newest then.

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
        """What ``read`` gives of the snapshot."""
        while True:
            try:
                return read(self._snapshot)
            except SnapshotExpiredError:
                if self._is_fixed:
                    raise
                self._snapshot = self._table.snapshot()


@dataclass(frozen=True)
class TableLookup:
    """Rows of a managed table at its latest version; ``of`` makes one.

    Every request reads the version that is the latest then. Exact joins of managed tables pin versions and
    need no lookup source.

    Attributes:
        path: folder of the table.
        keys: the columns to look up by; a primary key, its first columns or an index lies within them.
        schema: columns of the rows.
        limits: keys a request, requests at a time.

    >>> import tempfile
    >>> from upsert.schema import TableSchema
    >>> schema = TableSchema.of({"id": pa.int64(), "name": pa.string()}, primary_key=["id"])
    >>> table = Table.create(tempfile.mkdtemp() + "/users", schema)
    >>> _ = table.write(pa.table({"id": [1, 2], "name": ["ann", "bob"]}))
    >>> client = TableLookup.of(table.path, ["id"]).open()
    >>> asyncio.run(client.lookup(pa.table({"id": [2]}))).rows["name"].to_pylist()
    ['bob']
    """

    path: str
    keys: tuple[str, ...]
    schema: pa.Schema = field(repr=False)
    limits: RequestLimits = field(
        default_factory=lambda: RequestLimits(keys_per_request=10_000, requests=2, timeout_s=120.0)
    )

    @classmethod
    def of(
        cls, path: str | os.PathLike[str], keys: Sequence[str], columns: Sequence[str] | None = None
    ) -> TableLookup:
        """The rows of the table in a folder.

        Args:
            path: the folder.
            keys: the columns to look up by.
            columns: the columns of the rows, ``keys`` among them; None for all.

        Raises:
            TableNotFoundError: there is no table.
            SchemaError: a column is unknown, or no index serves the keys; the message has the one to add.
        """
        table = Table.open(path)
        names = table.schema.names if columns is None else tuple(columns)
        schema = pa.schema([pa.field(name, table.schema.type_of(name, "TableLookup")) for name in names])
        check_columns(schema, keys, "TableLookup")
        if table.snapshot().index_for(keys) is None:
            raise SchemaError(
                f"TableLookup: table {table.name!r} must have a PRIMARY KEY, a prefix of it or an INDEX "
                f"within ({', '.join(keys)}), it has none; declare INDEX ({', '.join(keys)}) in its "
                "CREATE TABLE"
            )
        return cls(table.path, tuple(keys), schema)

    def open(self) -> TableClient:
        """A client; the table is opened by its first lookup."""
        return TableClient(self)


class TableClient:
    """Reads the table in threads, for files are mapped and read while others wait."""

    def __init__(self, source: TableLookup) -> None:
        self._source = source
        self._table: Table | None = None

    async def lookup(self, keys: pa.Table) -> Answer:
        """The rows at the version that is the latest now."""
        return await asyncio.to_thread(self._read, keys)

    def _read(self, keys: pa.Table) -> Answer:
        source = self._source
        try:
            table = self._table = self._table or Table.open(source.path)
            positions, rows = Newest(table).read(
                lambda snapshot: snapshot.match(source.keys, keys, select=source.schema.names)
            )
        except UpsertError as cause:
            raise LookupFailedError(
                f"TableLookup {source.path!r}: the table must be readable, it is not ({cause})"
            ) from cause
        return Answer(positions, rows.cast(source.schema))

    async def close(self) -> None:
        """Nothing to give back."""
