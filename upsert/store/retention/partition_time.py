"""Of which time a partition is, and whether that is too long ago (pure).

The options and their meaning are Paimon's: ``partition.timestamp-pattern`` makes a text of the values of the
partition columns, ``partition.timestamp-formatter`` reads it. A time without a zone is one of UTC, whatever
the zone of the process: all processes that maintain a table agree on what has expired.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Self

import pyarrow as pa

from upsert import types
from upsert.errors import ConfigurationError
from upsert.options import Option, duration_ms, positive_duration_ms, suggestion, text
from upsert.schema import TableSchema
from upsert.store.paths import Partition

_TIMES: Final = (pa.date32(), types.TIMESTAMP, types.TIMESTAMP_NTZ, pa.string())
_SHORT_YEAR: Final = 2
NAMED: Final = re.compile(r"\$(\w+)")

_ISO: Final = re.compile(
    r"(?P<year>\d{4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})"
    r"(?:[ T](?P<hour>\d{1,2}):(?P<minute>\d{1,2}):(?P<second>\d{1,2})(?:\.\d+)?Z?)?"
)
"""What is read where no formatter is given: a date, or a date and a time."""

_FIELDS: Final = {
    "y": "year",
    "u": "year",
    "M": "month",
    "d": "day",
    "H": "hour",
    "m": "minute",
    "s": "second",
}
"""Letters of Java's ``DateTimeFormatter`` that can be read."""

_PIECE: Final = re.compile(r"'(?P<quoted>(?:[^']|'')*)'|(?P<field>([A-Za-z])\3*)|(?P<other>.)", re.DOTALL)


def formatter(value: str) -> re.Pattern[str]:
    """What reads texts as a pattern of Java's ``DateTimeFormatter`` says, to the second.

    >>> formatter("yyyyMMdd'T'HH").fullmatch("20130101T07").groupdict()
    {'year': '2013', 'month': '01', 'day': '01', 'hour': '07'}
    """
    found: list[str] = []
    seen: set[str] = set()
    for piece in _PIECE.finditer(value):
        letters = piece["field"]
        if letters is None:
            literal = piece["other"] if piece["quoted"] is None else piece["quoted"].replace("''", "'") or "'"
            found.append(re.escape(literal))
            continue
        name, count = _FIELDS.get(letters[0]), len(letters)
        if name is None or name in seen or count not in ((1, 2, 4) if name == "year" else (1, 2)):
            raise ValueError("a pattern like yyyyMMdd or yyyy-MM-dd HH:mm:ss, of the letters y M d H m s")
        seen.add(name)
        found.append(f"(?P<{name}>{_digits(name, count)})")
    if "year" not in seen:
        raise ValueError("a pattern with a year, like yyyyMMdd or yyyy-MM-dd HH:mm:ss")
    return re.compile("".join(found))


def _digits(name: str, count: int) -> str:
    if name == "year":
        return r"\d{2}" if count == 2 else r"\d{4}"
    return r"\d{2}" if count == 2 else r"\d{1,2}"


AGE: Final = "partition.expiration-time"
INTERVAL: Final = "partition.expiration-check-interval"
FORMATTER: Final = "partition.timestamp-formatter"
PATTERN: Final = "partition.timestamp-pattern"

PARTITION_OPTIONS: Final = (
    Option(
        AGE,
        positive_duration_ms,
        "partitions whose time is longer ago than this are dropped; default: none are",
        None,
    ),
    Option(
        INTERVAL,
        duration_ms,
        "a process that commits looks for such partitions once in this time",
        3_600_000,
    ),
    Option(
        FORMATTER,
        formatter,
        "how a partition's time is written, as yyyyMMdd; default: yyyy-MM-dd HH:mm:ss, or yyyy-MM-dd",
        None,
    ),
    Option(
        PATTERN,
        text,
        "the text of a partition's time, as '$day $hour:00:00'; default: its first column",
        None,
    ),
)


@dataclass(frozen=True)
class PartitionAge:
    """How old a partition may get, and how its time is known.

    Attributes:
        age_ms: partitions of a time that is longer ago have expired.
        interval_ms: how often a process that commits looks.
        pattern: the text of a partition's time, where ``$name`` stands for a column's value.
        reads: what reads that text; its groups are the fields of a time.
    """

    age_ms: int
    interval_ms: int
    pattern: str
    reads: re.Pattern[str]

    @classmethod
    def of(cls, owner: str, values: Mapping[str, Any], schema: TableSchema) -> Self | None:
        """What the options of a table say, by their keys; None without ``partition.expiration-time``.

        Raises:
            ConfigurationError: the table has no partitions, or no column of theirs says a time.
        """
        age_ms, interval_ms, reads, pattern = (values[key] for key in (AGE, INTERVAL, FORMATTER, PATTERN))
        columns = schema.partitioned_by
        for key in (AGE, FORMATTER, PATTERN):
            if values[key] is not None and not columns:
                raise ConfigurationError(f"{owner}: option {key!r} needs a table with PARTITIONED BY")
        if pattern is not None:
            _check_pattern(owner, pattern, columns)
        if age_ms is None:
            return None
        if pattern is None and reads is None and schema.type_of(columns[0]) not in _TIMES:
            found = f"{columns[0]!r} of type {types.sql_name(schema.type_of(columns[0]))}"
            raise ConfigurationError(
                f"{owner}: option {AGE!r} needs a first partition column with a time, got {found}; say how "
                f"its values are read by {FORMATTER!r}, or which columns make a time by {PATTERN!r}"
            )
        return cls(age_ms, interval_ms, pattern or f"${columns[0]}", reads or _ISO)

    def time_ms(self, partition: Partition) -> int | None:
        """The time of a partition in milliseconds since 1970; None if its values say none.

        >>> age = PartitionAge(86_400_000, 0, "$day $hour", formatter("yyyyMMdd HH"))
        >>> age.time_ms((("day", "19700102"), ("hour", "01"))), age.time_ms((("day", None), ("hour", "01")))
        (90000000, None)
        """
        values = dict(partition)
        if any(values[name] is None for name in NAMED.findall(self.pattern)):
            return None
        found = self.reads.fullmatch(NAMED.sub(lambda name: values[name[1]] or "", self.pattern))
        if found is None:
            return None
        parts = {name: int(digits) for name, digits in found.groupdict().items() if digits is not None}
        if len(found["year"]) == _SHORT_YEAR:
            parts["year"] += 2000
        try:
            return int(datetime(**{"month": 1, "day": 1, **parts}, tzinfo=UTC).timestamp() * 1000)
        except ValueError:  # there is no such day
            return None

    def expired(self, partitions: Collection[Partition], now_ms: int) -> frozenset[Partition]:
        """Those of a time that is longer ago; one without a time never expires."""
        times = {partition: self.time_ms(partition) for partition in partitions}
        return frozenset(p for p, at in times.items() if at is not None and at + self.age_ms < now_ms)


def _check_pattern(owner: str, pattern: str, columns: Sequence[str]) -> None:
    named = NAMED.findall(pattern)
    if not named:
        raise ConfigurationError(
            f"{owner}: option {PATTERN!r} must name a partition column, as ${columns[0]}, got {pattern!r}"
        )
    for name in named:
        if name not in columns:
            hint = suggestion(name, columns, "partition columns are")
            raise ConfigurationError(
                f"{owner}: option {PATTERN!r} must name partition columns, got {name!r}; {hint}"
            )
