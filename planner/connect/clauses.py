"""Where the parts of a SELECT stand in its text: sqlglot's tree knows it of names alone (pure)."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from upsert.sql.dialect import START, outside_of_brackets, tokens_of

Span = tuple[int, int]
"""From where to where a part stands."""

_OF_JOINS: Final = frozenset(
    {"JOIN", "INNER", "LEFT", "RIGHT", "FULL", "OUTER", "CROSS", "SEMI", "ANTI", "NATURAL"}
)
"""Words before the table of a join."""


class Call(NamedTuple):
    """Where a call of a function stands.

    Attributes:
        whole: all of it.
        given: what it is given, without DISTINCT.
        where: the condition of its FILTER.
    """

    whole: Span
    given: Span
    where: Span | None = None


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
    >>> text = "SELECT 1 + sum(DISTINCT f(a)) FILTER (WHERE (b)) FROM t HAVING c"
    >>> found = Clauses(text, query_tree(text, "query"), "query")
    >>> [text[start:end].strip() for start, end in (*found.call(text.index("sum")), found.having)]
    ['sum(DISTINCT f(a)) FILTER (WHERE (b))', 'f(a)', '(b)', 'c']
    >>> text = "SELECT 1 FROM t WHERE NOT (t.a, b) NOT IN (q) AND b IN (r) AND NOT EXISTS (s)"
    >>> found = Clauses(text, query_tree(text, "query"), "query")
    >>> [(text[start:end], is_not) for (start, end), is_not in map(found.match, map(text.index, "qrs"))]
    [('(t.a, b) NOT IN (q)', True), ('b IN (r)', False), ('EXISTS (s)', False)]
    """

    def __init__(self, text: str, select: exp.Select, subject: str) -> None:
        self._select, self._end = select, len(text)
        tables = [select.args["from_"].this, *(join.this for join in select.args.get("joins") or ())]
        self._tables = [int(table.parts[0].meta[START]) for table in tables]
        self._tokens = list(tokens_of(text, subject))
        self._words = list(outside_of_brackets(self._tokens))

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
        ends = (one.start for one in (self._group_by and self._group_by[0], self._having) if one is not None)
        return self._behind.end + 1, next(ends, self._end)

    @property
    def groups(self) -> list[Span]:
        """Each value of GROUP BY."""
        if self._group_by is None:
            return []
        _, by = self._group_by
        commas = _commas(self._from(by.end + 1))
        starts = [by.end + 1, *(one.end + 1 for one in commas)]
        end = self._end if self._having is None else self._having.start
        return list(zip(starts, [*(one.start for one in commas), end], strict=True))

    @property
    def having(self) -> Span:
        """The condition of HAVING, which there must be."""
        assert self._having is not None
        return self._having.end + 1, self._end

    def call(self, start: int) -> Call:
        """A call of a function whose name begins at a place."""
        at = next(number for number, token in enumerate(self._tokens) if token.start == start)
        opens, closes = self._brackets(at + 1)
        has_distinct = self._tokens[at + 2].token_type is TokenType.DISTINCT
        given = (self._tokens[at + 2].end if has_distinct else opens.end) + 1, closes.start
        at = self._tokens.index(closes)
        behind = self._tokens[at + 1 : at + 3]
        if len(behind) < 2 or behind[0].text.upper() != "FILTER" or not _opens(behind[1]):
            return Call((start, closes.end + 1), given)
        opens, closes = self._brackets(at + 2)
        return Call((start, closes.end + 1), given, (self._tokens[at + 3].end + 1, closes.start))

    def match(self, start: int) -> tuple[Span, bool]:
        """The IN or EXISTS of a query whose name begins at a place, and whether it is a NOT IN."""
        at = next(number for number, token in enumerate(self._tokens) if token.start == start) - 2
        end = self._tokens[at + 3].end + 1
        if self._tokens[at].token_type is TokenType.EXISTS:
            return (self._tokens[at].start, end), False
        is_not = self._tokens[at - 1].token_type is TokenType.NOT
        at -= 1 + is_not
        if self._tokens[at].token_type is TokenType.R_PAREN:
            opens = (number for number, token in enumerate(self._tokens[:at]) if _opens(token))
            at = next(number for number in opens if self._brackets(number)[1] is self._tokens[at])
        while self._tokens[at - 1].token_type is TokenType.DOT:
            at -= 2
        return (self._tokens[at].start, end), is_not

    def _brackets(self, at: int) -> tuple[Token, Token]:
        """The bracket that opens at a place among the words, and the one that closes it."""
        depth = 0
        for token in self._tokens[at:]:
            depth += _opens(token) - (token.token_type is TokenType.R_PAREN)
            if depth == 0:
                return self._tokens[at], token
        raise AssertionError(f"the bracket at {self._tokens[at].start} is open")

    @cached_property
    def _behind(self) -> Token | None:
        """The word WHERE, GROUP or HAVING behind the last table; None for the end of the text."""
        return self._word("WHERE", "GROUP", "HAVING")

    @cached_property
    def _having(self) -> Token | None:
        return None if self._select.args.get("having") is None else self._word("HAVING")

    def _word(self, *words: str) -> Token | None:
        """The first of some words behind the last table."""
        pairs = pairwise(self._from(self._tables[-1]))
        return next((token for before, token in pairs if _is_word(before, token, *words)), None)

    @cached_property
    def _group_by(self) -> tuple[Token, Token] | None:
        pairs = pairwise(self._from(self._tables[-1]))
        return next((pair for pair in pairs if [one.text.upper() for one in pair] == ["GROUP", "BY"]), None)

    def _from(self, start: int) -> list[Token]:
        return [token for token in self._words if token.start >= start]


def _opens(token: Token) -> bool:
    return token.token_type is TokenType.L_PAREN


def _commas(words: list[Token]) -> list[Token]:
    return [token for token in words if token.token_type is TokenType.COMMA]


def _is_word(before: Token, token: Token, *words: str) -> bool:
    """Whether a token is a keyword: after a dot it is a column, and in quotes a name."""
    is_name = token.token_type in (TokenType.IDENTIFIER, TokenType.STRING)
    return token.text.upper() in words and before.token_type is not TokenType.DOT and not is_name
