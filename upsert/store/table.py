"""A managed table: the one name of the store that other packages use. Follows FLIP-188."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Self

from upsert.errors import TableExistsError, TableNotFoundError
from upsert.schema import TableSchema
from upsert.store import log_switch, log_system, logged_tables, paths, pointer, table_file
from upsert.store.alterations import Alteration
from upsert.store.row_metadata import with_metadata_aside
from upsert.store.staging import StagedFiles
from upsert.store.table_reading import TableReading
from upsert.store.table_upkeep import TableUpkeep
from upsert.store.table_writing import TableWriting

__all__ = ["StagedFiles", "Table"]


class Table(TableReading, TableWriting, TableUpkeep):
    """A table in a folder: rows with a primary key, or a multiset of rows without one.

    All methods may be called from any process and thread. A commit is visible as a whole or not at all,
    and survives a power failure once its method has returned.

    Attributes:
        path: its absolute folder.
        root: where its files lie: there, or in an object store in a folder of their own there.
        name: the last part of the path.
        uuid: tells it from any other table that lay or will lie at this path.
        published: its snapshots.

    >>> import tempfile, pyarrow as pa
    >>> schema = TableSchema.of({"id": pa.int64(), "name": pa.string()}, primary_key=["id"])
    >>> table = Table.create(tempfile.mkdtemp() + "/users", schema)
    >>> snapshot = table.write(pa.table({"id": [1, 2], "name": ["ann", "bob"]}))
    >>> snapshot.id, snapshot.scan().num_rows
    (1, 2)
    """

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        schema: TableSchema,
        options: Mapping[str, str] = {},
        *,
        if_not_exists: bool = False,
    ) -> Self:
        """A new, empty table in a folder that is made if necessary.

        Args:
            path: a local folder or a ``file:`` URI, on a file system with hard links, or
                ``s3://bucket/folder``; see docs/object-stores.md.
            schema: its columns, keys and indexes; METADATA columns become columns that reads add.
            options: as in ``WITH (…)``; see ``table_options.OPTIONS``.
            if_not_exists: open the table that is there, whatever its schema.

        Raises:
            TableExistsError: there is a table, and ``if_not_exists`` is not set.
            ConfigurationError: an option or the path is wrong. Nothing was written.
            SchemaError: the table has no such metadata, or a name is one that its files need.
            KafkaUnavailableError: the table has a log, whose brokers did not answer.
        """
        folder = paths.table_folder(path)
        try:
            stored = with_metadata_aside(schema, f"table {os.path.basename(folder)!r}")
            return cls(logged_tables.create(folder, stored, options))
        except TableExistsError:
            if not if_not_exists:
                raise
            return cls.open(folder)

    @classmethod
    def open(cls, path: str | os.PathLike[str], uuid: str | None = None) -> Self:
        """The table in a folder.

        Args:
            path: as for ``create``.
            uuid: the table that is meant, for who goes on with something; None for any.

        Raises:
            TableNotFoundError: there is none, or another one than is meant.
            CorruptTableError: its file is damaged, or was written by another format version.
        """
        folder = paths.table_folder(path)
        pointer.check_named(folder)
        table = cls(table_file.read(folder))
        if uuid not in (None, table.uuid):
            raise TableNotFoundError(
                f"table {folder!r} was replaced by another one: its uuid must be {uuid!r}, got "
                f"{table.uuid!r}; run the query again"
            )
        table.published.latest()  # which says what the table's definition is by now
        return table

    def alter(self, *changes: Alteration) -> None:
        """Change the definition of the table: all changes at once, in one snapshot that changes no rows.

        Rows that are there stay as they are stored: an added column is NULL in them, a dropped one is not
        seen, also not in older snapshots, which are read with the present columns too. See
        docs/schema-evolution.md. A crash leaves the old definition or the new one.

        Args:
            changes: values of ``upsert.store.alterations``, applied in their order.

        Raises:
            SchemaError: a column is unknown or there already, or may not change like this.
            ConfigurationError: an option is unknown, wrong or fixed, or no partition is given.
            CommitConflictError: every attempt of minutes lost the race. Nothing was changed.
            KafkaUnavailableError: the table's log could not be made or changed, and nothing was; or it is
                the table's no more, and the same call tries again to delete its topic.
            LogNotPublishedError: the table has got a log, which lacks what was committed meanwhile.
        """
        if log_switch.alter_table(self._committer, self.uuid, changes):
            failure = log_system.after_commit(self.as_logged(), self.published.latest())
            if failure is not None:
                raise failure
