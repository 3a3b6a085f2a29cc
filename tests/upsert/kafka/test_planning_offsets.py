"""Where a stream stands and how far a step reads: against plain dictionaries."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upsert.errors import ConfigurationError
from upsert.kafka.client.records import TopicPartition, share
from upsert.kafka.planning import Offset, PartitionProgress, Range, ranges, split

PARTITIONS = st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 11))


def place(begin: int, read: int, left: int | None, epoch: int | None) -> PartitionProgress:
    return PartitionProgress(begin, begin + read, None if left is None else begin + read + left, epoch)


NUMBERS = st.integers(0, 50)
PLACES = st.builds(place, NUMBERS, NUMBERS, st.none() | NUMBERS, st.none() | NUMBERS)
OFFSETS = st.builds(
    lambda places, ends: Offset(
        places, {p.topic: f"id of {p.topic}" for p in places}, "s1", {p: ends[p] for p in places if p in ends}
    ),
    st.dictionaries(PARTITIONS, PLACES, max_size=8),
    st.dictionaries(PARTITIONS, st.integers(0, 50)),
)


@given(OFFSETS)
def test_an_offset_survives_json(offset: Offset) -> None:
    found = Offset.from_json(json.loads(json.dumps(offset.to_json())), "t")
    assert found == offset
    assert [place.epoch for place in found.partitions.values()] == [
        offset.partitions[partition].epoch for partition in found.partitions
    ]


@given(OFFSETS)
def test_equal_offsets_are_equal_text(offset: Offset) -> None:
    backwards = Offset(
        dict(reversed([*offset.partitions.items()])),
        dict(reversed([*offset.ids.items()])),
        offset.stream,
        dict(reversed([*offset.awaited.items()])),
    )
    assert json.dumps(backwards.to_json()) == json.dumps(offset.to_json())


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"table": "x", "version": 3},
        {"topics": {"a": {"0": 1}}},
        {"topics": {"a": {"id": "x", "begin": {}, "partitions": {"0": 4}, "until": {}}}, "stream": None},
        {
            "topics": {"a": {"id": "x", "begin": {"0": 0}, "partitions": {"0": -4}, "until": {}}},
            "stream": None,
        },
        {"topics": [], "stream": None},
    ],
)
def test_a_checkpoint_of_something_else_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="the checkpoint must hold offsets of Kafka topics, got"):
        Offset.from_json(value, "table 't'")


@given(
    st.dictionaries(PARTITIONS, st.tuples(st.integers(0, 99), st.integers(0, 1_000)), max_size=8),
    st.integers(1, 500),
)
def test_a_step_is_limited_and_starves_nobody(
    logs: dict[TopicPartition, tuple[int, int]], limit: int
) -> None:
    available = {partition: (first, first + size) for partition, (first, size) in logs.items()}
    reached = share(available, limit)
    taken = {partition: reached[partition] - first for partition, (first, _) in available.items()}
    waiting = {partition for partition, (_, size) in logs.items() if size}
    assert {partition for partition, rows in taken.items() if rows} == waiting
    assert all(0 <= rows <= logs[partition][1] for partition, rows in taken.items())
    assert sum(taken.values()) <= max(limit, limit + len(waiting) - 1)
    total = sum(size for _, size in logs.values())
    if total > limit:
        assert sum(taken.values()) >= limit, "no batch is smaller than it may be"
        for partition in waiting:
            assert abs(taken[partition] - logs[partition][1] * limit / total) <= 1, "in proportion"
    else:
        assert sum(taken.values()) == total


@given(
    st.dictionaries(PARTITIONS, st.integers(0, 300), min_size=1, max_size=5),
    st.lists(st.integers(1, 90), min_size=1, max_size=60),
)
def test_steps_read_everything_once_and_in_order(sizes: dict[TopicPartition, int], limits: list[int]) -> None:
    """Whatever the limits are: the ranges of all steps, one after the other, are the whole logs."""
    begin = Offset({p: PartitionProgress(7, 7) for p in sizes}, {p.topic: "x" for p in sizes})
    read: dict[TopicPartition, int] = {}
    known = Offset()
    for limit in [*limits, None]:
        at = {p: (known.partitions.get(p, begin.partitions[p]).at, 7 + size) for p, size in sizes.items()}
        after = begin.moved(share(at, limit))
        for part in ranges(known, after):
            assert part.start == read.get(part.partition, 7)
            assert part.begin == 7
            read[part.partition] = part.end
        known = after
    assert read == {p: 7 + size for p, size in sizes.items() if size}


def test_a_topic_created_again_is_read_from_its_beginning() -> None:
    partition = TopicPartition("a", 0)
    before, after = (
        Offset({partition: PartitionProgress(0, 40)}, {"a": "old"}),
        Offset({partition: PartitionProgress(5, 9)}, {"a": "new"}),
    )
    assert ranges(before, after) == [Range(partition, "new", None, 5, 5, 9)]


@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(1, 500)), min_size=1, max_size=5), st.integers(1, 12)
)
def test_parts_of_a_range_are_that_range(spans: list[tuple[int, int]], tasks: int) -> None:
    whole = [
        Range(TopicPartition("a", i), None, None, 0, first, first + n) for i, (first, n) in enumerate(spans)
    ]
    parts = split(whole, tasks)
    offsets = [(p.partition, offset) for p in parts for offset in range(p.start, p.end)]
    assert offsets == [(p.partition, offset) for p in whole for offset in range(p.start, p.end)]
    assert all(part.start < part.end for part in parts)
    total = sum(n for _, n in spans)
    assert len(parts) >= min(tasks, total)
