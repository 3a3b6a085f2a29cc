"""Cases of universal compaction; sizes and levels are listed from the newest run to the oldest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upsert.store.metadata.file_entry import FileEntry, Run
from upsert.store.metadata.file_set import FileSet
from upsert.store.upkeep import compaction
from upsert.store.upkeep.compaction import (
    MAX_LEVEL,
    Chosen,
    CompactionJob,
    Leveled,
    Pick,
    RunSize,
    Universal,
    sections,
)


def runs(*levels_and_sizes: tuple[int, int]) -> list[RunSize]:
    return [RunSize(level, size) for level, size in levels_and_sizes]


def flushed(*sizes: int) -> list[RunSize]:
    """Runs of level 0."""
    return [RunSize(0, size) for size in sizes]


def test_too_large_beside_the_oldest_run_merges_all() -> None:
    assert Universal(3, 25, 1).pick(flushed(1, 2, 3, 3)) == Pick(4, 3)


def test_runs_of_equal_size_merge_up_to_the_first_large_one() -> None:
    assert Universal(3, 25, 1).pick(runs((0, 1), (1, 1), (2, 1), (3, 50))) == Pick(3, 2)


def test_too_many_runs_merge_the_newest_then_by_ratio() -> None:
    assert Universal(3, 25, 1).pick(runs((0, 1), (1, 2), (2, 3), (3, 50))) == Pick(3, 2)


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, Pick(3, 1)), (2, Pick(3, 1)), (3, Pick(3, 2)), (4, Pick(4, 3)), (5, Pick(5, 5))],
)
def test_the_result_goes_below_the_next_run_and_never_to_level_0(count: int, expected: Pick) -> None:
    levels = runs((0, 1), (0, 1), (1, 1), (3, 1), (4, 1))
    assert Universal(trigger=5).with_output_level(levels, count) == expected


def test_runs_of_level_0_alone_go_to_the_highest_level() -> None:
    assert Universal(5, 200, 1).pick(flushed(1, 1, 1, 1024, 1048576)) == Pick(5, 5)


def test_size_amplification_bounds_what_lies_above_the_oldest_run() -> None:
    policy = Universal(2, 25, 0)
    history, sizes = [], [1]
    for _ in range(17):
        sizes = [1, *sizes]
        if policy.by_size_amplification(flushed(*sizes)):
            sizes = [sum(sizes)]
        history.append(sizes)
    assert history == [
        *([2], [3], [4], [1, 4], [6], [1, 6], [8], [1, 8], [1, 1, 8], [11], [1, 11], [1, 1, 11], [14]),
        *([1, 14], [1, 1, 14], [1, 1, 1, 14], [18]),
    ]


@pytest.mark.parametrize(("ratio", "expected"), [(10, None), (20, 3)])
def test_the_ratio_decides_how_much_larger_the_next_run_may_be(ratio: int, expected: int | None) -> None:
    assert Universal(2, 200, ratio).by_size_ratio(flushed(8, 9, 10), 1, is_forced=False) == expected


def test_the_number_of_runs_may_pull_in_higher_levels() -> None:
    policy = Universal(3, 200, 1)
    pulled = runs((0, 10), (0, 20), (1, 97), (2, 100))
    assert policy.by_size_ratio(pulled, 1, is_forced=False) is None
    assert policy.by_number_of_runs(pulled) == 4


def test_fewer_runs_than_the_trigger_are_left_alone() -> None:
    assert Universal(trigger=5).pick(flushed(1, 1, 1, 1)) is None


@given(
    st.lists(st.integers(1, 10**6), min_size=1, max_size=8),
    st.sets(st.integers(1, 5)),
    st.integers(2, 6),
    st.integers(0, 100),
)
def test_a_pick_leaves_one_run_per_level_in_order_and_meets_the_trigger(
    sizes: list[int], levels: set[int], trigger: int, ratio: int
) -> None:
    """Whatever the shape: above level 0 each level stays one run, levels ascend, runs get fewer."""
    used = sorted(levels & set(range(1, trigger + 1)))[: len(sizes)]
    shape = runs(*zip([0] * (len(sizes) - len(used)) + used, sizes, strict=True))
    picked = Universal(trigger, 200, ratio).pick(shape)
    if picked is None:
        assert len(shape) <= trigger
        return
    left = [picked.output_level, *(run.level for run in shape[picked.runs :])]
    assert left == sorted(set(left))
    assert left[0] >= 1
    assert len(left) < max(len(shape), 2)
    assert len(left) <= trigger


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ([(0, 9), (5, 7), (9, 15), (16, 22), (16, 28), (24, 32)], [[0, 5, 9], [16, 16, 24]]),
        ([(0, 9), (10, 12), (13, 13)], [[0], [10], [13]]),
        ([(0, 9), (9, 12), (12, 13)], [[0, 9, 12]]),
        ([(0, 50), (1, 2), (3, 4), (60, 61)], [[0, 1, 3], [60]]),
        ([], []),
    ],
)
def test_sections_are_the_largest_groups_without_a_common_key(
    keys: list[tuple[int, int]], expected: list[list[int]]
) -> None:
    files = [file(0, 1, first, last) for first, last in keys]
    found = sections(reversed(files))
    assert [[entry.first_key[0] for entry in section] for section in found] == expected


def file(level: int, size: int, first: int, last: int, sequence: int = 1, deletes: int = 0) -> FileEntry:
    """A file of so many bytes with keys from one number to another."""
    keys = bytes([first]), bytes([last])
    name = f"{level}-{sequence}-{first}-{last}"
    return FileEntry(name, (), 0, level, sequence, size, deletes, size, 0, {}, {}, *keys)


def of_bucket(*files: FileEntry) -> tuple[Run, ...]:
    return FileSet.of(files).groups[(), 0]


LEVELED = Leveled(trigger=2, base_bytes=100, multiplier=10)


def test_commits_on_level_0_go_to_level_1_with_what_lies_between_their_keys() -> None:
    new, newer = file(0, 5, 30, 40, sequence=8), file(0, 5, 60, 70, sequence=9)
    left, within, right = file(1, 30, 0, 29), file(1, 30, 45, 50), file(1, 30, 71, 80)
    assert LEVELED.choose(of_bucket(new, left, within, right)) is None
    assert LEVELED.choose(of_bucket(new, newer, left, within, right)) == Chosen((newer, new, within), 1)


def test_of_a_level_that_is_too_large_the_file_goes_on_that_takes_least_along() -> None:
    costly, cheap = file(1, 60, 0, 9), file(1, 60, 10, 19)
    below = file(2, 500, 0, 9), file(2, 30, 10, 14), file(2, 30, 15, 19)
    assert LEVELED.choose(of_bucket(costly, cheap, *below)) == Chosen((cheap, *below[1:]), 2)
    assert LEVELED.choose(of_bucket(costly, *below)) is None
    deep = file(2, 999, 0, 9), file(2, 2, 10, 19)
    assert LEVELED.choose(of_bucket(*deep)) == Chosen((deep[0],), 3)


def test_the_last_level_may_have_any_size() -> None:
    assert LEVELED.choose(of_bucket(file(MAX_LEVEL, 10**12, 0, 9))) is None


def made_of(merge: CompactionJob) -> tuple[list[list[int]], list[int]]:
    """First keys of the files of each group, and of those that are only moved."""
    groups = [[entry.first_key[0] for entry in group.files] for group in merge.groups]
    return groups, [entry.first_key[0] for entry in merge.moved]


def test_only_files_that_overlap_are_rewritten() -> None:
    """A good-sized file alone in its section changes its level; one that is there already is left alone."""
    runs = of_bucket(
        file(0, 90, 0, 9, sequence=3),
        file(0, 90, 20, 29, sequence=2),
        file(1, 90, 25, 30),
        file(5, 90, 40, 49),
    )
    chosen = Chosen(tuple(entry for run in runs for entry in run), 5)
    assert made_of(compaction.plan(((), 0), runs, chosen, 100)) == ([[20, 25]], [0])


def test_small_files_are_merged_with_their_neighbours_up_to_the_next_large_one() -> None:
    sizes = [(10, 0), (10, 10), (90, 20), (10, 30), (90, 40), (10, 50), (10, 60)]
    runs = of_bucket(*(file(0, size, at, at + 9, sequence=at + 1) for size, at in sizes))
    chosen = Chosen(tuple(entry for run in runs for entry in run), 5)
    assert made_of(compaction.plan(((), 0), runs, chosen, 100)) == ([[10, 0], [60, 50]], [20, 30, 40])


def test_a_file_with_deletions_is_rewritten_where_nothing_older_has_its_keys() -> None:
    above, below = file(0, 90, 0, 9, sequence=2, deletes=1), file(5, 90, 5, 15)
    hidden = Chosen((above,), 4)
    assert made_of(compaction.plan(((), 0), of_bucket(above, below), hidden, 100)) == ([], [0])
    alone = compaction.plan(((), 0), of_bucket(above, file(5, 90, 10, 15)), hidden, 100)
    assert made_of(alone) == ([[0]], [])
    assert [group.is_oldest for group in alone.groups] == [True]
