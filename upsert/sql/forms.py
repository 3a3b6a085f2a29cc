"""Whether the words of a condition stand as in Spark's grammar, as far as it is evaluated here (pure).

sqlglot passes over a comma too many, a missing THEN, an open bracket or ``NOT NULL`` behind a column, and its
tree does not tell. So what is evaluated without Spark must also pass here, where a word is followed by what
Spark lets follow it. What this does not know is not of the form, though Spark may know it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from sqlglot.tokenizer_core import Token, TokenType

from upsert.sql.dialect import refusal, tokens_of

if TYPE_CHECKING:
    from upsert.sql.query import QueryText

NUMBER: Final = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?", re.I)
NAME: Final = re.compile("[A-Za-z0-9_]+")

_COMPARED: Final = frozenset({"=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>"})
_COMPUTED: Final = frozenset({"+", "-", "*", "/", "%", "DIV", "||", "&", "|", "^"})
_LIKE: Final = frozenset({"LIKE", "ILIKE", "RLIKE", "REGEXP"})
_PREDICATES: Final = frozenset({"IS", "NOT", "IN", "BETWEEN"})
_JOINING: Final = _PREDICATES | {"AND", "OR"}
_TRUTHS: Final = frozenset({"NULL", "TRUE", "FALSE", "UNKNOWN"})
TIMES: Final = frozenset({"DATE", "TIME", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ"})
_UNITS: Final = re.compile("(?:YEAR|MONTH|WEEK|DAY|HOUR|MINUTE|SECOND|MILLISECOND|MICROSECOND)S?")
_NO_NAMES: Final = frozenset(
    {"AND", "OR", "NOT", "IN", "IS", "BETWEEN", "WHEN", "THEN", "ELSE", "END", "AS", "FROM", "FOR", "ESCAPE"}
    | {"DIV", "SELECT", "VALUES", "WHERE", "ON", "USING", "EXISTS", "INTERVAL", "DISTINCT", "ALL", *_LIKE}
)
"""Words that are no names here, also where Spark would take them for such."""

_LIST: Final = frozenset({","})
_PHRASE: Final = frozenset({",", "FROM"})
_WITH_PHRASE: Final = ("SUBSTRING", "SUBSTR")
_OF_TWO: Final = ("NVL", "IFNULL")
"""Functions of two values, to sqlglot the same as COALESCE, which has any number."""

_FOLLOWING: Final = {
    "WHEN": frozenset({"THEN"}),
    "THEN": frozenset({"WHEN", "ELSE", "END"}),
    "ELSE": frozenset({"END"}),
    ",": _LIST,
    "FROM": frozenset({"FOR"}),
}
"""Of the words that end an operand, which ones end the next one."""

_TYPES: Final = frozenset(
    {"BOOLEAN", "BYTE", "TINYINT", "SHORT", "SMALLINT", "INT", "INTEGER", "LONG", "BIGINT", "FLOAT", "REAL"}
    | {"DOUBLE", "DECIMAL", "DEC", "NUMERIC", "STRING", "CHAR", "VARCHAR", "BINARY", *TIMES}
)
_WITH_DIGITS: Final = ("DECIMAL", "DEC", "NUMERIC", "CHAR", "VARCHAR", "TIME")


def is_expression(words: Sequence[Token]) -> bool:
    """Whether words are one expression.

    >>> from upsert.sql.dialect import tokens_of
    >>> texts = ["id IN (1, 2)", "id IN (1,, 2)", "a BETWEEN 1 2", "a NOT NULL", "a > 1e"]
    >>> [is_expression(tokens_of(text, "query")) for text in texts]
    [True, False, False, False, False]
    """
    return _misfit(words) is None


def are_named(words: Sequence[Token]) -> bool:
    """Whether words are expressions with names in quotes, as what an UPDATE sets in its query.

    >>> texts = ["1 AS `a`, CAST(b AS INT) AS `c`", "CASE WHEN a 1 END AS `c`"]
    >>> [are_named(tokens_of(text, "query")) for text in texts]
    [True, False]
    """
    begins = 0
    for at in outer(words, TokenType.ALIAS):
        if not is_expression(words[begins:at]):
            return False
        begins = at + 3  # behind the name and the comma
    return begins == len(words) + 1


def are_rows(words: Sequence[Token]) -> bool:
    """Whether words are rows of expressions, as behind VALUES.

    >>> [are_rows(tokens_of(text, "query")) for text in ["(1, 'a'), (2, NULL)", "(1,), (2, NULL)", "1, 2"]]
    [True, False, True]
    """
    rows = parts(words, TokenType.COMMA)
    if not all(row and row[0].token_type is TokenType.L_PAREN for row in rows):
        return all(map(is_expression, rows))
    are_closed = all(row[-1].token_type is TokenType.R_PAREN for row in rows)
    return are_closed and all(
        is_expression(cell) for row in rows for cell in parts(row[1:-1], TokenType.COMMA)
    )


def parts(words: Sequence[Token], sign: TokenType) -> list[Sequence[Token]]:
    """The words between signs that stand in no brackets."""
    ends = [-1, *outer(words, sign), len(words)]
    return [words[start + 1 : end] for start, end in pairwise(ends)]


def outer(words: Sequence[Token], kind: TokenType) -> list[int]:
    """The places of the words of a kind that stand in no brackets."""
    found, depth = [], 0
    for at, word in enumerate(words):
        depth += word.token_type in (TokenType.L_PAREN, TokenType.L_BRACKET)
        depth -= word.token_type in (TokenType.R_PAREN, TokenType.R_BRACKET)
        found += [at] if depth == 0 and word.token_type is kind else []
    return found


def has_plain_where(query: QueryText) -> bool:
    """Whether all behind the WHERE of a query is one expression."""
    words = tokens_of(query.worded.text, query.subject)
    return any(
        word.token_type is TokenType.WHERE and is_expression(words[at + 1 :]) for at, word in enumerate(words)
    )


def check_condition(text: str, subject: str) -> None:
    """Refuse a text that is no expression.

    Raises:
        SchemaError: it names the first word that does not fit.
    """
    words = tokens_of(text, subject)
    if (at := _misfit(words)) is not None:
        raise refusal(
            subject, "an expression goes on otherwise here", text, words[at] if at < len(words) else None
        )


def check_numbers(text: str, subject: str) -> None:
    """Refuse a text with a number that is none to Spark, as ``1e``, to which it is a name.

    Raises:
        SchemaError: it names the first one.
    """
    for word in tokens_of(text, subject):
        if word.token_type is TokenType.NUMBER and NUMBER.fullmatch(word.text) is None:
            raise refusal(subject, "a number has digits behind its E; a name needs back quotes", text, word)


def _misfit(words: Sequence[Token]) -> int | None:
    """The place of the first word that does not fit, behind the last one for their end; None if all do."""
    reader = _Reader(words)
    try:
        reader.read()
    except _MisfitError:
        return reader.at
    return None


class _MisfitError(Exception):
    """A word stands where the form has no place for it."""


@dataclass
class _Open:
    """What is open around the next word.

    Attributes:
        kind: ``(`` for brackets, ``in`` for those of a list, ``two`` for those of a function of two values,
            ``cast`` and ``phrase`` for those of functions with words between their operands; ``case``.
        ends: the words that may end an operand: of a CASE, or of a list or phrase in brackets.
        is_between: whether a BETWEEN has no AND yet.
        has_predicate: whether the condition has one of IS, IN, LIKE and BETWEEN, of which Spark takes one.
        compared: its last sign of a comparison. Spark reads these from left to right, before IN, LIKE and
            BETWEEN, and sqlglot's brackets around the sides of ``<=>`` look as if they were written.
    """

    kind: str
    ends: frozenset[str] = frozenset()
    is_between: bool = False
    has_predicate: bool = False
    compared: str = ""

    def ends_condition(self) -> None:
        """Another condition begins."""
        self.has_predicate, self.compared = False, ""


@dataclass
class _Reader:
    """Reads words from left to right: an operand, an operator, an operand.

    Attributes:
        is_whole: whether the next operand may be a condition, so that NOT may stand before it.
    """

    words: Sequence[Token]
    at: int = 0
    open: list[_Open] = field(default_factory=lambda: [_Open("")])
    is_whole: bool = True

    def read(self) -> None:
        """Read all words.

        Raises:
            _MisfitError: they are no expression.
        """
        while True:
            self._operand()
            while not self._goes_on():
                if self.at == len(self.words):
                    if len(self.open) > 1 or self.open[-1].is_between:
                        raise _MisfitError
                    return

    def _word(self, ahead: int = 0) -> str:
        """A word in capitals; empty for a text, a name in quotes and behind the end."""
        if self.at + ahead >= len(self.words):
            return ""
        word = self.words[self.at + ahead]
        return "" if word.token_type in (TokenType.STRING, TokenType.IDENTIFIER) else word.text.upper()

    def _is(self, kind: TokenType, ahead: int = 0) -> bool:
        at = self.at + ahead
        return at < len(self.words) and self.words[at].token_type is kind

    def _skip(self, *words: str) -> bool:
        """Whether such words come next; the reader is behind them then."""
        if any(self._word(ahead) != word for ahead, word in enumerate(words)):
            return False
        self.at += len(words)
        return True

    def _expect(self, *, found: bool) -> None:
        if not found:
            raise _MisfitError
        self.at += 1

    def _operand(self) -> None:
        """Read what may stand before an operand, and the operand, or the bracket that it begins with."""
        while self.is_whole and self._word() in ("NOT", "!"):
            self.at += 1
        while self._word() in ("-", "~") or (self._word() == "+" and self._is(TokenType.NUMBER, 1)):
            self.at += 1  # a plus before a text makes a number of it, and sqlglot has no node for it
        if self._skip("("):
            self.is_whole = True
            self.open.append(_Open("("))
            return self._operand()
        if self._skip("CASE"):
            self.is_whole = True
            self.open.append(_Open("case", frozenset({"WHEN"})))
            return None if self._word() == "WHEN" else self._operand()
        if self._skip("INTERVAL"):
            return self._interval()
        if self._skip("?"):
            return None
        if self._skip(":"):
            return self._name()
        if self._is(TokenType.DOT) and self._is(TokenType.NUMBER, 1):  # .5
            self._expect(found=self.words[self.at].end + 1 == self.words[self.at + 1].start)
        if self._is(TokenType.NUMBER):
            return self._number()
        if self._is(TokenType.STRING):
            while self._is(TokenType.STRING):
                self.at += 1
            return None
        if self._word() in TIMES and self._is(TokenType.STRING, 1):
            self.at += 2
            return None
        return self._named()

    def _interval(self) -> None:
        self._skip("-") or self._skip("+")
        self._expect(found=self._is(TokenType.STRING) or self._word().isdigit())
        self._expect(found=_UNITS.fullmatch(self._word()) is not None)
        if self._skip("TO"):
            self._expect(found=_UNITS.fullmatch(self._word()) is not None)

    def _named(self) -> None:
        """Read a column, or a function up to its first operand."""
        name = self._word()
        self._name()
        while self._skip("."):
            self._name()
        if not self._skip("("):
            return
        if name in ("CAST", "TRY_CAST"):
            self.open.append(_Open("cast"))
        elif self._skip(")"):
            return
        elif name in _WITH_PHRASE:
            self.open.append(_Open("phrase", _PHRASE))
        elif name in _OF_TWO:
            self.open.append(_Open("two", _LIST))
        else:
            self.open.append(_Open("(", _LIST))
        self.is_whole = name not in _WITH_PHRASE
        self._operand()

    def _name(self) -> None:
        word = self._word()
        is_word = NAME.fullmatch(word) is not None and word not in _NO_NAMES
        is_number = self._is(TokenType.NUMBER)
        self._expect(found=self._is(TokenType.IDENTIFIER) or (is_word and not is_number))

    def _goes_on(self) -> bool:
        """Read what may stand behind an operand; whether another operand must come then."""
        around, word = self.open[-1], self._word()
        self.is_whole = False
        if around.kind == "phrase" and (word in _JOINING or word in _LIKE):
            raise _MisfitError
        if word in _COMPARED:
            if around.has_predicate or around.compared == "<=>":
                raise _MisfitError
            around.compared = word
        if word in _COMPARED or word in _COMPUTED:
            self.at += 1
            return True
        if self._skip("AND"):
            self.is_whole = not around.is_between
            if not around.is_between:
                around.ends_condition()
            around.is_between = False
            return True
        if self._skip("::"):
            self._type()
            return False
        if word in _PREDICATES or word in _LIKE:
            return self._predicate(around)
        if self.at == len(self.words):
            return False
        if around.is_between:
            raise _MisfitError
        return self._separated(around)

    def _predicate(self, around: _Open) -> bool:
        if around.has_predicate:
            raise _MisfitError
        around.has_predicate = True
        if self._skip("IS"):
            self._skip("NOT")
            if self._skip("DISTINCT", "FROM"):
                return True
            self._expect(found=self._word() in _TRUTHS)
            return self._after_truth()
        if around.compared:
            raise _MisfitError
        self._skip("NOT")
        if self._skip("IN", "("):
            self.is_whole = True
            self.open.append(_Open("in", _LIST))
            return True
        if self._skip("BETWEEN"):
            around.is_between = True
            return True
        self._expect(found=self._word() in _LIKE)
        return True

    def _after_truth(self) -> bool:
        """Behind IS NULL and a list of IN Spark compares, computes and converts no more."""
        word = self._word()
        if word in _COMPARED or word in _COMPUTED or word == "::":
            raise _MisfitError
        return False

    def _separated(self, around: _Open) -> bool:
        """Read what stands between operands that are no part of each other, or behind the last one."""
        word, self.is_whole = self._word(), True
        if self._skip("OR"):
            around.ends_condition()
            return True
        if word in around.ends:
            around.ends_condition()
            self.at += 1
            self.is_whole = word not in ("FROM", "FOR")
            around.ends = frozenset() if around.kind == "two" else _FOLLOWING.get(word, frozenset())
            if word == "END":
                self.open.pop()
            return word != "END"
        if around.kind == "cast" and self._skip("AS"):
            self._type()
            self._expect(found=self._word() == ")")
            self.open.pop()
            return False
        has_all = around.kind in ("(", "in", "phrase") or (around.kind == "two" and not around.ends)
        if has_all and self._skip(")"):
            self.open.pop()
            return self._after_truth() if around.kind == "in" else False
        raise _MisfitError

    def _type(self) -> None:
        """Read a type without parts of other types."""
        name = self._word()
        self._expect(found=name in _TYPES)
        if name in _WITH_DIGITS and self._skip("("):
            self._digits()
            if self._skip(","):
                self._digits()
            self._expect(found=self._word() == ")")

    def _digits(self) -> None:
        self._expect(found=self._is(TokenType.NUMBER) and self._word().isdigit())

    def _number(self) -> None:
        """Read a number, and the letter behind it, which sqlglot makes two words of with the same place."""
        number = self.words[self.at]
        self._expect(found=NUMBER.fullmatch(number.text) is not None)
        if self._word() == "::" and self.words[self.at].start == number.start:
            is_whole = self._word(1) in ("L", "S", "Y")
            self.at += 1
            self._expect(found=number.text.isdigit() or not is_whole)
