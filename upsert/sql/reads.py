"""Which columns and fields of a table a query may read, by the names in its text: rather too many (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from upsert.sql.dialect import QueryDialect, visible_name

Path = tuple[str, ...]
"""A column, and fields within it."""

_NO_READS: Final = (exp.Column, exp.Dot, exp.Alias, exp.TableAlias, exp.Table)
"""Where an identifier stands that is a part of a longer name, or gives one."""

_WORDS: Final[dict[type[exp.Expr], list[str]]] = {}
for _token, _function in QueryDialect.Parser.NO_PAREN_FUNCTIONS.items():
    _WORDS.setdefault(_function, []).append(_token.name.lower())


@dataclass(frozen=True)
class Reads:
    """What a query may read of one of its tables.

    Attributes:
        paths: the names with dots that may be columns of the table, or fields in these, in lower case.
        has_star: whether a ``*`` gives columns that the text does not name; those that the query shows, or
            names elsewhere, are read.
    """

    paths: frozenset[Path]
    has_star: bool = False

    def may_have(self, path: Sequence[str], shown: Sequence[str]) -> bool:
        """Whether a column or a field may be read, or what it lies in, by a query that shows some columns.

        >>> from upsert.sql.query import QueryText
        >>> (reads,) = QueryText.of("SELECT id, at.lat FROM stops").reads
        >>> [reads.may_have(path, ()) for path in (["id"], ["at"], ["at", "lat"], ["at", "lon"], ["name"])]
        [True, True, True, False, False]
        """
        asked = tuple(name.lower() for name in path)
        known = {*self.paths, *((name.lower(),) for name in shown if self.has_star)}
        return any(asked[: len(one)] == one[: len(asked)] for one in known)


def names_in(tree: exp.Expr) -> Iterator[str]:
    """All names in a query that may be columns of its tables, in lower case.

    Words as ``current_date`` are functions only where no column is called so.
    """
    for node in tree.walk():
        if isinstance(node, exp.Identifier):
            yield node.name.lower()
        else:
            yield from _WORDS.get(type(node), ())


def reads_of(table: exp.Table, tree: exp.Expr) -> Reads | None:
    """What a query may read of one of its tables; None where it takes columns by their position, or all."""
    select = table.find_ancestor(exp.Select)
    stars = [star for star in tree.find_all(exp.Star) if not isinstance(star.parent, exp.Count)]
    is_natural = any(join.method == "NATURAL" for join in tree.find_all(exp.Join))
    pivots = (one.args.get("pivots") for one in tree.find_all(exp.Table, exp.Subquery, exp.Select))
    if not isinstance(select, exp.Select) or is_natural or any(pivots):
        return None
    if stars and any(map(_renames, tree.find_all(exp.TableAlias))):
        return None
    if not all(map(_gives_names, stars)):
        return None
    within = tree if stars else select
    return Reads(frozenset(_paths(within, visible_name(table).lower())), bool(stars))


def _gives_names(star: exp.Star) -> bool:
    """Whether a star's columns are found by their names where they are used: none counts by its position."""
    item = star.parent if isinstance(star.parent, exp.Column) else star
    select = item.parent
    if not isinstance(select, exp.Select) or item.arg_key != "expressions" or select.args.get("distinct"):
        return False
    around = select.parent
    if isinstance(around, exp.Subquery):
        return isinstance(around.parent, exp.From | exp.Join)
    return around is None or isinstance(around, exp.CTE | exp.Exists)


def _renames(alias: exp.TableAlias) -> bool:
    """Whether an alias gives the columns of a query other names."""
    return bool(alias.columns) and not isinstance(alias.parent, exp.Lateral)


def _paths(within: exp.Expr, table: str) -> Iterator[Path]:
    """Names with dots, as they are and without the table before them."""
    for node in within.find_all(exp.Column, exp.Dot):
        if not isinstance(node.parent, exp.Dot) or node.arg_key != "this":
            path = _names(node)
            yield from [path] if path else []
            yield from (path[at:] for at in range(1, len(path)) if path[at - 1] == table)
    for name in within.find_all(exp.Identifier):
        if not isinstance(name.parent, _NO_READS):
            yield (name.name.lower(),)
    for function in within.find_all(*_WORDS):
        yield from ((word,) for word in _WORDS[type(function)])


def _names(node: exp.Expr) -> Path:
    """The parts of a name; () of what is computed, which names its columns itself. A star is no part."""
    if isinstance(node, exp.Dot):
        before = _names(node.this)
        return (*before, node.expression.name.lower()) if before else ()
    if isinstance(node, exp.Identifier):
        return (node.name.lower(),)
    if isinstance(node, exp.Column):
        return tuple(part.name.lower() for part in node.parts if isinstance(part, exp.Identifier))
    return ()
