"""A text with several statements, such as a file, one at a time (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from sqlglot.tokenizer_core import TokenType

from upsert.sql.dialect import tokens_of


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
    r"""The statements of a script, which semicolons end; comments and quotes may hold semicolons.

    Raises:
        SchemaError: a quote or comment is not closed.

    >>> [(s.line, s.text.strip()) for s in split_statements("SET a = ';';\n-- done;\nSELECT 1")]
    [(1, "SET a = ';'"), (3, 'SELECT 1')]
    """
    start: int | None = None
    end = 0
    for token in chain(tokens_of(text, "script"), (None,)):
        if token is not None and token.token_type is not TokenType.SEMICOLON:
            start = token.start if start is None else start
            end = token.end + 1
        elif start is not None:
            before = text[:start]
            lines = before.count("\n")
            column = start - before.rfind("\n") - 1
            yield ScriptStatement("\n" * lines + " " * column + text[start:end], lines + 1)
            start = None
