"""The words of a statement, and a cursor over them that says where it stopped (pure).

The dialect is Spark's, with two differences: a quote inside a text may be doubled (``'it''s'``, as in
Flink and in standard SQL), and keywords are single words. sqlglot's own ``CREATE`` parser is not used: it
reads the DDL of thirty systems, skips what it does not know, and falls back to an opaque command.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from sqlglot.dialects.spark import Spark
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType

from upsert.errors import SchemaError

T = TypeVar("T")

_VALUES: Final = frozenset({TokenType.STRING, TokenType.NUMBER, TokenType.IDENTIFIER})


class CatalogDialect(Spark):
    """Spark SQL as the catalog reads it."""

    class Tokenizer(Spark.Tokenizer):
        """Spark's words, one at a time, and texts with doubled quotes."""

        STRING_ESCAPES = ["'", '"', "\\"]  # noqa: RUF012 - sqlglot's metaclass reads plain class attributes
        KEYWORDS = {key: kind for key, kind in Spark.Tokenizer.KEYWORDS.items() if " " not in key}  # noqa: RUF012


class Cursor:
    """A place between the tokens of one statement; reading moves it on.

    Args:
        text: one statement, or a part of one; a semicolon may end it.
        subject: what is read, the first word of every refusal.

    Raises:
        SchemaError: the text has no tokens, an open quote, or more than one statement.
    """

    def __init__(self, text: str, subject: str = "statement") -> None:
        self.subject = subject
        self._text = text
        self._place = 0
        try:
            tokens = CatalogDialect().tokenize(text)
        except TokenError as cause:
            raise SchemaError(f"{subject}: the text has an open quote or comment: {cause}") from None
        while tokens and tokens[-1].token_type is TokenType.SEMICOLON:
            tokens.pop()
        if not tokens:
            raise SchemaError(f"{subject}: expected at least one word, found an empty text")
        self._tokens = tokens
        for place, token in enumerate(tokens):
            if token.token_type is TokenType.SEMICOLON:
                self._place = place + 1
                raise self.refusal("expected one statement at a time, so that none is left half done")

    @property
    def at_end(self) -> bool:
        """Whether every token has been read."""
        return self._place == len(self._tokens)

    def ahead(self, *words: str) -> bool:
        """Whether these unquoted words or signs come next, in any case."""
        return all(self.word(offset) == word for offset, word in enumerate(words))

    def skip(self, *words: str) -> bool:
        """Whether these words came next; if so they are read."""
        found = self.ahead(*words)
        self._place += len(words) if found else 0
        return found

    def expect(self, *words: str) -> None:
        """Read these words, or refuse."""
        if not self.skip(*words):
            raise self.refusal(f"expected {' '.join(words)}")

    def head(self, known: frozenset[str]) -> str:
        """The first word and the ``known`` ones after it: what a statement is called."""
        words = [self.word(0)]
        while self.word(len(words)) in known:
            words.append(self.word(len(words)))
        return " ".join(words)

    def name(self, what: str) -> str:
        """Read a name: one word, or anything in backquotes."""
        token = self._token(0)
        if token is None or not _is_name(token):
            raise self.refusal(f"expected {what}")
        self._place += 1
        return token.text

    def is_name(self, offset: int) -> bool:
        """Whether the token at this distance can be a name."""
        token = self._token(offset)
        return token is not None and _is_name(token)

    def string(self, what: str) -> str:
        """Read a text in quotes."""
        return self._read(TokenType.STRING, what)

    def number(self, what: str) -> int:
        """Read a whole number."""
        token = self._token(0)
        if token is None or not token.text.isdigit():
            raise self.refusal(f"expected {what}")
        return int(self._read(TokenType.NUMBER, what))

    def listed(self, read: Callable[[], T], *, opened: str = "(", closed: str = ")") -> list[T]:
        """Read one or more things, separated by commas, between two signs."""
        self.expect(opened)
        found = [read()]
        while self.skip(","):
            found.append(read())
        if not self.skip(closed):
            raise self.refusal(f"expected , or {closed}")
        return found

    def refusal(self, why: str) -> SchemaError:
        """The error that says why, what was found here instead, and where."""
        token = self._token(0)
        if token is None:
            return SchemaError(f"{self.subject}: {why}, found the end of the text")
        before = self._text[: token.start]
        line, column = before.count("\n") + 1, token.start - before.rfind("\n")
        return SchemaError(f"{self.subject}: {why}, found {token.text!r} at line {line}, column {column}")

    def _read(self, kind: TokenType, what: str) -> str:
        token = self._token(0)
        if token is None or token.token_type is not kind:
            raise self.refusal(f"expected {what}")
        self._place += 1
        return token.text

    def _token(self, offset: int) -> Token | None:
        place = self._place + offset
        return self._tokens[place] if place < len(self._tokens) else None

    def word(self, offset: int) -> str:
        """The unquoted word or sign at this distance, in upper case; empty for anything else."""
        token = self._token(offset)
        return "" if token is None or token.token_type in _VALUES else token.text.upper()


def _is_name(token: Token) -> bool:
    if token.token_type is TokenType.IDENTIFIER:
        return bool(token.text.strip())
    return token.token_type not in _VALUES and token.text.isidentifier()
