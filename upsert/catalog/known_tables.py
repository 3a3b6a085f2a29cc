"""What a catalog knows: its catalogs by name, their databases, and the tables in these."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from upsert.catalog import persistence
from upsert.catalog.catalogs import Catalogs
from upsert.catalog.connectors import ConnectorTable, connect
from upsert.catalog.databases import Databases
from upsert.catalog.session import SessionOptions
from upsert.schema import TableSchema
from upsert.store import Table
from upsert.store.paths import table_folder

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


class KnownTables:
    """Names, and the tables that they mean.

    Attributes:
        catalogs: the warehouses that names can begin with, and the current one.
        options: what ``SET`` sets, see ``upsert.catalog.session``.
        mirrors: the queries by which this catalog keeps mirrors of topics, by the folder of the table.
    """

    def __init__(self, warehouse: str | os.PathLike[str], name: str) -> None:
        """The tables of a warehouse, which is called ``name``; see ``Catalog``."""
        self.catalogs = Catalogs(Databases(table_folder(warehouse), name))
        self.options = SessionOptions()
        self.mirrors: dict[str, StreamingQuery] = {}

    def __repr__(self) -> str:
        return f"Catalog({self.warehouse!r})"

    @property
    def databases(self) -> Databases:
        """The databases of the current catalog; names of tables are looked up in the current one of these."""
        return self.catalogs.current

    @property
    def warehouse(self) -> str:
        """The absolute path of the current catalog's folder."""
        return self.databases.folder

    def tables(self, database: str | None = None) -> tuple[str, ...]:
        """Names of all tables of a database, sorted; of the current one if None."""
        if database is None:
            return self.databases.tables().names()
        databases, own = self.catalogs.database(database)
        return databases.tables(own).names()

    def table(self, name: str) -> Table:
        """The managed table of this name; of an upsert topic its mirror, which is for reading only.

        Raises:
            ConfigurationError: no table can have this name, or the table has a connector and no mirror.
            TableNotFoundError: there is no such table.
            CorruptTableError: its files are damaged, or of another format version.
        """
        connected = self.connected(name)
        return self._managed(name) if connected is None else connected.mirror_table()

    def schema(self, name: str) -> TableSchema:
        """What a table looks like, of whatever connector it is.

        Raises:
            ConfigurationError: no table can have this name.
            TableNotFoundError: there is no such table.
        """
        definition = persistence.load(self.databases.place(name).existing())
        return self._managed(name).schema if definition is None else definition.schema

    def connected(self, name: str, options: Mapping[str, str] = {}) -> ConnectorTable | None:
        """The table with a connector; None for a managed table.

        Args:
            name: the table.
            options: those that replace options of the table.

        Raises:
            ConfigurationError: no table can have this name, or an option is wrong.
            TableNotFoundError: there is no such table.
        """
        place = self.databases.place(name)
        path = place.existing()
        definition = persistence.load(path)
        if definition is None:
            return None
        return connect(place.shown, definition, path, options)

    def _managed(self, name: str) -> Table:
        return Table.open(self.databases.place(name).existing())
