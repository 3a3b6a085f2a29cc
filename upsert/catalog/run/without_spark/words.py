"""Which texts are written as Spark wants them, as far as is known here; any other is left to Spark (pure).

sqlglot passes over a comma too many, a dot, the words behind a LIMIT, and takes for a name what is none to
Spark; its tree does not tell. So the words of each clause but a condition must have a known form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise, zip_longest
from typing import Final

from sqlglot.tokenizer_core import Token, TokenType

from upsert.sql.dialect import outside_of_brackets, tokens_of
from upsert.sql.forms import NAME, NUMBER, TIMES, are_named, are_rows, is_expression, outer, parts
from upsert.sql.query import QueryText


class NotPlainError(Exception):
    """A part of the query is Spark's."""


_CLAUSES: Final = ("SELECT", "FROM", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "OFFSET")
"""In the order in which Spark wants them."""

_WORDS: Final = frozenset(
    {*_CLAUSES, "BY", "AS", "ASC", "DESC", "NULLS", "ALL", "DISTINCT", "VALUES", "AND", "OR"}
)
"""They are no names here, also where Spark would take them for such."""

_OF_JOINS: Final = frozenset(
    {"JOIN", "INNER", "LEFT", "RIGHT", "FULL", "OUTER", "SEMI", "ANTI", "ON", "USING", *_WORDS}
)
"""Neither are these among tables."""

_FUNCTION: Final = "CURRENT_PATH"
"""Spark calls it also where a column has the name."""

_WITH_TEXT: Final = (TokenType.STRING, TokenType.IDENTIFIER)
_NAME_OF_TABLE: Final = re.compile("[A-Za-z0-9_$]+")

_COLUMN: Final = r"[nk](?: \. [nk])*"
_CALL: Final = rf"n \( (?:\*|1|(?:DISTINCT )?{_COLUMN}(?: , {_COLUMN})*) \)"
_VALUE: Final = rf"(?:{_COLUMN}|{_CALL})"
_ITEM: Final = rf"(?:\*|{_COLUMN} \. \*|{_VALUE}(?: AS [nk]| n)?)"
_VERSION: Final = r"(?: (?:k )?[nk] AS n (?:1|'|k '))?"
_TABLE: Final = rf"[nk](?: \. [nk]){{0,2}}{_VERSION}(?: (?:AS )?n)?"
_EQUAL: Final = rf"{_COLUMN} ==? {_COLUMN}"
_EQUALS: Final = rf"(?:{_EQUAL}|\( {_EQUAL} \))(?: AND (?:{_EQUAL}|\( {_EQUAL} \)))*"
_HOW: Final = "(?:INNER |(?:LEFT|RIGHT|FULL) (?:OUTER )?|(?:LEFT )?(?:SEMI|ANTI) )?"
_BY: Final = rf"(?:ON (?:{_EQUALS}|\( {_EQUALS} \))|USING \( [nk](?: , [nk])* \))"
_GROUP: Final = rf"(?:{_COLUMN}|1)"
_COMPARED: Final = rf"{_VALUE} (?:=|<|>|<=|>=|<>|!=) (?:(?:- )?1|(?:k )?')"
_ORDER: Final = rf"(?:{_VALUE}|1)(?: ASC| DESC)?(?: NULLS [nk])?"
_FORM_OF_ITEM: Final = re.compile(_ITEM)
_FORMS: Final = {
    "FROM": re.compile(rf"FROM {_TABLE}(?: {_HOW}JOIN {_TABLE} {_BY}){{0,3}}"),
    "GROUP": re.compile(rf"GROUP BY {_GROUP}(?: , {_GROUP})*"),
    "HAVING": re.compile(rf"HAVING {_COMPARED}(?: (?:AND|OR) {_COMPARED})*"),
    "ORDER": re.compile(rf"ORDER BY {_ORDER}(?: , {_ORDER})*"),
    "LIMIT": re.compile("LIMIT 1"),
    "OFFSET": re.compile("OFFSET 1"),
}
"""The words of clauses as `_sign` has them: n and k are names, a number is 1, a text is '."""


def words_of(query: QueryText) -> Sequence[Token] | None:
    """The words of a text; None if one has a backslash, for two readers may differ in what it escapes."""
    text = query.worded.text
    return None if "\\" in text else tokens_of(text, query.subject)


_LIST: Final = r"(?:VALUES|\( VALUES \)) (?:AS )?n(?: \( [nk](?: , [nk])* \))?"
_LITERAL: Final = "(?:(?:- )?1|'|T '|k|: n)"
_NAMED: Final = rf"{_LITERAL} (?:AS )?[nk](?: , {_LITERAL} (?:AS )?[nk])*"
_NEXT: Final = rf"{_LITERAL}(?: (?:AS )?[nk])?(?: , {_LITERAL}(?: (?:AS )?[nk])?)*"
_ROWS: Final = rf"SELECT (?:\* FROM {_LIST}|{_NAMED}(?: k ALL SELECT {_NEXT})*)"
_OF_LITERALS: Final = re.compile(rf"SELECT \* FROM (?:{_LIST}|\( {_ROWS} \) (?:AS )?n)")
_OF_QUERY: Final = re.compile(r"SELECT \* FROM \( \) (?:AS )?n")


def is_source_of_literals(tokens: Sequence[Token]) -> bool:
    """Whether the source of a MERGE, behind SELECT * FROM, is a list of rows of literals.

    It may be a row, or several that UNION ALL unites.

    >>> from upsert.sql.dialect import tokens_of
    >>> texts = ["(VALUES (1), (NULL)) AS s(id)", "(SELECT 1 AS id, 'a' AS v) s", "(VALUES (1)) s JOIN t"]
    >>> [is_source_of_literals(tokens_of(f"SELECT * FROM {text}", "query")) for text in texts]
    [True, True, False]
    """
    lists, signs = _lists(tokens), list[str]()
    for number, (token, following) in enumerate(zip_longest(tokens, tokens[1:])):
        if number not in lists:
            is_time = following is not None and following.token_type is TokenType.STRING
            signs.append("T" if is_time and token.text.upper() in TIMES else _sign(token, NAME))
    rows = [tokens[number] for number in lists]
    return _OF_LITERALS.fullmatch(" ".join(signs)) is not None and (not rows or are_rows(rows))


def is_source_of_query(tokens: Sequence[Token]) -> bool:
    """Whether the source of a MERGE, behind SELECT * FROM, is a query in brackets with a name.

    >>> from upsert.sql.dialect import tokens_of
    >>> is_source_of_query(tokens_of("SELECT * FROM (SELECT id FROM t WHERE (id > 1)) AS s", "query"))
    True
    """
    return _OF_QUERY.fullmatch(_form(list(outside_of_brackets(tokens)), "SELECT")) is not None


def _lists(tokens: Sequence[Token]) -> list[int]:
    """The places of the words of rows behind VALUES."""
    found, depth, is_in = list[int](), 0, False
    for number, token in enumerate(tokens):
        if token.token_type is TokenType.VALUES:
            is_in, depth = True, 0
            continue
        depth += token.token_type is TokenType.L_PAREN
        if is_in and (depth or token.token_type is TokenType.COMMA):
            found.append(number)
        else:
            is_in = False
        depth -= token.token_type is TokenType.R_PAREN
    return found


def is_plain_select(tokens: Sequence[Token], *, is_computed: bool = False) -> bool:
    """Whether a SELECT stands in Spark's order and forms; ``is_computed``: its list has expressions.

    >>> from upsert.sql.dialect import tokens_of
    >>> texts = ["SELECT a, t.b AS c FROM t WHERE a IN (1, 2) LIMIT 1", "SELECT a,, b FROM t"]
    >>> [is_plain_select(tokens_of(text, "query")) for text in texts]
    [True, False]
    """
    if _calls(tokens):
        return False
    clauses = list(_clauses(tokens))
    names = [words[0].text.upper() for words in clauses]
    if names[:2] != ["SELECT", "FROM"] or names != sorted(set(names), key=_CLAUSES.index):
        return False
    listed, *others = zip(names, clauses, strict=True)
    is_list = _is_plain(listed[1]) and are_named(listed[1][3:]) if is_computed else _is_list(listed[1])
    return is_list and all(_is_clause(name, words) for name, words in others)


def _is_clause(name: str, words: Sequence[Token]) -> bool:
    if name == "WHERE":
        return _is_plain(words) and is_expression(words[1:])
    return _FORMS[name].fullmatch(_form(words, name)) is not None and (name != "HAVING" or _is_plain(words))


def _is_list(words: Sequence[Token]) -> bool:
    """Whether each item of SELECT is a column, a function of groups, or an expression with a name."""
    begins = 2 if len(words) > 1 and words[1].token_type is TokenType.DISTINCT else 1
    return all(
        (_FORM_OF_ITEM.fullmatch(_form(item, "SELECT")) is not None and _is_plain(item)) or _is_named(item)
        for item in parts(words[begins:], TokenType.COMMA)
    )


def _is_named(item: Sequence[Token]) -> bool:
    if len(item) < 3 or item[-2].token_type is not TokenType.ALIAS:
        return False
    return _sign(item[-1], NAME) in ("n", "k") and _is_plain(item) and is_expression(item[:-2])


def _calls(tokens: Sequence[Token]) -> bool:
    return any(word.text.upper() == _FUNCTION and word.token_type not in _WITH_TEXT for word in tokens)


def is_plain_merge(tokens: Sequence[Token]) -> bool:
    """Whether the query of a MERGE, whose clauses have been read, has only signs that both read alike."""
    if _calls(tokens) or not _is_plain(tokens):
        return False
    (on, *_), (begins, *_) = outer(tokens, TokenType.ON), outer(tokens, TokenType.SELECT)
    _, of_source, *_ = outer(tokens[begins:], TokenType.ALIAS)  # two structs stand before the clauses
    clauses = tokens[begins + of_source + 3 :]
    return is_expression(tokens[on + 1 : begins]) and are_named(clauses)


def is_plain_list(tokens: Sequence[Token]) -> bool:
    """Whether ``VALUES (…), (…)`` has only signs that both read alike.

    >>> from upsert.sql.dialect import tokens_of
    >>> texts = ["VALUES (1, 'a'), (2, NULL)", "VALUES (1, 'a',), (2, NULL)"]
    >>> [is_plain_list(tokens_of(text, "query")) for text in texts]
    [True, False]
    """
    return tokens[0].token_type is TokenType.VALUES and _is_plain(tokens) and are_rows(tokens[1:])


def _clauses(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """The words of each clause."""
    depth, words = 0, list[Token]()
    for token in tokens:
        depth += token.token_type in (TokenType.L_PAREN, TokenType.L_BRACKET)
        depth -= token.token_type in (TokenType.R_PAREN, TokenType.R_BRACKET)
        if depth == 0 and token.token_type not in _WITH_TEXT and token.text.upper() in _CLAUSES and words:
            yield words
            words = []
        words.append(token)
    if words:
        yield words


def _form(words: Sequence[Token], clause: str) -> str:
    if clause != "FROM":
        return " ".join(_sign(word, NAME) for word in words)
    signs, name = list[str](), _NAME_OF_TABLE
    for word in words:
        signs.append(_sign(word, name, _OF_JOINS))
        name = {"JOIN": _NAME_OF_TABLE, "ON": NAME, "USING": NAME}.get(signs[-1], name)
    return " ".join(signs)


def _sign(token: Token, name: re.Pattern[str], known: frozenset[str] = _WORDS) -> str:
    """What of a word its form depends on; k is a name that is a keyword of sqlglot's."""
    match token.token_type:
        case TokenType.IDENTIFIER:
            return "n"
        case TokenType.STRING:
            return "'"
        case TokenType.NUMBER:
            return "1"
    if token.text.upper() in known:
        return token.text.upper()
    if name.fullmatch(token.text) is None:
        return token.text
    return "n" if token.token_type is TokenType.VAR else "k"


def _is_plain(words: Sequence[Token]) -> bool:
    """Whether no list has a comma too many, and names without quotes and numbers have Spark's letters."""
    if words[-1].token_type is TokenType.COMMA:
        return False
    others = [word for word in words if word.token_type not in _WITH_TEXT]
    if any(not word.text.isascii() or "$" in word.text for word in others):
        return False
    numbers = (word.text for word in others if word.token_type is TokenType.NUMBER)
    if not all(map(NUMBER.fullmatch, numbers)):
        return False
    ends = (TokenType.COMMA, TokenType.L_PAREN, TokenType.SELECT, TokenType.VALUES)
    return not any(
        (one.token_type in ends and other.token_type is TokenType.COMMA)
        or (one.token_type is TokenType.COMMA and other.token_type is TokenType.R_PAREN)
        for one, other in pairwise(words)
    )
