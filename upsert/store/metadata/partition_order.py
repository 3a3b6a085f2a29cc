"""An order of partitions, by which manifests are sorted and say between which two their entries lie (pure).

It goes by the texts of the values alone, whatever the columns' types, and must stay as it is for ever: old
snapshots name ends in it. NULL comes first, then whole numbers by value, then what begins with a day, then
other texts. So numbers, days and texts ascend as the columns' values do, each for itself.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from upsert.store.paths import Partition

Values = tuple[str | None, ...]
"""The values of a partition, in the order of the table's partition columns."""

Ends = tuple[Values, Values]
"""The first and the last partition of something."""

Key = tuple[tuple[int, int, str], ...]

_NUMBER: Final = re.compile(r"0|-?[1-9][0-9]{0,19}")
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_LONGEST: Final = 256
"""Ends with more characters are not named: every snapshot repeats them."""

NULL, NUMBER, DAY, TEXT = range(4)


def kind_of(value: str | None) -> int:
    """What a value is to the order: ``NULL``, ``NUMBER``, ``DAY`` or ``TEXT``."""
    if value is None:
        return NULL
    if _NUMBER.fullmatch(value):
        return NUMBER
    return DAY if _DAY.match(value) else TEXT


def key_of(values: Values) -> Key:
    """What orders partitions.

    >>> texts = ["a", "10", "9", None, "007", "2024-01-31", "-3"]
    >>> sorted(texts, key=lambda text: key_of((text,)))
    [None, '-3', '9', '10', '2024-01-31', '007', 'a']
    """
    return tuple(map(_place, values))


def _place(value: str | None) -> tuple[int, int, str]:
    kind = kind_of(value)
    if value is None:
        return kind, 0, ""
    return (kind, int(value), "") if kind == NUMBER else (kind, 0, value)


def values_of(partition: Partition) -> Values:
    """The values of a partition."""
    return tuple(value for _, value in partition)


def ends_of(partitions: Iterable[Partition]) -> Ends | None:
    """The first and the last of some partitions; None if it is not worth saying.

    >>> ends_of([(("day", "10"),), (("day", "9"),), (("day", "33"),)])
    (('9',), ('33',))
    """
    ordered = sorted({values_of(partition) for partition in partitions}, key=key_of)
    if not ordered or not ordered[0]:
        return None
    ends = ordered[0], ordered[-1]
    return ends if sum(len(text or "") for values in ends for text in values) <= _LONGEST else None


def any_between(beginnings: Iterable[Values], ends: Iterable[Ends]) -> list[bool]:
    """For each two ends, whether partitions that begin with some values lie between; all are as long.

    >>> any_between([("7",), ("12",)], [(("1", "a"), ("7", "b")), (("8", "a"), ("11", "b"))])
    [True, False]
    """
    asked = sorted(map(key_of, beginnings))
    length = len(asked[0]) if asked else 0
    found = []
    for first, last in ends:
        at = bisect_left(asked, key_of(first[:length]))
        found.append(at < len(asked) and asked[at] <= key_of(last[:length]))
    return found
