"""What a name refers to: the catalogs of a session, their databases, and the folders of tables.

Names of catalogs are those of the session: nothing of them is stored, so every session makes its own. Tables
of the database ``default`` lie in the warehouse itself, those of another one in ``<name>.db`` there. No table
can have such a name, so neither hides the other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from upsert import options
from upsert.catalog import warehouse
from upsert.catalog.temporary import TemporaryTables
from upsert.catalog.warehouse import Warehouse, checked_name, warehouse_at
from upsert.errors import (
    ConfigurationError,
    DatabaseExistsError,
    DatabaseNotFoundError,
    TableNotFoundError,
)
from upsert.options import Option, suggestion
from upsert.sql.tokens import NAME, NAME_RULE
from upsert.store.paths import table_folder
from upsert.store.storage import storage_of
from upsert.store.storage.base import disk_errors_of
from upsert.store.storage.local import sync_folder

T = TypeVar("T")

DEFAULT: Final = "default"
_SUFFIX: Final = ".db"

_MARK: Final = "database"
"""An empty object that makes a folder of an object store a database; there are no empty folders."""


@dataclass(frozen=True)
class TableRef:
    """A name of a table, resolved: the table may exist or not.

    Attributes:
        tables: the tables of its database, in which it is called ``name``.
        shown: its name as messages show it: with the database, unless that is ``default``.
        qualified: ``catalog.database.name``.
        warehouse: the folder of its catalog.
        is_temporary: whether it is one of the session alone.
    """

    tables: Warehouse
    name: str
    shown: str
    qualified: str
    warehouse: str
    is_temporary: bool = False

    @property
    def path(self) -> str:
        """The folder, whether it exists or not."""
        return self.tables.path(self.name)

    def existing(self) -> str:
        """The folder of an existing table; refuses a name without one."""
        return self.tables.existing(self.name)

    def found(self, read: Callable[[str], T]) -> T:
        """What is read in the folder of an existing table: in an object store each look is a request."""
        if storage_of(self.path).is_local:  # a folder that a query is filling has all that is read, too
            return read(self.existing())
        try:
            return read(self.path)
        except TableNotFoundError:
            self.existing()  # where there is nothing its error says what names there are
            raise

    @property
    def exists(self) -> bool:
        """Whether there is such a table."""
        return self.tables.has(self.name)


class Databases:
    """The databases of one warehouse, and the current one.

    Attributes:
        folder: the warehouse.
        catalog: name of the catalog, which may stand before a database's.
        current: the database of names without one.
        siblings: the catalogs of the session by name, this one among them.
        temporary: the temporary tables of the session.
    """

    def __init__(self, folder: str, catalog: str) -> None:
        self.folder = folder
        self.catalog = checked_name(catalog, "catalog")
        self.current = DEFAULT
        self.siblings: Mapping[str, Databases] = {catalog: self}
        self.temporary = TemporaryTables(folder)

    def __repr__(self) -> str:
        return f"Databases({self.folder!r}, in use: {self.current!r})"

    def names(self) -> tuple[str, ...]:
        """Names of all databases, sorted; ``default`` always exists."""
        entries: list[str] = []
        with suppress(FileNotFoundError):
            entries = storage_of(self.folder).names(self.folder)
        found = {entry.removesuffix(_SUFFIX) for entry in entries if entry.endswith(_SUFFIX)}
        return tuple(sorted({DEFAULT, *filter(self._has, found)}))

    def tables(self, database: str | None = None) -> Warehouse:
        """The tables of a database, of the current one if None; one that does not exist is refused."""
        name = self.current if database is None else checked_name(database, "database")
        if name == DEFAULT:
            return warehouse_at(self.folder)
        if not self._has(name):
            hint = suggestion(name, self.names(), "databases are")
            raise DatabaseNotFoundError(f"database {name!r} does not exist in {self.folder!r}; {hint}")
        return warehouse_at(self._path(name), is_database=True)

    def path_of(self, table: str) -> str:
        """The folder of ``database.name``, whether there are such or not."""
        database, _, own = table.partition(".")
        folder = self.folder if checked_name(database, "database") == DEFAULT else self._path(database)
        return warehouse_at(folder).path(own)

    def all_tables(self) -> Iterator[tuple[str, str]]:
        """Database and name of each table; a database that another process drops meanwhile has none."""
        for database in self.names():
            with suppress(DatabaseNotFoundError):
                yield from ((database, name) for name in self.tables(database).names())

    def resolve(self, name: str) -> TableRef:
        """The table that ``name``, ``database.name`` or ``catalog.database.name`` refers to.

        Raises:
            ConfigurationError: no table can have this name, or the catalog has another one.
            DatabaseNotFoundError: there is no such database.
        """
        *before, own = name.split(".") if isinstance(name, str) else [name]
        if before and not all(map(NAME.fullmatch, (*before, own))):
            raise ConfigurationError(
                f"a table's name must be {NAME_RULE}, optionally after a database and a dot, got {name!r}; "
                "choose another name"
            )
        if len(before) > 2:
            raise ConfigurationError(f"a table's name must be catalog.database.name at most, got {name!r}")
        if len(before) == 2 and before[0] != self.catalog:
            if (other := self.siblings.get(before[0])) is None:
                raise ConfigurationError(
                    f"table {name!r}: catalogs are {', '.join(sorted(self.siblings))}, got {before[0]!r}; "
                    "CREATE CATALOG makes one, Catalog(warehouse, name=…) names the first"
                )
            found = other.resolve(name)
            return replace(found, shown=found.qualified)
        database = before[-1] if before else self.current
        shown = own if database == DEFAULT else f"{database}.{own}"
        tables, is_temporary = self.tables(database), self.temporary.has(database, own)
        if is_temporary:
            if tables.is_taken(own):
                raise ConfigurationError(
                    f"{shown!r} is a temporary table of this session, and also in the catalog; DROP "
                    "TEMPORARY TABLE, and create it under another name"
                )
            tables = self.temporary.tables(database)
        qualified = f"{self.catalog}.{database}.{own}"
        return TableRef(tables, own, shown, qualified, self.folder, is_temporary)

    def create(self, name: str, *, if_not_exists: bool = False) -> bool:
        """Make a database; False if it was there, which is refused unless ``if_not_exists`` is set."""
        path = self._path(checked_name(name, "database"))
        storage_of(self.folder).prepare(self.folder)
        with warehouse.ddl_lock(self.folder):
            if name == DEFAULT or self._has(name):
                if if_not_exists:
                    return False
                raise DatabaseExistsError(
                    f"database {name!r} exists already; choose another name, or IF NOT EXISTS"
                )
            if storage_of(path).is_local:
                with disk_errors_of(path):
                    os.mkdir(path)
                    sync_folder(self.folder)
            else:
                storage_of(path).write(os.path.join(path, _MARK), b"")
        return True

    def drop(self, name: str, *, if_exists: bool = False, cascade: bool = False) -> bool:
        """Drop a database atomically, with its tables if ``cascade`` is set; whether it was there."""
        if checked_name(name, "database") in (DEFAULT, self.current):
            raise ConfigurationError(
                f"database {name!r}: neither the default database nor the one in use can be dropped; USE "
                "another one, or drop its tables"
            )
        with warehouse.ddl_lock(self.folder):
            if if_exists and not self._has(name):
                return False
            tables, top = self.tables(name), warehouse_at(self.folder)
            with tables.alone():
                if (names := tables.names()) and not cascade:
                    raise ConfigurationError(
                        f"database {name!r} must be empty, it has {', '.join(names)}; drop them, or use "
                        "CASCADE"
                    )
                if storage_of(self.folder).is_local:
                    if others := tables.files_of_others():
                        raise ConfigurationError(
                            f"database {name!r} must have nothing but tables, for its folder "
                            f"{tables.folder!r} is deleted, it has {', '.join(others)}; move them away"
                        )
                    top.throw_away(tables.folder)
                else:
                    for table in names:
                        tables.drop(table)
                    storage_of(self.folder).delete(os.path.join(tables.folder, _MARK))
        top.empty_trash()
        return True

    def use(self, name: str) -> None:
        """Make a database the current one."""
        self.tables(name)
        self.current = name

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, f"{name}{_SUFFIX}")

    def _has(self, name: str) -> bool:
        path = self._path(name)
        if NAME.fullmatch(name) is None:
            return False
        if not storage_of(path).is_local:
            return storage_of(path).exists(os.path.join(path, _MARK))
        return os.path.isdir(path) and not os.path.islink(path)


OPTIONS: Final = (
    Option("warehouse", options.text, "folder of the tables; it is made with the first one"),
    Option("type", options.one_of("deltajoin"), "what kind of catalog it is; there is one", "deltajoin"),
)
"""What stands in CREATE CATALOG … WITH (…)."""


class Catalogs:
    """Catalogs by name, of which one is the current one.

    Attributes:
        current: the databases of the catalog in which names without one are looked up.

    >>> import tempfile
    >>> catalogs = Catalogs(Databases(tempfile.mkdtemp(), "main"))
    >>> _ = catalogs.create("archive", {"warehouse": tempfile.mkdtemp()})
    >>> catalogs.names(), catalogs.current.resolve("archive.default.orders").shown
    (('archive', 'main'), 'archive.default.orders')
    >>> catalogs
    Catalogs(archive, main, in use: main)
    """

    def __init__(self, first: Databases) -> None:
        self._known = {first.catalog: first}
        first.siblings = self._known
        self._first = first
        self.current = first

    def __repr__(self) -> str:
        return f"Catalogs({', '.join(self.names())}, in use: {self.current.catalog})"

    def names(self) -> tuple[str, ...]:
        """Names of all catalogs, sorted."""
        return tuple(sorted(self._known))

    def create(self, name: str, given: Mapping[str, str], *, if_not_exists: bool = False) -> bool:
        """Add a warehouse under a name; whether it was not there."""
        values = options.parse(f"catalog {name!r}", OPTIONS, given)
        if name in self._known:
            if if_not_exists:
                return False
            raise ConfigurationError(
                f"catalog {name!r} exists already, for {self._known[name].folder!r}; choose another name, or "
                "IF NOT EXISTS"
            )
        databases = Databases(table_folder(values["warehouse"]), name)
        databases.siblings = self._known
        self._known[name] = databases
        return True

    def drop(self, name: str, *, if_exists: bool = False) -> bool:
        """Remove a catalog, if it was there, and none of its tables. The current and the first one stay."""
        if if_exists and name not in self._known:
            return False
        if self._of(name) in (self.current, self._first):
            raise ConfigurationError(
                f"catalog {name!r}: neither the one in use nor the one of the session can be dropped; USE "
                "CATALOG another one"
            )
        del self._known[name]
        return True

    def use(self, name: str) -> None:
        """Make a catalog the current one, with the database that was current in it."""
        self.current = self._of(name)

    def database(self, name: str | None) -> tuple[Databases, str]:
        """The catalog and the own name of ``database`` or ``catalog.database``; None: of the current one."""
        if name is None:
            return self.current, self.current.current
        catalog, _, own = name.partition(".")
        if catalog.isidentifier() and own.isidentifier():
            return self._of(catalog), own
        return self.current, name  # which refuses what no database can be called

    def _of(self, name: str) -> Databases:
        if name not in self._known:
            hint = suggestion(name, self.names(), "catalogs are")
            raise ConfigurationError(f"catalog {name!r} does not exist in this session; {hint}")
        return self._known[name]
