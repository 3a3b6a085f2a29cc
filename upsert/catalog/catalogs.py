"""Several warehouses in one session, each a catalog with a name: ``CREATE CATALOG``, ``USE CATALOG``.

Names are those of the session: nothing of them is stored, so every session makes its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final

from upsert import options
from upsert.catalog.databases import Databases
from upsert.errors import ConfigurationError
from upsert.options import Option
from upsert.store.paths import table_folder

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
    >>> catalogs.create("archive", {"warehouse": tempfile.mkdtemp()})
    >>> catalogs.names(), catalogs.current.place("archive.default.orders").shown
    (('archive', 'main'), 'archive.default.orders')
    """

    def __init__(self, first: Databases) -> None:
        """With one catalog, the current one."""
        self._known = {first.catalog: first}
        first.siblings = self._known
        self._first = first
        self.current = first

    def names(self) -> tuple[str, ...]:
        """Names of all catalogs, sorted."""
        return tuple(sorted(self._known))

    def create(self, name: str, given: Mapping[str, str], *, if_not_exists: bool = False) -> None:
        """Know one more warehouse by a name.

        Raises:
            ConfigurationError: the name is not possible or taken, or an option is wrong.
        """
        values = options.parse(f"catalog {name!r}", OPTIONS, given)
        if name in self._known:
            if if_not_exists:
                return
            raise ConfigurationError(
                f"catalog {name!r} exists already, for {self._known[name].folder!r}; choose another name, or "
                "IF NOT EXISTS"
            )
        databases = Databases(table_folder(values["warehouse"]), name)
        databases.siblings = self._known
        self._known[name] = databases

    def drop(self, name: str, *, if_exists: bool = False) -> None:
        """Forget a catalog; its tables stay.

        Raises:
            ConfigurationError: there is none, it is the current one, or the one that the session began with.
        """
        if if_exists and name not in self._known:
            return
        if self._of(name) in (self.current, self._first):
            raise ConfigurationError(
                f"catalog {name!r}: neither the one in use nor the one of the session can be dropped; USE "
                "CATALOG another one"
            )
        del self._known[name]

    def use(self, name: str) -> None:
        """Make a catalog the current one, with the database that was current in it.

        Raises:
            ConfigurationError: there is none.
        """
        self.current = self._of(name)

    def database(self, name: str) -> tuple[Databases, str]:
        """The catalog and the own name of a database: ``database``, or ``catalog.database``.

        Raises:
            ConfigurationError: there is no such catalog.
        """
        catalog, _, own = name.partition(".")
        if catalog.isidentifier() and own.isidentifier():
            return self._of(catalog), own
        return self.current, name  # which refuses what no database can be called

    def _of(self, name: str) -> Databases:
        if name not in self._known:
            close = get_close_matches(name, self._known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"catalogs are {', '.join(self.names())}"
            raise ConfigurationError(f"catalog {name!r} does not exist in this session; {hint}")
        return self._known[name]
