"""A text with several statements, such as a file, one at a time (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlglot.tokenizer_core import Token, TokenType

from upsert.errors import SchemaError
from upsert.sql.dialect import tokens_of
from upsert.sql.tokens import ends_set, head_of_set


@dataclass(frozen=True)
class ScriptStatement:
    """One statement of a script.

    Attributes:
        text: the statement, without the semicolon, after as many empty lines and blanks as stand before it in
            the script: places in error messages are those of the script.
        line: in which it begins, counted from 1.
    """

    text: str
    line: int


def split_statements(text: str) -> Iterator[ScriptStatement]:
    r"""The statements of a script, which semicolons end; comments, quotes and statement sets may hold some.

    Raises:
        SchemaError: a quote or comment is not closed.

    >>> [(s.line, s.text.strip()) for s in split_statements("SET a = ';';\n-- done;\nSELECT 1")]
    [(1, "SET a = ';'"), (3, 'SELECT 1')]
    """
    tokens = tokens_of(text, "script")
    lines = read = 0
    for first, last in _statements(tokens):
        start = tokens[first].start
        lines, read = lines + text.count("\n", read, start), start
        column = start - text.rfind("\n", 0, start) - 1
        yield ScriptStatement("\n" * lines + " " * column + text[start : tokens[last].end + 1], lines + 1)


def is_ended(text: str) -> bool:
    """Whether a semicolon ends the last statement; one in a quote, a comment or a statement set does not.

    >>> is_ended("SELECT 1; -- one"), is_ended("SELECT ';"), is_ended("-- SELECT 1;")
    (True, False, False)
    >>> is_ended("BEGIN STATEMENT SET; INSERT INTO t SELECT 1;")
    False
    """
    try:
        tokens = tokens_of(text, "script")
    except SchemaError:
        return False  # a quote or a comment is open, which the next line may close
    if not tokens or tokens[-1].token_type is not TokenType.SEMICOLON:
        return False
    *_, (first, last) = [(0, 0), *_statements(tokens)]
    return head_of_set(tokens[first:]) == 0 or _is_whole_set(tokens, last)


def _statements(tokens: Sequence[Token]) -> Iterator[tuple[int, int]]:
    """The numbers of the first and the last token of each statement, semicolons at its end left out."""
    first, is_set = 0, False
    for number, token in enumerate(tokens):
        if number == first:
            is_set = head_of_set(tokens[first : first + 10]) > 0
        if token.token_type is not TokenType.SEMICOLON:
            continue
        if number > first and is_set and not _is_whole_set(tokens, number - 1):
            continue
        if number > first:
            yield first, number - 1
        first = number + 1
    if first < len(tokens):
        yield first, len(tokens) - 1


def _is_whole_set(tokens: Sequence[Token], last: int) -> bool:
    return last > 0 and ends_set(tokens[last], tokens[last - 1])
