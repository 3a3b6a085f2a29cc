"""A catalog's folder in an object store, where nothing can be moved: tables come and go by ``table.json``.

It appears by put-if-absent and goes by a deletion, each of which is one moment. The other files of a managed
table lie in a folder that is named by its uuid, so what remains of a dropped table is never taken for the
next one's, and can be deleted at any time: nothing appears in such a folder before ``table.json`` names it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from upsert.catalog.warehouse import Warehouse
from upsert.errors import ConfigurationError, CorruptTableError
from upsert.store import pointer
from upsert.store.left_folders import sweep
from upsert.store.logged_tables import drop_log
from upsert.store.paths import COMPACTION_ERROR, TABLE_FILE
from upsert.store.storage import storage_of
from upsert.store.storage.door import swapping


@dataclass(frozen=True)
class BucketWarehouse(Warehouse):
    """Tables are the folders directly in ``folder`` that have a ``table.json``."""

    def names(self) -> tuple[str, ...]:
        """Names of all tables, sorted."""
        found = filter(self.is_name, storage_of(self.folder).names(self.folder))
        return tuple(sorted(name for name in found if self._has(name)))

    def is_taken(self, name: str) -> bool:
        """Whether there is a table, or something that a query fills or has left."""
        return not pointer.is_free(pointer.value_in(self.path(name)))

    def drop(self, name: str) -> bool:
        """Take a table away with all its files; False if there is none.

        It is gone at one moment; what remains of its files after a crash goes when a table of this name is
        dropped again. Its log goes first, for only its files know of it.
        """
        path = self.path(name)
        if not self._has(name):
            return False
        drop_log(path)
        table_file = os.path.join(path, TABLE_FILE)
        swapping(table_file).take_away(table_file, pointer.FREE)
        storage_of(path).delete(os.path.join(path, COMPACTION_ERROR))
        sweep(path)
        return True

    def rename(self, name: str, to: Warehouse, new: str, prepare: Callable[[], None]) -> NoReturn:  # noqa: ARG002
        """Refused: see the module.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError(
            f"table {name!r}: a table in an object store keeps its name, got RENAME TO {new!r}; create "
            "a table of that name and INSERT INTO it"
        )

    def empty_trash(self) -> None:
        """Nothing: what is dropped is deleted where it lies."""

    def _has(self, name: str) -> bool:
        try:
            return pointer.has_table(pointer.value_in(os.path.join(self.folder, name)))
        except CorruptTableError:
            return True  # it can be dropped


def warehouse_at(folder: str) -> Warehouse:
    """The tables of a local folder, or of one in an object store."""
    return Warehouse(folder) if storage_of(folder).is_local else BucketWarehouse(folder)
