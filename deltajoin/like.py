"""Patterns of Spark's LIKE as regular expressions (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from upsert.errors import ConfigurationError


def regular_expression(pattern: str) -> str:
    r"""What a pattern matches, as a regular expression of the whole text.

    ``%`` stands for any characters, ``_`` for one, a backslash takes the meaning of these and its own away.

    Raises:
        ConfigurationError: a backslash stands before anything else; Spark fails on that as well.

    >>> regular_expression("a%\\_")
    '(?s)\\Aa.*_\\z'
    """
    return f"(?s)\\A{''.join(_parts(pattern))}\\z"


def check(pattern: str) -> None:
    """Make sure that texts can be compared with a pattern, in a time that grows with them.

    Raises:
        ConfigurationError: a backslash stands where Spark fails on it too, or the pattern is too long.
    """
    try:
        pc.match_substring_regex(pa.array([""]), regular_expression(pattern))
    except pa.ArrowInvalid as cause:
        raise ConfigurationError(
            f"LIKE pattern {pattern[:40]!r}…: it must be short enough to be compared at once, got "
            f"{len(pattern)} signs; compare with substring or length"
        ) from cause


def _parts(pattern: str) -> Iterator[str]:
    letters = iter(pattern)
    for letter in letters:
        match letter:
            case "%":
                yield ".*"
            case "_":
                yield "."
            case "\\":
                escaped = next(letters, "")
                if escaped not in ("%", "_", "\\"):
                    raise ConfigurationError(
                        f"LIKE pattern {pattern!r}: a backslash must stand before %, _ or a backslash, "
                        f"got {escaped!r}"
                    )
                yield re.escape(escaped)
            case _:
                yield re.escape(letter)
