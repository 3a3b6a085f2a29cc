"""The tables that a query reads, and how they are joined, from left to right (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from sqlglot import exp

from upsert.catalog.run.without_spark.columns import Columns, Known
from upsert.catalog.run.without_spark.words import NotPlainError
from upsert.sql.dialect import visible_name
from upsert.sql.predicates import conjuncts
from upsert.sql.query import QueryText


class JoinKind(StrEnum):
    """Which rows of two tables come out of their join."""

    INNER = "INNER"
    LEFT = "LEFT"
    RIGHT = "RIGHT"
    FULL = "FULL"
    SEMI = "SEMI"
    ANTI = "ANTI"

    @property
    def keeps_left(self) -> bool:
        """Whether a row of the left that meets none comes out, with NULLs for the right."""
        return self in (JoinKind.LEFT, JoinKind.FULL)

    @property
    def keeps_right(self) -> bool:
        """Whether a row of the right that meets none comes out, with NULLs for the left."""
        return self in (JoinKind.RIGHT, JoinKind.FULL)

    @property
    def has_pairs(self) -> bool:
        """Whether rows have columns of both."""
        return self not in (JoinKind.SEMI, JoinKind.ANTI)


@dataclass(frozen=True)
class Join:
    """How a table is joined to what stands before it.

    Attributes:
        equal: columns of what stands before, and those of the table that they equal.
        merged: columns that are made of such pairs, of each the value that is not NULL.
    """

    kind: JoinKind
    equal: tuple[tuple[str, str], ...]
    merged: tuple[str, ...] = ()

    @property
    def made(self) -> dict[str, tuple[str, str]]:
        """The merged columns, and of which two each is made."""
        return dict(zip(self.merged, self.equal, strict=False))


@dataclass(frozen=True)
class Relation:
    """What a query reads: the columns that it may name, and the joins of its tables; none for one table."""

    columns: Columns
    joins: tuple[Join, ...]

    def may_be_padded(self, table: int) -> bool:
        """Whether a row that comes out may have NULLs in place of one of the table."""
        return any(
            join.kind.keeps_left if number == table else number > table and join.kind.keeps_right
            for number, join in enumerate(self.joins, 1)
        )


def column_of(table: int, name: str, tables: int) -> str:
    """What a column of one of the tables of a query is called among their rows; its own name if it is one."""
    return name if tables == 1 else f"{table}.{name}"


_KNOWN: Final = frozenset({"this", "db", "catalog", "alias", "version"})


def relation(query: QueryText, tree: exp.Select, names: Sequence[Sequence[str]]) -> Relation:
    """That of a query whose tables have columns with these names, and whose words have a known form.

    Raises:
        NotPlainError: it is Spark's.
        UnknownColumnError: ON names a column that no table has.

    >>> query = QueryText.of("SELECT * FROM orders o LEFT JOIN products AS p ON p.id = product_id")
    >>> found = relation(query, query.tree, [["id", "product_id"], ["id", "name"]])
    >>> found.joins[0].equal, [one.column for one in found.columns.star(exp.Star())]
    ((('0.product_id', '1.id'),), ['0.id', '0.product_id', '1.id', '1.name'])
    """
    joins = tree.args.get("joins") or []
    tables = [tree.args["from_"].this, *(join.this for join in joins)]
    called = tuple(visible_name(table).lower() for table in tables)
    if len(tables) != len(names) or len(set(called)) < len(called) or not all(map(_is_alone, tables)):
        raise NotPlainError
    columns = [
        tuple(Known(name, column_of(number, name, len(tables)), number) for name in own)
        for number, own in enumerate(names)
    ]
    found = Relation(Columns(query, called, columns[0], tuple(map(tuple, names))), ())
    for node, own in zip(joins, columns[1:], strict=True):
        found = _joined(found, node, own)
    return found


def _is_alone(table: exp.Expr) -> bool:
    """Whether a source is a table, maybe one with an alias or as of a version, and nothing else."""
    if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
        return False
    alias = table.args.get("alias")
    return {part for part, given in table.args.items() if given} <= _KNOWN and not (alias and alias.columns)


def _joined(before: Relation, node: exp.Join, own: Sequence[Known]) -> Relation:
    """What a join makes of what stands before it, and a table with these columns."""
    kind = JoinKind(node.kind if node.kind in ("SEMI", "ANTI") else node.side or "INNER")
    names = [name.name for name in node.args.get("using") or ()]
    if names:
        return _using(before, kind, names, own)
    both = replace(before.columns, known=(*before.columns.known, *own))
    join = Join(kind, tuple(_equal(node.args.get("on"), both, own)))
    return Relation(both if kind.has_pairs else before.columns, (*before.joins, join))


def _equal(on: exp.Expr | None, both: Columns, own: Sequence[Known]) -> Iterator[tuple[str, str]]:
    """The columns that ON says are equal, that of the table last."""
    if on is None:
        raise NotPlainError
    for part in conjuncts(on):
        if not isinstance(part, exp.EQ):
            raise NotPlainError
        one, other = (both.found(side.unnest()) for side in (part.left, part.right))
        if (one in own) == (other in own):
            raise NotPlainError
        yield (other.column, one.column) if one in own else (one.column, other.column)


def _using(before: Relation, kind: JoinKind, names: Sequence[str], own: Sequence[Known]) -> Relation:
    """A join with USING: its columns come first, and once."""
    shown = [one for one in before.columns.known if not one.is_hidden]
    lefts, rights = ([_named(name, given) for name in names] for given in (shown, own))
    if len(set(lefts)) < len(lefts):
        raise NotPlainError
    equal = tuple((left.column, right.column) for left, right in zip(lefts, rights, strict=True))
    made = list[Known]()
    if kind is JoinKind.FULL:
        made = [
            Known(left.name, f"{left.column}+{right}", None)
            for left, (_, right) in zip(lefts, equal, strict=True)
        ]
    firsts = {JoinKind.RIGHT: rights, JoinKind.FULL: made}.get(kind, lefts)
    hidden = {JoinKind.RIGHT: lefts, JoinKind.FULL: [*lefts, *rights]}.get(kind, rights)
    others = [one for one in (*shown, *own) if one not in (*lefts, *rights)]
    if not kind.has_pairs:
        hidden, others = [], [one for one in shown if one not in lefts]
    known = (
        *firsts,
        *others,
        *(replace(one, is_hidden=True) for one in hidden),
        *(one for one in before.columns.known if one.is_hidden),
    )
    join = Join(kind, equal, tuple(one.column for one in made))
    return Relation(replace(before.columns, known=known), (*before.joins, join))


def _named(name: str, given: Sequence[Known]) -> Known:
    """The one column that is called so."""
    found = [one for one in given if one.name.lower() == name.lower()]
    if len(found) != 1:
        raise NotPlainError
    return found[0]
