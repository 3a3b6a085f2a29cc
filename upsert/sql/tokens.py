"""The words of a statement, and a cursor over them that reads names, literals and options (pure).

sqlglot's own ``CREATE`` parser is not used: it reads the DDL of thirty systems, skips what it does not know,
and falls back to an opaque command.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, TypeVar

from sqlglot.tokenizer_core import Token, TokenType

from upsert import types
from upsert.errors import SchemaError
from upsert.sql.dialect import refusal, tokens_of

T = TypeVar("T")
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
NAME_RULE: Final = "1 to 128 letters from A to Z, digits and _, the first no digit"
"""What a table, a database, a catalog or a function can be called."""

_VALUES: Final = frozenset({TokenType.STRING, TokenType.NUMBER, TokenType.IDENTIFIER})

_HINT: Final = re.compile(r"/\*\+(?=\s*+OPTIONS\b)", re.IGNORECASE)
"""FLIP-188's ``/*+ OPTIONS('key' = 'value', …) */``, which the tokenizer takes for a comment."""

_MAX_DIGITS: Final = 18
"""Digits of a whole number; it fits into 64 bits."""

_OPENED: Final = frozenset("([{")
_CLOSED: Final = frozenset(")]}")


class Cursor:
    """A position between the tokens of one statement; reading moves it on.

    Args:
        text: one statement, or a part of one; a semicolon may end it.
        subject: what is read, the first word of every refusal.
    """

    def __init__(self, text: str, subject: str = "statement") -> None:
        self.subject = subject
        self.text = text
        self._next = 0
        tokens = list(tokens_of(text, subject))
        self._end = len(text)
        while tokens and tokens[-1].token_type is TokenType.SEMICOLON:
            self._end = tokens.pop().start
        if not tokens:
            raise SchemaError(f"{subject}: expected at least one word, found an empty text")
        self._tokens = tokens
        for number, token in enumerate(tokens):
            if token.token_type is TokenType.SEMICOLON:
                self._next = number + 1
                raise self.refusal("expected one statement at a time, so that none is left half done")

    @property
    def at_end(self) -> bool:
        """Whether every token has been read."""
        return self._next == len(self._tokens)

    def ahead(self, *words: str) -> bool:
        """Whether these unquoted words or signs come next, in any case."""
        return all(self.word(offset) == word for offset, word in enumerate(words))

    def skip(self, *words: str) -> bool:
        """Whether these words came next; if so they are read."""
        found = self.ahead(*words)
        self._next += len(words) if found else 0
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

    def name(self, what: str, *, may_be_system: bool = False) -> str:
        """Read a name: one word, in which ``$`` may be that of a system table, or anything in backquotes."""
        if not self.is_name(0) or ("$" in self.word(0) and not may_be_system):
            raise self.refusal(f"expected {what}{', in backquotes' * self.is_string(0)}")
        self._next += 1
        return str(self._tokens[self._next - 1].text)

    def is_name(self, offset: int) -> bool:
        """Whether the token at this distance can be a name."""
        token = self._token(offset)
        if token is None:
            return False
        if token.token_type is TokenType.IDENTIFIER:
            return bool(token.text.strip())
        return token.token_type not in _VALUES and token.text.replace("$", "_").isidentifier()

    def is_string(self, offset: int) -> bool:
        """Whether the token at this distance is a text in quotes."""
        token = self._token(offset)
        return token is not None and token.token_type is TokenType.STRING

    def string(self, what: str) -> str:
        """Read a text in quotes."""
        return self._read(TokenType.STRING, what)

    def number(self, what: str) -> int:
        """Read a whole number."""
        token = self._token(0)
        if token is None or not token.text.isdecimal() or len(token.text) > _MAX_DIGITS:
            raise self.refusal(f"expected {what}")
        return int(self.numeral(what))

    def numeral(self, what: str) -> str:
        """Read a number without a sign, as it is written."""
        return self._read(TokenType.NUMBER, what)

    def listed(self, read: Callable[[], T], *, opened: str = "(", closed: str = ")") -> list[T]:
        """Read one or more things, separated by commas, between two signs."""
        self.expect(opened)
        found = [read()]
        while self.skip(","):
            found.append(read())
        if not self.skip(closed):
            raise self.refusal(f"expected , or {closed}")
        return found

    @property
    def offset(self) -> int:
        """Where in the text the next token begins; the text's length at the end."""
        token = self._token(0)
        return len(self.text) if token is None else token.start

    @property
    def first(self) -> int:
        """Where in the text the first token begins."""
        return int(self._tokens[0].start)

    @property
    def reached(self) -> int:
        """Where in the text the last token that was read ends."""
        return self._tokens[self._next - 1].end + 1 if self._next else 0

    def raw(self, what: str, until: Callable[[], bool]) -> str:
        """Read at least one token, as it is written, up to a comma or closing sign outside of all brackets.

        There ``until`` is asked too, whether the text ends at the next token.
        """
        start, depth = self.offset, 0
        while not self.at_end:
            word = self.word(0)
            if depth == 0 and (word in _CLOSED or word == "," or until()):
                break
            depth += (word in _OPENED) - (word in _CLOSED)
            self._next += 1
        if self.reached <= start:
            raise self.refusal(f"expected {what}")
        return self.text[start : self.reached]

    def rest(self) -> tuple[int, int]:
        """Read all that is left: where it begins and ends in the text, a semicolon at the end left out."""
        start = self.offset
        self._next = len(self._tokens)
        return start, self._end

    def hint(self) -> dict[str, str]:
        """The options of a hint ``/*+ OPTIONS(…) */`` right before the next token; empty for none."""
        found = _hint_between(self.text, self.reached, self.offset, self.subject)
        return {} if found is None else dict(found.options)

    def refusal(self, why: str) -> SchemaError:
        """The error that says why, what was found here instead, and where."""
        return refusal(self.subject, why, self.text, self._token(0))

    def _read(self, kind: TokenType, what: str) -> str:
        token = self._token(0)
        if token is None or token.token_type is not kind:
            raise self.refusal(f"expected {what}")
        self._next += 1
        return token.text

    def _token(self, offset: int) -> Token | None:
        number = self._next + offset
        return self._tokens[number] if number < len(self._tokens) else None

    def word(self, offset: int) -> str:
        """The unquoted word or sign at this distance, in upper case; empty for anything else."""
        token = self._token(offset)
        return "" if token is None or token.token_type in _VALUES else token.text.upper()


@dataclass(frozen=True)
class Hint:
    """A hint ``/*+ OPTIONS('key' = 'value', …) */``.

    Attributes:
        start: where it begins; it ends before ``end``.
        after: where the token before it ends.
        options: what it says, by key.
    """

    start: int
    end: int
    after: int
    options: Mapping[str, str] = field(hash=False)


def hints_in(text: str, subject: str) -> tuple[Hint, ...]:
    """All hints OPTIONS of a text, wherever comments may be.

    >>> hints_in("t /*+ OPTIONS('scan.mode' = 'latest') */ AS a", "query")[0].options
    {'scan.mode': 'latest'}
    """
    tokens = tokens_of(text, subject)
    ends = [0, *(token.end + 1 for token in tokens)]
    starts = [*(token.start for token in tokens), len(text)]
    found = (_hint_between(text, after, start, subject) for after, start in zip(ends, starts, strict=True))
    return tuple(hint for hint in found if hint is not None)


def without_hints(text: str, subject: str, until: int) -> str:
    """A text of the same places without its hints OPTIONS that begin before a place."""
    parts, at = [], 0
    for hint in hints_in(text, subject):
        if hint.start >= until:
            break
        parts += [text[at : hint.start], white(text[hint.start : hint.end])]
        at = hint.end
    return "".join((*parts, text[at:]))


def without_comments(text: str, subject: str) -> str:
    r"""A text of the same places without its comments; hints of Spark, right behind SELECT, stay.

    >>> without_comments("SELECT 5L /* five */", "query")
    'SELECT 5L           '
    >>> without_comments("SELECT /*+ COALESCE(1) */ a, -- (the key\n 'b--' /* (c) */ FROM t", "query")
    "SELECT /*+ COALESCE(1) */ a,            \n 'b--'           FROM t"
    """
    parts, at = [], 0
    for token in tokens_of(text, subject):
        if token.start >= at:  # a number with a suffix is several, at one place
            parts += [white(text[at : token.start]), text[token.start : token.end + 1]]
            at = token.end + 1
    return "".join((*parts, white(text[at:])))


def _hint_between(text: str, after: int, before: int, subject: str) -> Hint | None:
    match = _HINT.search(text, after, before)
    end = -1 if match is None else text.find("*/", match.end(), before)
    if match is None or end < 0:
        return None
    try:
        found = _options_of(Cursor(text[match.end() : end], subject))
    except SchemaError:  # say where in the whole text
        found = _options_of(Cursor(blanked(text, match.end(), end), subject))
    return Hint(match.start(), end + 2, after, found)


def _options_of(cursor: Cursor) -> dict[str, str]:
    cursor.expect("OPTIONS")
    found = options(cursor)
    if not cursor.at_end:
        raise cursor.refusal("expected nothing after OPTIONS(…)")
    return found


def blanked(text: str, start: int, end: int) -> str:
    """A text of the same places in which everything but one part is white."""
    return white(text[:start]) + text[start:end] + white(text[end:])


def white(text: str) -> str:
    """Blanks in place of a text, in as many lines."""
    return re.sub(r"[^\n]+", lambda line: " " * len(line[0]), text)


_SETS: Final = (("EXECUTE", "STATEMENT", "SET", "BEGIN"), ("BEGIN", "STATEMENT", "SET"))
"""Flink's two ways to begin a statement set."""


def head_of_set(tokens: Sequence[Token]) -> int:
    """How many tokens begin the statement set that these are; 0 if they are another statement.

    One that ``EXPLAIN`` explains begins with that, and may leave EXECUTE out, as Flink's does.

    >>> head_of_set(tokens_of("BEGIN STATEMENT SET; INSERT INTO t SELECT 1; END", "script"))
    3
    >>> head_of_set(tokens_of("EXPLAIN FORMAT JSON EXECUTE STATEMENT SET BEGIN INSERT", "script"))
    7
    """
    words = tuple("" if one.token_type in _VALUES else one.text.upper() for one in tokens[:10])
    start = 0
    if words[:1] == ("EXPLAIN",):
        start = 3 if words[1:3] == ("PLAN", "FOR") else 1
        if words[start : start + 1] == ("FORMAT",):
            start += 3 if words[start + 1 : start + 2] == ("=",) else 2
            if words[start - 1 : start] not in (("JSON",), ("TEXT",)):
                return 0
    heads = (*_SETS, _SETS[0][1:]) if start else _SETS
    return next((start + len(head) for head in heads if words[start : start + len(head)] == head), 0)


def ends_set(last: Token, before: Token) -> bool:
    """Whether the END of a statement set has been read: that of a CASE follows no semicolon."""
    is_end = last.token_type not in _VALUES and last.text.upper() == "END"
    return is_end and (before.token_type is TokenType.SEMICOLON or before.text.upper() in ("BEGIN", "SET"))


def options(cursor: Cursor) -> dict[str, str]:
    """Read ``('key' = 'value', …)``, no key twice."""

    def read() -> tuple[str, str]:
        key = cursor.string("the key of an option in quotes")
        cursor.expect("=")
        return key, cursor.string(f"the value of option {key!r} in quotes")

    found: dict[str, str] = {}
    for key, value in cursor.listed(read):
        if key in found:
            raise SchemaError(f"{cursor.subject}: option {key!r} is given twice")
        found[key] = value
    return found


def partition(cursor: Cursor) -> dict[str, Any]:
    """Read ``(column = value, …)``: values by the names of their columns.

    >>> partition(Cursor("(day = DATE '2020-10-01', n = -3, region = 'Berlin', x = NULL)"))
    {'day': datetime.date(2020, 10, 1), 'n': -3, 'region': 'Berlin', 'x': None}
    >>> partition(Cursor("(p = -0.123456789012345678901234567890, q = 9223372036854775808)"))
    {'p': Decimal('-0.123456789012345678901234567890'), 'q': Decimal('9223372036854775808')}
    """
    return written_partition(cursor, allow_names=False)[0]


def written_partition(cursor: Cursor, *, allow_names: bool = True) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Read ``(column = value, other, …)`` of INSERT: values, and the columns whose values the rows have.

    >>> written_partition(Cursor("(day = DATE '2020-10-01', hub)"))
    ({'day': datetime.date(2020, 10, 1)}, ('hub',))
    """
    values: dict[str, Any] = {}
    dynamic: list[str] = []

    def read() -> None:
        name = cursor.name("the name of a partition column")
        if name in values or name in dynamic:
            raise SchemaError(f"{cursor.subject}: PARTITION names column {name!r} twice")
        if allow_names and not cursor.ahead("="):
            dynamic.append(name)
            return
        cursor.expect("=")
        values[name] = literal(cursor)

    cursor.listed(read)
    return values, tuple(dynamic)


def literal(cursor: Cursor) -> Any:
    """Read one literal."""
    for word, value in (("TRUE", True), ("FALSE", False), ("NULL", None)):
        if cursor.skip(word):
            return value
    if cursor.is_string(0):
        return cursor.string("a text")
    if cursor.ahead("DATE") and cursor.is_string(1):
        refusal = cursor.refusal("expected DATE 'year-month-day'")
        cursor.expect("DATE")
        try:
            return types.day_of(cursor.string("a date"))
        except ValueError:
            raise refusal from None
    sign = "-" * cursor.skip("-")
    refusal = cursor.refusal("expected a literal")
    text = cursor.numeral("a literal")
    try:
        number = Decimal(sign + text)
    except ArithmeticError:
        raise refusal from None
    # as for Spark a whole number with more than 64 bits is a DECIMAL
    return int(number) if text.isdigit() and -(1 << 63) <= number < 1 << 63 else number


def dotted(cursor: Cursor, further: str = "the name of a field") -> tuple[str, ...]:
    """Read the name of a column, and names behind dots; ``further`` says what these are.

    >>> dotted(Cursor("address.city = 'Berlin'", "UPDATE"))
    ('address', 'city')
    """
    parts = [cursor.name("the name of a column")]
    while cursor.skip("."):
        parts.append(cursor.name(further))
    return tuple(parts)


def table_name(cursor: Cursor) -> str:
    """Read ``[[catalog.]database.]name``; the parts are joined by dots, which none of them has."""
    parts = [_part_of_name(cursor, "the name of a table")]
    while len(parts) < 3 and cursor.skip("."):
        parts.append(_part_of_name(cursor, "a name after the dot"))
    return ".".join(parts)


def _part_of_name(cursor: Cursor, what: str) -> str:
    before = cursor.refusal(f"a name must be {NAME_RULE}")
    part = cursor.name(what, may_be_system=True)
    if "." in part:
        raise before
    return part


def names(cursor: Cursor) -> tuple[str, ...]:
    """Read the names of columns, separated by commas, in parentheses."""
    return tuple(cursor.listed(lambda: cursor.name("the name of a column")))
