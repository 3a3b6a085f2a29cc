"""Which columns and fields of a table a query may read, by the names in its text: rather too many (pure).

Spark alone knows what a name means. A text tells it where each of its parts is one whose names are understood
here; of a query with any other part all columns and rows are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from upsert.sql.dialect import QueryDialect, TableChanges, visible_name

Path = tuple[str, ...]
"""A column, and fields within it."""

_NO_READS: Final = (exp.Column, exp.Dot, exp.Alias, exp.TableAlias, exp.Table, exp.ColumnDef)
"""Where an identifier stands that is a part of a longer name, or gives one."""

_OF_QUERIES: Final = "with_ order sort distribute cluster limit offset "
_KNOWN: Final[dict[type[exp.Expr], str]] = {
    exp.Select: _OF_QUERIES
    + "expressions hint distinct from_ laterals joins where group having qualify windows",
    exp.Union: _OF_QUERIES + "this expression distinct by_name",
    exp.Intersect: _OF_QUERIES + "this expression distinct by_name",
    exp.Except: _OF_QUERIES + "this expression distinct by_name",
    exp.Subquery: _OF_QUERIES + "this alias joins laterals",
    exp.Values: "expressions alias order limit offset",
    exp.With: "expressions recursive",
    exp.CTE: "this alias",
    exp.From: "this",
    exp.Table: "this db catalog alias joins laterals version",
    exp.TableAlias: "this columns",
    exp.Version: "this kind expression",
    exp.Join: "this on using side kind",
    exp.Lateral: "this alias view outer",
    exp.Where: "this",
    exp.Group: "expressions rollup cube grouping_sets all",
    exp.Rollup: "expressions",
    exp.Cube: "expressions",
    exp.GroupingSets: "expressions",
    exp.Having: "this",
    exp.Qualify: "this",
    exp.Distinct: "expressions",
    exp.Order: "this expressions",
    exp.Sort: "expressions",
    exp.Distribute: "expressions",
    exp.Cluster: "expressions",
    exp.Ordered: "this desc nulls_first",
    exp.Limit: "expression",
    exp.Offset: "expression",
    exp.WindowSpec: "kind start start_side end end_side",
    exp.Hint: "expressions",
    exp.JoinHint: "this expressions",
    exp.Alias: "this alias",
    exp.Aliases: "this expressions",
    exp.Star: "except_",
    exp.Identifier: "this quoted",
    exp.Var: "this",
    exp.Tuple: "expressions",
    exp.Lambda: "this expressions",
    exp.Filter: "this expression",
    exp.WithinGroup: "this expression",
    exp.IgnoreNulls: "this",
    exp.RespectNulls: "this",
    exp.Interval: "this unit",
    exp.IntervalSpan: "this expression",
    exp.AtTimeZone: "this zone",
    exp.DataType: "this expressions nested collate",
    exp.DataTypeParam: "this",
    exp.ColumnDef: "this kind constraints",  # a field of a STRUCT
    exp.ColumnConstraint: "kind",
    exp.CommentColumnConstraint: "this",
    exp.NotNullColumnConstraint: "",
    exp.JSONPath: "expressions",
    exp.JSONPathRoot: "",
    exp.JSONPathKey: "this quoted",
    exp.JSONPathSubscript: "this",
    exp.JSONPathWildcard: "",
}
"""The parts of a query of which it is known which names stand in them, and where; with what they may have.

Every operator and function is one beside these: it takes values, of columns that are named in its brackets.
"""

_NAMES_BY_A_TEXT: Final = {"identifier"}
"""Functions that make a name of a text."""

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


def is_understood(tree: exp.Expr) -> bool:
    """Whether all parts of a query are such that its names tell which columns it reads.

    >>> from upsert.sql.dialect import query_tree
    >>> texts = ["SELECT id FROM t", "SELECT identifier('id') FROM t", "SELECT * FROM t NATURAL JOIN u"]
    >>> [is_understood(query_tree(text, "query")) for text in texts]
    [True, False, False]
    """
    return all(map(_is_known, tree.walk()))


def _is_known(node: exp.Expr) -> bool:
    known = _KNOWN.get(type(node))
    if known is not None:
        return all(name in known.split() for name, value in node.args.items() if value)
    is_name = isinstance(node, exp.Anonymous) and node.name.lower() in _NAMES_BY_A_TEXT
    return isinstance(node, exp.Condition | TableChanges) and not is_name


def reads_of(table: exp.Table, tree: exp.Expr) -> Reads | None:
    """What an understood query may read of one of its tables; None: columns by their position, or all."""
    select = table.find_ancestor(exp.Select)
    stars = [star for star in tree.find_all(exp.Star) if not isinstance(star.parent, exp.Count)]
    if not isinstance(select, exp.Select):
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
    for unit in within.find_all(exp.Var):  # of date_trunc(unit, c), which may be a column
        yield (unit.name.lower(),)


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
