"""How a view is kept, as a tree of the hidden tables that it is computed from (pure): what EXPLAIN draws."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from upsert.schema import TableSchema


@dataclass(frozen=True)
class Part:
    r"""The view or a hidden table, and what it is made of.

    Attributes:
        name: the folder of the hidden table; "" for the view.
        title: what it is, its key, its indexes, and its rows as far as they are known.
        notes: how it is kept, and why so; a line each.
        plan: what is computed, as text; "" if the notes say that.
        inputs: hidden tables that it reads.
        reads: names of all tables that it reads itself.

    A table that is drawn already is only named.

    >>> stage = Part("a1", "stage a1, 3 groups", ("by changes: of a step of t",), "Sums")
    >>> table = Part("b2", "table b2", ("by changes: the results of its stage",), "", (stage,))
    >>> print(Part("", "the view", ("all rows",), "Sort\n  Read", (table, stage)))
    the view
    │  all rows
    │    Sort
    │      Read
    ├─ table b2
    │  │  by changes: the results of its stage
    │  └─ stage a1, 3 groups
    │        by changes: of a step of t
    │          Sums
    └─ stage a1, 3 groups: as above
    >>> sorted(table.hidden)
    ['a1', 'b2']
    """

    name: str = ""
    title: str = ""
    notes: tuple[str, ...] = ()
    plan: str = ""
    inputs: tuple[Part, ...] = ()
    reads: frozenset[str] = frozenset()

    @property
    def hidden(self) -> frozenset[str]:
        """Names of the hidden tables in this tree."""
        own = frozenset((self.name,) if self.name else ())
        return own.union(*(one.hidden for one in self.inputs))

    def over(self, tables: Sequence[Part]) -> Part:
        """The tree with further hidden tables below all that read them.

        >>> stage = Part("a1", "stage a1", (), reads=frozenset(("b2", "t")))
        >>> print(Part("", "the view", (), inputs=(stage,)).over([Part("b2", "table b2", ())]))
        the view
        └─ stage a1
           └─ table b2
        """
        placed = self._over(tables)
        left = tuple(one for one in tables if one.name not in placed.hidden)
        return replace(placed, inputs=(*placed.inputs, *left))

    def _over(self, tables: Sequence[Part]) -> Part:
        inputs = tuple(one._over(tables) for one in self.inputs)
        read = tuple(one for one in tables if one.name in self.reads)
        return replace(self, inputs=(*inputs, *read))

    def to_json(self) -> dict[str, Any]:
        """The same as values of JSON; a hidden table that several read is whole below each of them."""
        own = {
            "name": self.name,
            "title": self.title,
            "notes": list(self.notes),
            "plan": self.plan.splitlines(),
        }
        return {**own, "inputs": [one.to_json() for one in self.inputs]}

    def __str__(self) -> str:
        return "\n".join(self._lines(set()))

    def _lines(self, drawn: set[str]) -> Iterator[str]:
        if self.name in drawn:
            yield f"{self.title}: as above"
            return
        drawn.add(self.name)
        yield self.title
        bar = "│  " if self.inputs else "   "
        yield from (f"{bar}{note}" for note in self.notes)
        yield from (f"{bar}  {line}" for line in self.plan.splitlines())
        for number, one in enumerate(self.inputs, 1):
            is_last = number == len(self.inputs)
            first, *others = one._lines(drawn)
            yield f"{'└─' if is_last else '├─'} {first}"
            yield from (f"{'   ' if is_last else '│  '}{line}" for line in others)


def once(parts: Iterable[Part]) -> tuple[Part, ...]:
    """The parts, each hidden table once."""
    return tuple({one.name: one for one in parts}.values())


def keys_of(schema: TableSchema) -> str:
    """The key and the indexes of a table in words.

    >>> import pyarrow as pa
    >>> from upsert.schema import Column, Index
    >>> columns = Column("a", pa.int64()), Column("b", pa.int64())
    >>> keys_of(TableSchema(columns, ("a",), (Index.over(["b"]),)))
    'PRIMARY KEY (a), INDEX (b)'
    """
    key = [f"PRIMARY KEY ({', '.join(schema.primary_key)})"] if schema.primary_key else []
    return ", ".join([*key, *(f"INDEX ({', '.join(index.columns)})" for index in schema.indexes)])


def named(names: Sequence[str]) -> str:
    """Some tables in words.

    >>> named(["b", "a", "c"]), named(["a"])
    ('a, b and c', 'a')
    """
    *others, last = sorted(names)
    return f"{', '.join(others)} and {last}" if others else last
