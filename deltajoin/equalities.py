"""Columns that join keys make equal, followed from pair to pair (pure)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

_T = TypeVar("_T", bound=Hashable)


def classes(pairs: Iterable[tuple[_T, _T]]) -> tuple[tuple[_T, ...], ...]:
    """Groups of values that are equal, given pairs of equal ones; in order of first mention.

    >>> classes([("a", "b"), ("x", "y"), ("c", "b")])
    (('a', 'b', 'c'), ('x', 'y'))
    """
    group: dict[_T, list[_T]] = {}
    for one, other in pairs:
        mine, theirs = group.setdefault(one, [one]), group.setdefault(other, [other])
        if mine is not theirs:
            mine.extend(theirs)
            group.update(dict.fromkeys(theirs, mine))
    mentioned = {value: number for number, value in enumerate(group)}
    found = {id(members): members for members in group.values()}
    return tuple(tuple(sorted(members, key=mentioned.__getitem__)) for members in found.values())
