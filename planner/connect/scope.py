"""Which columns a query over Spark Connect may name, and what a star is: the tables of one SELECT (pure).

The order is Spark's: a join by USING puts the columns that it equates first, once each. Those of the other
side are seen only behind the name of their table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from sqlglot import exp

from deltajoin.expressions import Ref
from upsert.errors import SchemaError
from upsert.sql.dialect import spelled
from upsert.types import quoted


@dataclass(frozen=True)
class Listed:
    """A column that a SELECT may name.

    Attributes:
        name: its own.
        table: the table of the query whose column it is; None for one that USING makes of two.
        value: in Spark SQL, over a column for each table.
        ref: the column of a stored table that it is; None for one that is computed.
    """

    name: str
    table: str | None
    value: str
    ref: Ref | None


class Named(NamedTuple):
    """The column that a part of the text names.

    Attributes:
        column: it.
        parts: how many of the words with dots between name it; fields of it follow.
    """

    column: Listed
    parts: int


def listed(table: str, columns: Mapping[str, Ref | None]) -> tuple[Listed, ...]:
    """The columns of a table of the query, by its name there."""
    return tuple(Listed(name, table, f"{quoted(table)}.{quoted(name)}", ref) for name, ref in columns.items())


@dataclass(frozen=True)
class Scope:
    """The columns of some joined tables.

    Attributes:
        columns: those that a star gives, in its order.
        hidden: those that are seen only behind the name of their table, in the order of ``t.*``.
        subject: begins errors.
        outer: those of the query around, which a name means that none of these has.
    """

    columns: tuple[Listed, ...]
    subject: str
    hidden: tuple[Listed, ...] = ()
    outer: Scope | None = None

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables whose columns these are."""
        found = (one.table for one in (*self.columns, *self.hidden))
        return tuple(dict.fromkeys(table for table in found if table is not None))

    def joined(self, others: Sequence[Listed]) -> Scope:
        """With those of another table, joined by ON."""
        return replace(self, columns=(*self.columns, *others))

    def joined_using(self, others: Sequence[Listed], names: Sequence[str], kind: str) -> Scope:
        """With those of another table, joined by columns of one name each."""
        keys = self.shared(others, names)
        own, theirs = zip(*keys, strict=True)
        rest = [one for one in self.columns if one not in own]
        if kind in ("semi", "anti"):
            return replace(self, columns=(*own, *rest))
        match kind:
            case "right":
                first, hidden = theirs, own
            case "full":
                first, hidden = tuple(map(_either, own, theirs)), (*own, *theirs)
            case _:
                first, hidden = own, theirs
        rest += [one for one in others if one not in theirs]
        hidden = tuple(one for one in hidden if one.table is not None)
        return replace(self, columns=(*first, *rest), hidden=(*hidden, *self.hidden))

    def shared(self, others: Sequence[Listed], names: Sequence[str]) -> list[tuple[Listed, Listed]]:
        """The columns of some names, of both sides."""
        return [(self._one(name, self.columns), self._one(name, others)) for name in names]

    def shared_with(self, others: Sequence[Listed]) -> tuple[str, ...]:
        """The names that columns of both have: those of a NATURAL JOIN."""
        theirs = {one.name.lower() for one in others}
        return tuple(one.name for one in self.columns if one.name.lower() in theirs)

    def _one(self, name: str, columns: Sequence[Listed]) -> Listed:
        found = [one for one in columns if one.name.lower() == name.lower()]
        if len(found) != 1:
            where = "several columns of one side" if found else "no column of one side"
            known = ", ".join(_in_words(one) for one in columns)
            raise SchemaError(f"{self.subject}: USING ({name}) names {where}; there are {known}")
        return found[0]

    def named(self, column: exp.Column) -> Named:
        """The column that a part of the text names.

        Raises:
            SchemaError: there is none, or there are several.
        """
        found = self._found(column)
        if not found and self.outer is not None:
            return self.outer.named(column)
        if len(found) == 1:
            return found[0]
        where = "several tables, write that of one" if found else "no table of the query"
        known = ", ".join(map(_in_words, self.columns))
        raise SchemaError(f"{self.subject}: column {spelled(column)!r} is in {where}; there are {known}")

    def knows(self, column: exp.Column) -> bool:
        """Whether a part of the text names one of the columns, or several."""
        return bool(self._found(column))

    def _found(self, column: exp.Column) -> list[Named]:
        first, *others = [part.name.lower() for part in column.parts]
        found = _of_table(self.columns, first, others)
        if not found:  # what follows it are its fields
            found = [Named(one, 1) for one in self.columns if one.name.lower() == first]
        return found or _of_table(self.hidden, first, others)

    def has(self, name: str) -> bool:
        """Whether some column has a name, in lower case."""
        return any(one.name.lower() == name for one in self.columns)

    def is_table(self, name: str) -> bool:
        """Whether a table has a name, in whatever case."""
        return name.lower() in map(str.lower, self.tables)

    def star(self, table: str | None) -> Iterator[Listed]:
        """The columns of a star, or of the star of a table."""
        if table is None:
            yield from self.columns
        else:
            own = (one for one in (*self.hidden, *self.columns) if one.table is not None)
            yield from (one for one in own if str(one.table).lower() == table.lower())


def _of_table(columns: Sequence[Listed], table: str, fields: Sequence[str]) -> list[Named]:
    """The columns that the words after a table's name mean, all in lower case."""
    own = (one for one in columns if fields and (one.table or "").lower() == table)
    return [Named(one, 2) for one in own if one.name.lower() == fields[0]]


def _either(own: Listed, other: Listed) -> Listed:
    """The column of a FULL JOIN by USING."""
    return Listed(own.name, None, f"coalesce({own.value}, {other.value})", None)


def _in_words(column: Listed) -> str:
    return column.name if column.table is None else f"{column.table}.{column.name}"
