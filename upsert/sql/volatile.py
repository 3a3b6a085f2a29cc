"""What a text of SQL computes that is not of its rows alone, where no plan can be asked (pure).

Over Spark Connect a text is all that the client has. What is found here may be another thing by that name, so
it is refused with its place, and a classic session, which asks the plan, is the way out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

_OF_THE_MOMENT: Final = re.compile(
    r"\b((?:rand|randn|random|randstr|uniform|uuid|shuffle|now|curdate|user|version|(?:try_)?reflect|java_method"
    r"|aes_encrypt|monotonically_increasing_id|spark_partition_id|input_file_\w+)(?=\s*\()|unix_timestamp(?=\s*\(\s*\))"
    r"|localtime(?:stamp)?\b|session_user\b"
    r"|current_(?:date|time|timestamp|timezone|user|catalog|database|schema|path)\b)",
    re.IGNORECASE,
)
"""Functions that give another value when a row is taken back than when it came."""

_OF_ORDER_OR_ZONE: Final = re.compile(
    r"\b((?:first|last)(?:_value)?|any_value|collect_(?:list|set)|array_agg|listagg|string_agg|convert_timezone)(?=\s*\()",
    re.IGNORECASE,
)
"""Aggregates whose result depends on the order in which rows come, and what takes the session's zone."""

_SAMPLE: Final = re.compile(r"\bTABLESAMPLE(?=\s*\()", re.IGNORECASE)
"""Takes rows by chance, or, with REPEATABLE, by how they lie in files."""

_TIMES: Final = re.compile(r"""(['"])\s*((?:now|today|tomorrow|yesterday)\b[^'"]*)\1""", re.IGNORECASE)
"""Texts that Spark takes for a time of now where a time is wanted."""

_SUBQUERY: Final = re.compile(r"\(\s*(?:SELECT|WITH|FROM|TABLE|VALUES)\b", re.IGNORECASE)

_LITERAL: Final = (
    r"""\b[rR](?:'[^']*'|"[^"]*")|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"(?!\s*\()|--[^\n]*|/\*.*?\*/"""
)
"""Texts as Spark has them, in either quotes and with escapes unless they are raw, and comments."""

_QUOTED: Final = re.compile(rf"{_LITERAL}|`[^`]*`(?!\s*\()|[`\"]", re.DOTALL)
_NAMES: Final = re.compile(rf"{_LITERAL}|`([^`]+)`(?=\s*\()|\b([^\W\d]\w*)(?=\s*\()", re.DOTALL)


_WRITTEN: Final = re.compile(r"""X?(?:'[^'\\]+'|"[^"\\]+")""", re.IGNORECASE)
"""A text or bytes, which are not empty."""


class Found(NamedTuple):
    """What was found.

    Attributes:
        what: as messages show it.
        offset: where it stands in the text.
    """

    what: str
    offset: int


def of_the_moment(text: str) -> Found | None:
    r"""The first function of chance, of the clock or of the session; None for none.

    >>> of_the_moment("id, 'now()', `uuid` + user, current_price"), of_the_moment("a + `Rand` (7)")
    (None, Found(what='Rand()', offset=5))
    >>> of_the_moment(r"SELECT 'it\'s', rand(), 'x'"), of_the_moment('SELECT "it\'s \\"rand()\\""')
    (Found(what='rand()', offset=16), None)

    A text is always encrypted to the same in the mode ECB, and with a vector that is written there:

    >>> of_the_moment("aes_encrypt(s, f(a, ')'), 'ecb'), aes_encrypt(s, k, 'CBC', 'PKCS', X'00AA')")
    >>> of_the_moment("aes_encrypt(s, k, 'ECB'), Aes_Encrypt(s, k, 'GCM', 'DEFAULT', '')")
    Found(what='Aes_Encrypt()', offset=26)
    """
    for found in _OF_THE_MOMENT.finditer(_without_quoted(text)):
        if found[1].lower() != "aes_encrypt" or not _is_repeatable(_arguments(text, found.end())):
            return Found(f"{found[1]}()", found.start())
    return None


_MODE, _VECTOR = 2, 4
"""Places of arguments of ``aes_encrypt``."""


def _is_repeatable(arguments: Sequence[str]) -> bool:
    """Whether ``aes_encrypt`` draws no vector for each row."""
    if arguments[_MODE:] and arguments[_MODE].upper() in ("'ECB'", '"ECB"'):
        return True
    return bool(arguments[_VECTOR:] and _WRITTEN.fullmatch(arguments[_VECTOR]))


def _arguments(text: str, start: int) -> list[str]:
    """What stands between the commas of the first brackets behind a place."""
    white, depth, found = _without_quoted(text), 0, list[str]()
    begin = white.index("(", start) + 1
    for at in range(begin - 1, len(white)):
        depth += (white[at] in "([") - (white[at] in ")]")
        if depth == 0 or (depth == 1 and white[at] == ","):
            found.append(text[begin:at].strip())
            begin = at + 1
        if depth == 0:
            break
    return found


def of_more_than_tables(text: str) -> Found | None:
    """What makes a query give other rows for the same tables; None if nothing does.

    >>> of_more_than_tables("SELECT k, Last(v) FROM t GROUP BY k").what
    'Last()'
    >>> of_more_than_tables("SELECT * FROM t WHERE at < 'today'")
    Found(what="the text 'today', which may be a time,", offset=27)
    >>> of_more_than_tables("SELECT * FROM t TableSample (10 PERCENT) REPEATABLE (1)")
    Found(what='TableSample', offset=16)
    >>> of_more_than_tables("SELECT first, `now`, 'nowhere' -- rand()")
    """
    if (found := of_the_moment(text)) is not None:
        return found
    if (ordered := _OF_ORDER_OR_ZONE.search(_without_quoted(text))) is not None:
        return Found(f"{ordered[1]}()", ordered.start())
    if (sample := _SAMPLE.search(_without_quoted(text))) is not None:
        return Found(sample[0], sample.start())
    return of_the_clock(text)


def of_the_clock(text: str) -> Found | None:
    """The first text that Spark takes for a time of now where a time is wanted; None for none."""
    time = _TIMES.search(text)
    return None if time is None else Found(f"the text {time[2]!r}, which may be a time,", time.start())


def subquery_in(text: str) -> Found | None:
    """The first subquery of an expression; None for none.

    >>> subquery_in("id IN (1, 2) AND k IN ( SELECT k FROM t)")
    Found(what='a subquery', offset=22)
    >>> subquery_in("extract(YEAR FROM d) = '(SELECT 1)' OR substring('u' FROM 1 FOR 2) = 'u'")
    """
    found = _SUBQUERY.search(_without_quoted(text))
    return None if found is None else Found("a subquery", found.start())


def functions_in(text: str) -> dict[str, int]:
    """Names before a bracket, in lower case, and where each stands first.

    >>> functions_in("SELECT Mine(x), `my own` (2), 'not(1)' FROM t WHERE x IN (1)")
    {'mine': 7, 'my own': 16, 'in': 54}
    """
    found: dict[str, int] = {}
    for match in _NAMES.finditer(text):
        if name := match[1] or match[2]:
            found.setdefault(name.lower(), match.start())
    return found


def _without_quoted(text: str) -> str:
    """The text without what stands in quotes, but names of functions, and with blanks for comments."""

    def without(match: re.Match[str]) -> str:
        is_white = len(match[0]) == 1 or match[0].startswith(("--", "/*"))
        return (" " if is_white else "'") * len(match[0])

    return _QUOTED.sub(without, text)
