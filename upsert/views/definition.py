"""What a materialized view is: a query, and the tables that it reads (pure).

All of it is one option in the definition of the view's table, so the view appears, changes and disappears
with one commit, as any table does. The query's text is kept as it was written. Names in it are looked up in
the database in which the view was created, and times are read and shown in the time zone of that session:
otherwise the rows would depend on who refreshes the view.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, Self

from upsert.codec import Jsonable
from upsert.errors import CorruptTableError
from upsert.store.table_options import MATERIALIZED_VIEW

OPTION: Final = MATERIALIZED_VIEW.key
"""The option of the view's table; no statement may set it."""


@dataclass(frozen=True)
class Base(Jsonable):
    """A table that the view's query reads.

    Attributes:
        name: as the query writes it.
        table: the table's database and name.
        uuid: the table; one that was dropped and made again is another.
    """

    name: str
    table: str
    uuid: str


@dataclass(frozen=True)
class ViewDefinition(Jsonable):
    """What CREATE MATERIALIZED VIEW says, beside what any table has.

    Attributes:
        query: its text.
        catalog: what the session called the catalog, for names of three parts.
        database: in which names without one are looked up.
        zone: the session's time zone.
        is_ansi: whether the session's arithmetic raises errors, as ANSI SQL wants it.
        bases: the tables that the query reads, each name once.
        is_suspended: whether nothing refreshes it until RESUME.

    >>> view = ViewDefinition("SELECT 1 AS one", "main", "default", "UTC", True, ())
    >>> ViewDefinition.from_option(view.to_option()) == view
    True
    """

    query: str
    catalog: str
    database: str
    zone: str
    is_ansi: bool
    bases: tuple[Base, ...]
    is_suspended: bool = False

    def to_option(self) -> str:
        """The value of the table's option."""
        return json.dumps(self.to_json())

    @classmethod
    def from_option(cls, value: str) -> Self:
        """What the table's option says.

        Raises:
            CorruptTableError: it says no view.
        """
        try:
            return cls.from_json(json.loads(value))
        except (ValueError, KeyError, TypeError, RecursionError) as cause:
            raise CorruptTableError(
                f"option {OPTION!r} must hold the definition of a view, got {cause!r}; create the view again"
            ) from cause

    @property
    def tables(self) -> tuple[str, ...]:
        """Database and name of each table that the query reads, each once, in the order of the text."""
        return tuple(dict.fromkeys(base.table for base in self.bases))
