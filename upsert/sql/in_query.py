"""``WHERE column IN (SELECT …)`` of a query: that in it, and the one around it over given rows (pure)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from upsert.sql.dialect import END, Edit, tokens_of
from upsert.sql.predicates import conjuncts, ends_with
from upsert.sql.query import QueryText
from upsert.sql.tokens import white
from upsert.types import quoted

GIVEN: Final = ":given"
"""What the rows in place of a query are called."""


@dataclass(frozen=True)
class InQuery:
    """A condition that rows must meet to be among those of a query.

    Attributes:
        column: of the query's table.
        rows: the query whose values the column must be among.
        over_given: the query around it, which reads ``GIVEN`` in its place.
    """

    column: str
    rows: QueryText
    over_given: QueryText


def in_query(query: QueryText) -> InQuery | None:
    """The first such condition of a query of one table; None if it has none, or parameters by their places.

    >>> found = in_query(QueryText.of("SELECT * FROM t WHERE n > 1 AND t.id IN (SELECT k FROM s)"))
    >>> found.column, found.rows.text, found.over_given.worded.text
    ('id', 'SELECT k FROM s', 'SELECT * FROM t WHERE n > 1 AND t.id IN (SELECT * FROM `:given`...)')
    """
    tree = query.tree
    where = tree.args.get("where") if isinstance(tree, exp.Select) else None
    if where is None or query.is_numbered or tree.args.get("joins"):
        return None
    table = tree.args["from_"].this
    if not isinstance(table, exp.Table):
        return None
    name = [table.alias] if table.alias else [part.name for part in table.parts]
    for part in conjuncts(where.this):
        column = part.this if isinstance(part, exp.In) else None
        if not isinstance(column, exp.Column) or part.args.get("query") is None:
            continue
        before = [one.name for one in column.parts[:-1]]
        if (not before or ends_with(name, before)) and (span := _in_brackets(query, column)) is not None:
            return InQuery(
                column.name, replace(query, start=span[0], end=span[1], edits=()), _over(query, *span)
            )
    return None


def _in_brackets(query: QueryText, column: exp.Column) -> tuple[int, int] | None:
    """Where in the statement the text in the brackets after ``column IN`` stands."""
    after = [
        one for one in tokens_of(query.worded.text, query.subject) if one.start > column.parts[-1].meta[END]
    ]
    if [one.token_type for one in after[:2]] != [TokenType.IN, TokenType.L_PAREN]:
        return None
    depth = 0
    for token in after[1:]:
        depth += (token.token_type is TokenType.L_PAREN) - (token.token_type is TokenType.R_PAREN)
        if depth == 0:
            return query.worded.original(after[1].start) + 1, query.worded.original(token.start)
    return None


def _over(query: QueryText, start: int, end: int) -> QueryText:
    text = query.statement
    edit = Edit(start, start, f"SELECT * FROM {quoted(GIVEN)}")
    return replace(
        query,
        statement=text[:start] + white(text[start:end]) + text[end:],
        edits=(*query.edits, edit),
    )
