"""Where the parts of a SELECT stand in its text: sqlglot's tree knows it of names alone (pure)."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import Final

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from upsert.sql.dialect import START, outside_of_brackets, tokens_of

Span = tuple[int, int]
"""From where to where a part stands."""

_OF_JOINS: Final = frozenset(
    {"JOIN", "INNER", "LEFT", "RIGHT", "FULL", "OUTER", "CROSS", "SEMI", "ANTI", "NATURAL"}
)
"""Words before the table of a join."""


class Clauses:
    """The places of the parts of a SELECT of tables by their names.

    Args:
        text: of the query.
        select: its tree.
        subject: begins errors.

    >>> from upsert.sql.dialect import query_tree
    >>> text = "SELECT a, b + 1 AS c FROM t JOIN u ON x = y LEFT JOIN v ON x = z WHERE a > 1 GROUP BY a, 2"
    >>> found = Clauses(text, query_tree(text, "query"), "query")
    >>> spans = [*found.items, found.value(1), found.on(1), found.on(2), found.where, *found.groups]
    >>> [text[start:end].strip() for start, end in spans]
    ['a', 'b + 1 AS c', 'b + 1', 'x = y', 'x = z', 'a > 1', 'a', '2']
    """

    def __init__(self, text: str, select: exp.Select, subject: str) -> None:
        self._select, self._end = select, len(text)
        tables = [select.args["from_"].this, *(join.this for join in select.args.get("joins") or ())]
        self._tables = [int(table.parts[0].meta[START]) for table in tables]
        self._words = list(outside_of_brackets(tokens_of(text, subject)))

    @cached_property
    def items(self) -> list[Span]:
        """Each item of SELECT."""
        first = self._words[0]
        for word in (TokenType.HINT, TokenType.DISTINCT):
            first = next((token for token in self._words[1:3] if token.token_type is word), first)
        before = [token for token in self._words if token.end < self._tables[0]]
        marks = pairwise([first, *_commas(before), before[-1]])  # the last one is FROM
        return [(one.end + 1, following.start) for one, following in marks]

    def value(self, place: int) -> Span:
        """An item of SELECT without the name that it gets."""
        (start, end), item = self.items[place], self._select.expressions[place]
        if isinstance(item, exp.Alias):
            end = item.args["alias"].meta[START]
            words = [token for token in self._words if start <= token.start < end]
            if len(words) > 1 and _is_word(words[-2], words[-1], "AS"):
                end = words[-1].start
        return start, end

    def on(self, place: int) -> Span:
        """The condition of a join, by the place of its table."""
        words = self._from(self._tables[place])
        begin = next(token for before, token in pairwise(words) if _is_word(before, token, "ON"))
        if place + 1 == len(self._tables):
            return begin.end + 1, self._end if self._behind is None else self._behind.start
        at = max(number for number, token in enumerate(words) if token.start < self._tables[place + 1])
        while _is_word(words[at - 2], words[at - 1], *_OF_JOINS):
            at -= 1
        return begin.end + 1, words[at].start

    @property
    def where(self) -> Span:
        """The condition of WHERE, which there must be."""
        assert self._behind is not None
        return self._behind.end + 1, self._end if self._group_by is None else self._group_by[0].start

    @property
    def groups(self) -> list[Span]:
        """Each value of GROUP BY."""
        if self._group_by is None:
            return []
        _, by = self._group_by
        commas = _commas(self._from(by.end + 1))
        starts = [by.end + 1, *(one.end + 1 for one in commas)]
        return list(zip(starts, [*(one.start for one in commas), self._end], strict=True))

    @cached_property
    def _behind(self) -> Token | None:
        """The word WHERE, or GROUP, behind the last table; None for the end of the text."""
        words = pairwise(self._from(self._tables[-1]))
        return next((token for before, token in words if _is_word(before, token, "WHERE", "GROUP")), None)

    @cached_property
    def _group_by(self) -> tuple[Token, Token] | None:
        pairs = pairwise(self._from(self._tables[-1]))
        return next((pair for pair in pairs if [one.text.upper() for one in pair] == ["GROUP", "BY"]), None)

    def _from(self, start: int) -> list[Token]:
        return [token for token in self._words if token.start >= start]


def _commas(words: list[Token]) -> list[Token]:
    return [token for token in words if token.token_type is TokenType.COMMA]


def _is_word(before: Token, token: Token, *words: str) -> bool:
    """Whether a token is a keyword: after a dot it is a column, and in quotes a name."""
    is_name = token.token_type in (TokenType.IDENTIFIER, TokenType.STRING)
    return token.text.upper() in words and before.token_type is not TokenType.DOT and not is_name
