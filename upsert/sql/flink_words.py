"""Flink's words that Spark says otherwise: ``PROCTIME()``, ``UNNEST``, windows, their start and end (pure).

Only these words are exchanged; all else stays as the user wrote it::

    TUMBLE_START(ts, INTERVAL '5' MINUTE)    `window`(ts, '5 MINUTE').start
    HOP(ts, INTERVAL '1' MINUTE,             `window`(ts, '5 MINUTE', '1 MINUTE')
        INTERVAL '5' MINUTE)
    SESSION(ts, INTERVAL '5' MINUTE)         session_window(ts, '5 MINUTE')
    TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts),    (SELECT * EXCEPT (`:window`), `:window`.start AS window_start, …
        INTERVAL '5' MINUTE))                  FROM (SELECT *, `window`(ts, …) AS `:window` FROM t))

    t CROSS JOIN UNNEST(t.b) AS u (s)        t CROSS JOIN LATERAL UNNEST(t.b) AS u (s)

A table of windows gives the rows of a table with the columns ``window_start``, ``window_end`` and
``window_time``, a row once for each of its windows:

- ``TUMBLE``, ``HOP``: Spark's ``window`` of the column.
- ``CUMULATE``: windows that begin with the largest one and end with each step. Those are the ends of hopping
  windows as large as the largest, up to its end.
- ``SESSION``: only groups know where a session ends. So rows are collected by Spark's ``session_window``, a
  session at a time in memory, and returned with its bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from sqlglot.tokenizer_core import Token, TokenType

from upsert.errors import SchemaError
from upsert.sql.dialect import Edit, Revision, refusal, tokens_of

_SIZES: Final = {
    "TUMBLE": ("size",),
    "HOP": ("slide", "size"),
    "CUMULATE": ("step", "size"),
    "SESSION": ("gap",),
}
"""The intervals of each window, in Flink's order."""

UNITS: Final = {
    "MILLISECOND": 1,
    "SECOND": 1_000,
    "MINUTE": 60_000,
    "HOUR": 3_600_000,
    "DAY": 86_400_000,
    "WEEK": 604_800_000,
}
"""Milliseconds of each unit of an interval."""

_WINDOW: Final = "`:window`"
_HOP: Final = "`:hop`"
_ROW: Final = "`:row`"
_ROWS: Final = "`:rows`"
"""Names of columns in between, which those of tables do not have."""


@dataclass(frozen=True)
class Interval:
    """``INTERVAL '5' MINUTE``; its text is how Spark's windows want it.

    >>> str(Interval(5, "MINUTES")), Interval(5, "MINUTES").milliseconds
    ("'5 MINUTES'", 300000)
    """

    number: int
    unit: str

    def __str__(self) -> str:
        return f"'{self.number} {self.unit}'"

    @property
    def milliseconds(self) -> int:
        """How long it is."""
        return self.number * UNITS[self.unit.removesuffix("S")]


@dataclass(frozen=True)
class WindowTable:
    """``TUMBLE(TABLE t, DESCRIPTOR(column), …)`` without its table; ``keys`` are a session's PARTITION BY.

    >>> before, after = WindowTable("TUMBLE", "ts", (Interval(1, "DAY"),)).around()
    >>> before[-55:], after
    ("FROM (SELECT *, `window`(ts, '1 DAY') AS `:window` FROM", '))')
    """

    name: str
    column: str
    sizes: tuple[Interval, ...]
    offset: Interval | None = None
    keys: tuple[str, ...] = ()

    def why_impossible(self) -> str | None:
        """What is wrong with the sizes; None for nothing."""
        if self.name == "SESSION" and self.offset is not None:
            return "SESSION has no offset"
        if self.name == "CUMULATE":
            step, size = (each.milliseconds for each in self.sizes)
            if not step or size % step:
                return "the size of CUMULATE must be a multiple of its step"
        return None

    def around(self) -> tuple[str, str]:
        """The query before the table and after it."""
        if self.name == "SESSION":
            return self._sessions()
        if self.name == "CUMULATE":
            return self._cumulated()
        window = _call("`window`", self.column, _spark_sizes(self.sizes, self.offset))
        return (
            f"(SELECT * EXCEPT ({_WINDOW}), {_bounds(_WINDOW)} FROM (SELECT *, {window} AS {_WINDOW} FROM",
            "))",
        )

    def _cumulated(self) -> tuple[str, str]:
        step, size = self.sizes
        largest = _call("`window`", self.column, _spark_sizes((size,), _within(self.offset, size)))
        hops = _call("`window`", self.column, _spark_sizes((step, size), _within(self.offset, step)))
        before = (
            f"(SELECT * EXCEPT ({_WINDOW}, {_HOP}), {_bounds(_WINDOW, _HOP)} "
            f"FROM (SELECT *, {hops} AS {_HOP} FROM (SELECT *, {largest} AS {_WINDOW} FROM"
        )
        return before, f")) WHERE {_HOP}.end <= {_WINDOW}.end)"

    def _sessions(self) -> tuple[str, str]:
        window = _call("session_window", f"{_ROW}.{self.column}", [str(self.sizes[0])])
        groups = ", ".join([*(f"{_ROW}.{key}" for key in self.keys), window])
        before = (
            f"(SELECT {_ROW}.*, {_bounds(_WINDOW)} FROM (SELECT {_WINDOW}, explode({_ROWS}) AS {_ROW} "
            f"FROM (SELECT {window} AS {_WINDOW}, collect_list({_ROW}) AS {_ROWS} "
            f"FROM (SELECT struct(*) AS {_ROW} FROM"
        )
        return before, f") GROUP BY {groups})))"


def _spark_sizes(sizes: Sequence[Interval], offset: Interval | None = None) -> list[str]:
    """The arguments of Spark's window behind its column: size, slide, offset."""
    found = [str(size) for size in reversed(sizes)]
    if offset is None:
        return found
    return [*found, *(found if len(found) == 1 else []), str(offset)]


def _within(offset: Interval | None, step: Interval) -> Interval | None:
    """The same offset for Spark, which takes none that is not below the step."""
    return None if offset is None else Interval(offset.milliseconds % step.milliseconds, "MILLISECOND")


def _call(function: str, column: str, arguments: Sequence[str]) -> str:
    return f"{function}({', '.join([column, *arguments])})"


def _bounds(start: str, end: str | None = None) -> str:
    end = end or start
    return (
        f"{start}.start AS window_start, {end}.end AS window_end, "
        f"{end}.end - INTERVAL '0.001' SECOND AS window_time"
    )


_PARTS: Final = {"": "", "_START": ".start", "_END": ".end", "_ROWTIME": ".end - INTERVAL '0.001' SECOND"}
"""What follows the name of a window -> what follows Spark's function instead."""

_GROUPING: Final = ("TUMBLE", "HOP", "SESSION")
"""Windows that stand in GROUP BY too."""

_OF_WINDOW: Final = {f"{name}{part}": (name, suffix) for name in _GROUPING for part, suffix in _PARTS.items()}
_REFUSED: Final = {
    **dict.fromkeys(
        (f"CUMULATE{part}" for part in _PARTS),
        "a row has several such windows, so they are a table; write FROM TABLE(CUMULATE(TABLE name, "
        "DESCRIPTOR(column), INTERVAL of the step, INTERVAL of the size)) GROUP BY window_start, window_end",
    ),
    **dict.fromkeys(
        (f"{name}_PROCTIME" for name in _SIZES),
        "a window's processing time is no column of Spark; take _ROWTIME, or PROCTIME() itself",
    ),
}


def spark_words(text: str, subject: str = "query") -> list[Edit]:
    """The edits that make Flink's words in a query or expression those of Spark.

    >>> from upsert.sql.dialect import Revision
    >>> text = "SELECT TUMBLE_END(ts, INTERVAL '5' MINUTE), PROCTIME() FROM t"
    >>> Revision(text).edited(spark_words(text)).text
    "SELECT `window`(ts, '5 MINUTE').end, current_timestamp() FROM t"
    """
    return _Words(text, subject).edits()


def check_no_sessions_of_a_table(text: str, subject: str = "query") -> None:
    """Refuse ``SESSION(TABLE …`` in a stream: a row that comes or goes would move the sessions of others."""
    _Words(text, subject).check_no_sessions()


class _Words:
    def __init__(self, text: str, subject: str) -> None:
        self._text = text
        self._subject = subject
        self._tokens: Sequence[Token] = tokens_of(text, subject)

    def edits(self) -> list[Edit]:
        found: list[Edit] = []
        for number, token in enumerate(self._tokens):
            word = self._word(number)
            if word in _REFUSED and self._is_call(number) and not self._is_windowed(number):
                raise self._refusal(number, f"{token.text} is not supported: {_REFUSED[word]}")
            if word == "TABLE" and self._word(number + 1) == "(" and self._is_windowed(number + 2):
                found += self._windowed(number + 2, number, self._closing(number + 1))
            elif self._is_windowed(number) and not self._ahead(number - 2, "TABLE", "("):
                found += self._windowed(number, number, self._closing(number + 1))
            elif self._is_call(number, "PROCTIME") and self._word(number + 2) == ")":
                found.append(Edit(token.start, self._tokens[number + 2].end + 1, "current_timestamp()"))
            elif self._is_unnested(number):
                found.append(Edit(token.start, token.start, "LATERAL "))
            elif self._is_call(number, "WINDOW"):
                # after GROUP BY the parser would take it for the clause WINDOW
                found.append(Edit(token.start, token.end + 1, f"`{token.text}`"))
            elif word in _OF_WINDOW and self._is_call(number) and not self._is_windowed(number):
                found += self._group_function(number)
        return found

    def check_no_sessions(self) -> None:
        for number in range(len(self._tokens)):
            if self._word(number) == "SESSION" and self._is_windowed(number):
                raise self._refusal(
                    number,
                    "SESSION of a table needs 'execution.runtime-mode' = 'batch', for in a stream a row may "
                    "join or split sessions of rows that were emitted already; take TUMBLE, HOP or CUMULATE, "
                    "or of rows that only come GROUP BY SESSION(column, INTERVAL 'number' unit)",
                )

    def _is_windowed(self, number: int) -> bool:
        """``TUMBLE(TABLE …``: the function that gives a table."""
        return self._word(number) in _SIZES and self._ahead(number + 1, "(", "TABLE")

    def _is_unnested(self, number: int) -> bool:
        """``UNNEST`` of columns of a table before it, which Spark has as a function in SELECT too.

        That of constants may stand in any join, one that is LATERAL in few.
        """
        if not self._is_call(number, "UNNEST"):
            return False
        closing = self._closing(number + 1)
        if not any(map(self._is_name, range(number + 2, closing))):
            return False
        if self._word(number - 1) == "JOIN":
            return True
        after = closing + 1
        after += 2 * self._ahead(after, "WITH", "ORDINALITY")
        return self._word(number - 1) == "," and self._word(after) == "AS" and self._word(after + 2) == "("

    def _group_function(self, number: int) -> list[Edit]:
        token, closing = self._tokens[number], self._closing(number + 1)
        name, suffix = _OF_WINDOW[token.text.upper()]
        if self._ahead(number + 2, "DATA", "=>"):
            raise self._refusal(
                number, f"arguments have no names; write {name}(TABLE t, DESCRIPTOR(column), {_sizes(name)})"
            )
        commas = self._commas(number + 1, closing)
        if len(commas) != len(_SIZES[name]):
            raise self._refusal(
                number, f"{token.text} has a column and {_sizes(name)}, with commas in between"
            )
        function = "session_window" if name == "SESSION" else "`window`"
        end = self._tokens[closing].end + 1
        text = ", ".join(_spark_sizes(self._intervals(commas, closing)))
        sizes = Edit(self._tokens[commas[0] + 1].start, self._tokens[closing].start, text)
        found = [Edit(token.start, token.end + 1, function), sizes]
        return [*found, Edit(end, end, suffix)] if suffix else found

    def _windowed(self, number: int, first: int, last: int) -> list[Edit]:
        """``TUMBLE(TABLE t, DESCRIPTOR(c), INTERVAL …)``: the table stays, all around it is exchanged."""
        name, closing = self._word(number), self._closing(number + 1)
        inside = range(number + 3, closing)
        begin = next((at for at in inside if self._ahead(at, ",", "DESCRIPTOR", "(")), closing)
        commas = [comma for comma in self._commas(number + 1, closing) if comma >= begin]
        parted = next((at for at in range(number + 3, begin) if self._ahead(at, "PARTITION", "BY")), begin)
        if not (
            len(commas) in (1 + len(_SIZES[name]), 2 + len(_SIZES[name]))
            and self._closing(begin + 2) == begin + 4 == commas[1] - 1
            and (name == "SESSION" or parted == begin)
        ):
            keys = " [PARTITION BY column, …]" if name == "SESSION" else ""
            form = f"{name}(TABLE name{keys}, DESCRIPTOR(column), {_sizes(name)}"
            raise self._refusal(number, f"expected {form}{'' if name == 'SESSION' else '[, offset]'})")
        given = self._intervals(commas[1:], closing)
        table = WindowTable(
            name,
            self._slice(begin + 3, begin + 4),
            tuple(given[: len(_SIZES[name])]),
            given[-1] if len(given) > len(_SIZES[name]) else None,
            self._keys(parted, begin),
        )
        if reason := table.why_impossible():
            raise self._refusal(commas[1] + 1, reason)
        before, after = table.around()
        return [
            Edit(self._tokens[first].start, self._tokens[number + 2].end + 1, before),
            Edit(self._tokens[parted].start, self._tokens[last].end + 1, after),
        ]

    def _keys(self, parted: int, end: int) -> tuple[str, ...]:
        """The columns of ``PARTITION BY a, b`` or ``PARTITION BY (a, b)``, which ends before a token."""
        start = parted + 2
        if parted == end:
            return ()
        if self._word(start) == "(" and self._closing(start) == end - 1:
            start, end = start + 1, end - 1
        names = range(start, end, 2)
        if not names or (end - start) % 2 == 0 or any(self._word(at + 1) != "," for at in names[:-1]):
            raise self._refusal(start, "expected PARTITION BY column, …")
        return tuple(self._slice(at, at + 1) for at in names)

    def _intervals(self, commas: Sequence[int], closing: int) -> list[Interval]:
        """The intervals after each comma."""
        ends = [*commas[1:], closing]
        return [self._interval(comma + 1, end) for comma, end in zip(commas, ends, strict=True)]

    def _interval(self, start: int, end: int) -> Interval:
        """``INTERVAL '5' MINUTE``."""
        unit = self._word(start + 2)
        value = self._tokens[start + 1] if start + 1 < end else None
        if not (
            end == start + 3
            and self._word(start) == "INTERVAL"
            and value is not None
            and value.token_type in (TokenType.STRING, TokenType.NUMBER)
            and value.text.isdecimal()
            and unit.removesuffix("S") in UNITS
        ):
            raise self._refusal(start, "expected INTERVAL 'number' unit")
        return Interval(int(value.text), unit)

    def _commas(self, opening: int, closing: int) -> list[int]:
        """The commas right inside of two brackets."""
        depth, found = 0, []
        for number in range(opening + 1, closing):
            depth += (self._word(number) == "(") - (self._word(number) == ")")
            if depth == 0 and self._word(number) == ",":
                found.append(number)
        return found

    def _closing(self, opening: int) -> int:
        """The number of the bracket that closes an opening one."""
        depth = 0
        for number in range(opening, len(self._tokens)):
            depth += (self._word(number) == "(") - (self._word(number) == ")")
            if depth == 0:
                return number
        raise self._refusal(opening, "this bracket is never closed")

    def _is_call(self, number: int, name: str | None = None) -> bool:
        is_named = name is None or self._word(number) == name
        return is_named and self._word(number + 1) == "(" and self._word(number - 1) != "."

    def _is_name(self, number: int) -> bool:
        """Whether a token may be the name of a column."""
        is_quoted = self._tokens[number].token_type is TokenType.IDENTIFIER
        return is_quoted or (self._word(number).isidentifier() and self._word(number + 1) != "(")

    def _ahead(self, number: int, *words: str) -> bool:
        return all(self._word(number + offset) == word for offset, word in enumerate(words))

    def _word(self, number: int) -> str:
        if not 0 <= number < len(self._tokens):
            return ""
        token = self._tokens[number]
        is_value = token.token_type in (TokenType.STRING, TokenType.NUMBER, TokenType.IDENTIFIER)
        return "" if is_value else token.text.upper()

    def _slice(self, start: int, end: int) -> str:
        return self._text[self._tokens[start].start : self._tokens[end - 1].end + 1]

    def _refusal(self, number: int, why: str) -> SchemaError:
        token = self._tokens[number] if number < len(self._tokens) else None
        return refusal(self._subject, why, self._text, token)


def _sizes(name: str) -> str:
    return ", ".join(f"INTERVAL of the {size}" for size in _SIZES[name])


def spark_expression(text: str) -> str:
    r"""An expression in Spark's words, whose texts are the same whatever a session takes their signs for.

    >>> spark_expression('concat(PROCTIME(), "a", \'it\'\'s\')')
    "concat(current_timestamp(), 'a', CAST(X'69742773' AS STRING))"
    """
    worded = Revision(text).edited(spark_words(text, "expression"))
    return worded.edited(_plain_texts(worded.text)).text


_TEXTS: Final = (TokenType.STRING, TokenType.RAW_STRING)
_SIGNS: Final = frozenset("'\\")
"""What a text can have in it that some sessions read otherwise: see ``upsert.catalog.run.scans``."""


def _plain_texts(text: str) -> Iterator[Edit]:
    """The edits that write texts without signs that only some sessions read so, several in a row as one."""
    for is_text, row in groupby(tokens_of(text, "expression"), lambda token: token.token_type in _TEXTS):
        tokens = list(row)
        start, end = tokens[0].start, tokens[-1].end + 1
        meant = "".join(token.text for token in tokens)
        is_plain = _SIGNS.isdisjoint(meant)
        plain = f"'{meant}'" if is_plain else f"CAST(X'{meant.encode().hex().upper()}' AS STRING)"
        if is_text and text[start:end] != plain:
            yield Edit(start, end, plain)


def is_processing_time(text: str) -> bool:
    """Whether an expression is nothing but ``PROCTIME()``."""
    return "".join(text.split()).upper() == "PROCTIME()"
