"""What a pipeline of `pipeline_script.py` must have written, worked out by plain Python from what went in.

Exactly once is checked to the record: Spark's checkpoint says which offsets each micro-batch took, and
a micro-batch writes at most one record a key: its net effect.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

Row = tuple[int, str, str]
Record = tuple[int, tuple[str, str] | None]
"""Key, and the value's columns; None for a tombstone."""

LEVELS = ("none", "low", "high")


def debezium_changes(
    random: Random, table: dict[int, Row], count: int, keys: int
) -> Iterator[dict[str, Any]]:
    """Random inserts, updates and deletes of a table, which is changed along."""
    for _ in range(count):
        key = random.randrange(keys)
        before = table.get(key)
        if before is not None and random.random() < 0.25:
            del table[key]
            yield {"before": _fields(before), "after": None, "op": "d"}
            continue
        after = (key, f"name {random.randrange(50)}", random.choice(LEVELS))
        table[key] = after
        op = "c" if before is None else "u"
        yield {"before": None if before is None else _fields(before), "after": _fields(after), "op": op}


def _fields(row: Row) -> dict[str, Any]:
    return dict(zip(("id", "name", "level"), row, strict=True))


def key_of(change: Mapping[str, Any]) -> int:
    """The key that a change is about."""
    found: int = (change["after"] or change["before"])["id"]
    return found


def expected_records(changes: list[list[dict[str, Any]]], checkpoint: Path) -> Counter[Record]:
    """The records of all micro-batches of a checkpoint, how often each.

    Args:
        changes: for each partition of the topic its messages in order.
        checkpoint: the query's, with the offsets of every micro-batch.
    """
    expected: Counter[Record] = Counter()
    for start, end in _micro_batches(checkpoint, len(changes)):
        net: dict[int, Counter[Row]] = defaultdict(Counter)
        for messages, first, last in zip(changes, start, end, strict=True):
            for change in messages[first:last]:
                for image, sign in ((change["before"], -1), (change["after"], +1)):
                    if image is not None and image["level"] != "none":
                        net[image["id"]][(image["id"], image["name"].upper(), image["level"])] += sign
        expected.update(record for key, rows in net.items() for record in _net_record(key, rows))
    return expected


def _net_record(key: int, rows: Counter[Row]) -> Iterator[Record]:
    signs = {row: count for row, count in rows.items() if count}
    if added := [row for row, count in signs.items() if count > 0]:
        (row,) = added
        yield key, row[1:]
    elif signs:
        yield key, None


def _micro_batches(checkpoint: Path, partitions: int) -> Iterator[tuple[list[int], list[int]]]:
    start = [0] * partitions
    for file in sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name)):
        end = _offsets(file.read_text().splitlines()[-1], start)
        yield start, end
        start = end


def _offsets(text: str, before: list[int]) -> list[int]:
    (topic,) = json.loads(text)["topics"].values()
    return [topic["partitions"].get(str(number), before[number]) for number in range(len(before))]


def final_table(table: Mapping[int, Row]) -> dict[int, tuple[str, str]]:
    """What a reader of the output topic must see in the end."""
    return {key: (name.upper(), level) for key, name, level in table.values() if level != "none"}
