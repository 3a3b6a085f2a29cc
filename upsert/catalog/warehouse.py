"""The folder of a catalog: which tables lie in it, by name, and how one goes away at one moment."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from upsert.catalog import persistence, trash
from upsert.catalog.staged import is_visible
from upsert.errors import ConfigurationError, TableExistsError, TableNotFoundError
from upsert.store.paths import TABLE_FILE
from upsert.store.storage import storage_of
from upsert.store.storage.local import sync_folder

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


@dataclass(frozen=True)
class Warehouse:
    """Tables are the folders directly in ``folder`` that have a ``table.json``."""

    folder: str

    def names(self) -> tuple[str, ...]:
        """Names of all tables, sorted."""
        if not os.path.isdir(self.folder):
            return ()
        names = filter(self.is_name, os.listdir(self.folder))
        return tuple(sorted(name for name in names if self._has(name)))

    def is_name(self, name: str) -> bool:
        """Whether a table can be called so."""
        return _NAME.fullmatch(name) is not None

    def path(self, name: str) -> str:
        """Where a table lies, or would lie: directly in the warehouse, and not behind a link.

        Raises:
            ConfigurationError: no table can have this name here.
        """
        if not self.is_name(name):
            raise ConfigurationError(
                f"a table's name must be 1 to 128 letters, digits and _, the first no digit, got {name!r}"
            )
        path = os.path.join(self.folder, name)
        if os.path.islink(path):
            raise ConfigurationError(
                f"table {name!r} must lie in the warehouse {self.folder!r}, got a link to "
                f"{os.path.realpath(path)!r}; open it as Table.open({os.path.realpath(path)!r})"
            )
        return path

    def existing(self, name: str) -> str:
        """Where a table lies.

        Raises:
            ConfigurationError: no table can have this name here.
            TableNotFoundError: there is none; the message has a name that is much like it.
        """
        path = self.path(name)
        if not self._has(name):
            raise self.not_found(name)
        return path

    def is_taken(self, name: str) -> bool:
        """Whether something lies at a name, also what a query fills or has left."""
        return os.path.isdir(self.path(name))

    def drop(self, name: str) -> bool:
        """Take a table away with all that lies in its folder; False if there is none.

        It is gone at one moment; what remains of its files after a crash goes with the next one dropped.
        """
        path = self.path(name)
        with persistence.ddl_lock(self.folder):
            if not self._has(name):
                return False
            self.throw_away(path)
        self.empty_trash()
        return True

    def rename(self, name: str, to: Warehouse, new: str, prepare: Callable[[], None]) -> None:
        """Give a table another name, maybe in another database of the warehouse, at one moment.

        Args:
            name: of the table.
            to: the tables among which it will be.
            new: its name there.
            prepare: is called while nobody else creates or drops a table.

        Raises:
            ConfigurationError: a name is not possible, or the tables lie in an object store.
            TableNotFoundError: there is no such table.
            TableExistsError: something has the new name.
        """
        target = to.path(new)
        if not storage_of(target).is_local:
            raise ConfigurationError(
                f"table {name!r}: RENAME TO needs a warehouse on a file system, where folders can move, got "
                f"{self.folder!r}; create another table, and copy the rows"
            )
        with ExitStack() as locks:
            for folder in sorted({self.folder, to.folder}):
                locks.enter_context(persistence.ddl_lock(folder))
            prepare()
            if os.path.lexists(target):
                raise TableExistsError(f"table {new!r} exists already in {to.folder!r}; choose another name")
            os.rename(self.existing(name), target)
            sync_folder(to.folder)
            sync_folder(self.folder)

    def throw_away(self, path: str) -> None:
        """Take a folder of the warehouse out of sight at one moment; the caller holds the catalog's lock."""
        os.rename(path, os.path.join(self.folder, f"{trash.DROPPED}{uuid.uuid4().hex}"))
        sync_folder(self.folder)

    def not_found(self, name: str) -> TableNotFoundError:
        """The error that says which tables there are."""
        known = self.names()
        if close := get_close_matches(name, known, n=1):
            hint = f"did you mean {close[0]!r}?"
        else:
            hint = f"tables are {', '.join(known)}" if known else "it has no tables yet"
        return TableNotFoundError(f"table {name!r} does not exist in {self.folder!r}; {hint}")

    def _has(self, name: str) -> bool:
        path = os.path.join(self.folder, name)
        is_table = not os.path.islink(path) and os.path.isfile(os.path.join(path, TABLE_FILE))
        return is_table and is_visible(path)

    def empty_trash(self) -> None:
        """Delete the files of dropped tables, also of those whose DROP TABLE was killed half-way."""
        trash.empty_trash(self.folder)
