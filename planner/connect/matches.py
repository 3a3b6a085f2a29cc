"""IN and EXISTS with a query in WHERE, which are semi and anti joins (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlglot import exp

from upsert.sql.dialect import START


@dataclass(frozen=True)
class Match:
    """IN or EXISTS with a query.

    Attributes:
        query: it, or the name that stands for it.
        values: what IN compares with its columns; () for EXISTS.
        is_negated: whether it must be false.
    """

    query: exp.Expr
    values: tuple[exp.Expr, ...]
    is_negated: bool

    @property
    def start(self) -> int:
        """Where the first name in the query stands, but in hints, which count from themselves; 0 for none."""
        names = (one for one in self.query.find_all(exp.Identifier) if one.find_ancestor(exp.Hint) is None)
        return min((int(one.meta[START]) for one in names if START in one.meta), default=0)

    @property
    def word(self) -> str:
        """What it is called."""
        return f"{'NOT ' if self.is_negated else ''}{'IN' if self.values else 'EXISTS'}"


def conjuncts(condition: exp.Expr | None) -> Iterator[exp.Expr]:
    """The parts of a condition that must all hold."""
    if condition is None:
        return
    inner = condition.unnest()
    if isinstance(inner, exp.And):
        yield from conjuncts(inner.this)
        yield from conjuncts(inner.expression)
    else:
        yield inner


def match_of(part: exp.Expr) -> Match | None:
    """The match that a part of WHERE asks for; None for any other condition.

    >>> import sqlglot
    >>> def found(condition):
    ...     match = match_of(sqlglot.parse_one(condition, dialect="spark"))
    ...     return match and (match.word, match.query.sql(), [one.sql() for one in match.values])
    >>> found("NOT (x.a NOT IN (SELECT b FROM y))")
    ('IN', '(SELECT b FROM y)', ['x.a'])
    >>> found("NOT EXISTS (SELECT b FROM y)"), found("(a, b) IN (SELECT b, c FROM y)")
    (('NOT EXISTS', 'SELECT b FROM y', []), ('IN', '(SELECT b, c FROM y)', ['a', 'b']))
    >>> found("a IN (1, 2)"), found("a > 1"), found("a IN ((SELECT b FROM y))")
    (None, None, None)
    """
    is_negated = False
    while isinstance(part, exp.Not | exp.Paren):
        is_negated ^= isinstance(part, exp.Not)
        part = part.this
    values = tuple[exp.Expr, ...]()
    if isinstance(part, exp.Exists):
        query = part.this
    elif isinstance(part, exp.In):
        query = part.args.get("query") or (part.expressions[0] if len(part.expressions) == 1 else None)
        given = part.this
        values = tuple(given.expressions) if isinstance(given, exp.Tuple) else (given.unnest(),)
    else:
        return None
    if isinstance(query, exp.Subquery) and isinstance(query.this, exp.Subquery):
        return None  # a value, in two pairs of brackets
    return Match(query, values, is_negated) if isinstance(query, exp.Query | exp.Column) else None
