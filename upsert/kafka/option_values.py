"""Values of the Kafka connectors' options out of their texts: offsets, topics, partitions (pure)."""

from __future__ import annotations

import re
from typing import Final

from upsert import options

_OFFSETS: Final = re.compile(r"partition:(\d+),offset:(\d+)")


def specific_offsets(value: str) -> dict[int, int]:
    """Offsets by partition, from text like ``partition:0,offset:42;partition:1,offset:300``.

    >>> specific_offsets("partition:0,offset:42;partition:1,offset:300")
    {0: 42, 1: 300}
    """
    matches = [_OFFSETS.fullmatch(part.strip()) for part in value.strip(";").split(";")]
    found = {int(match[1]): int(match[2]) for match in matches if match}
    if len(found) != len(matches):
        raise ValueError(
            "offsets; they should follow the format 'partition:0,offset:42;partition:1,offset:300'"
        )
    return found


def topic_names(value: str) -> tuple[str, ...]:
    """Topic names separated by semicolons or commas.

    >>> topic_names("orders;returns")
    ('orders', 'returns')
    """
    parts = tuple(part.strip() for part in value.replace(",", ";").split(";"))
    if not all(re.fullmatch(r"[A-Za-z0-9._-]{1,249}", part) and part.strip(".") for part in parts):
        raise ValueError("topic names of letters, digits, '.', '_' and '-', separated by ';'")
    if len(set(parts)) != len(parts):
        raise ValueError("distinct topic names")
    return parts


def pattern(value: str) -> str:
    """A regular expression, matched against whole topic names."""
    try:
        re.compile(value)
    except re.error as cause:
        raise ValueError(f"a regular expression ({cause})") from None
    return options.text(value)


def partition_numbers(value: str) -> tuple[int, ...]:
    """Partition numbers separated by commas."""
    parts = value.split(",")
    if not all(part.strip().isdigit() for part in parts):
        raise ValueError("partition numbers separated by commas")
    return tuple(sorted({int(part) for part in parts}))
