"""Cases of universal compaction; sizes and levels are listed from the newest run to the oldest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upsert.store.compaction_policy import Pick, Policy, RunSize


def runs(*levels_and_sizes: tuple[int, int]) -> list[RunSize]:
    return [RunSize(level, size) for level, size in levels_and_sizes]


def flushed(*sizes: int) -> list[RunSize]:
    """Runs of level 0."""
    return [RunSize(0, size) for size in sizes]


def test_too_large_beside_the_oldest_run_merges_all() -> None:
    assert Policy(3, 25, 1).pick(flushed(1, 2, 3, 3)) == Pick(4, 3)


def test_runs_of_equal_size_merge_up_to_the_first_large_one() -> None:
    assert Policy(3, 25, 1).pick(runs((0, 1), (1, 1), (2, 1), (3, 50))) == Pick(3, 2)


def test_too_many_runs_merge_the_newest_then_by_ratio() -> None:
    assert Policy(3, 25, 1).pick(runs((0, 1), (1, 2), (2, 3), (3, 50))) == Pick(3, 2)


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, Pick(3, 1)), (2, Pick(3, 1)), (3, Pick(3, 2)), (4, Pick(4, 3)), (5, Pick(5, 5))],
)
def test_the_result_goes_below_the_next_run_and_never_to_level_0(count: int, expected: Pick) -> None:
    levels = runs((0, 1), (0, 1), (1, 1), (3, 1), (4, 1))
    assert Policy(trigger=5).with_output_level(levels, count) == expected


def test_runs_of_level_0_alone_go_to_the_highest_level() -> None:
    assert Policy(5, 200, 1).pick(flushed(1, 1, 1, 1024, 1048576)) == Pick(5, 5)


def test_size_amplification_bounds_what_lies_above_the_oldest_run() -> None:
    policy = Policy(2, 25, 0)
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
    assert Policy(2, 200, ratio).by_size_ratio(flushed(8, 9, 10), 1, is_forced=False) == expected


def test_the_number_of_runs_may_pull_in_higher_levels() -> None:
    policy = Policy(3, 200, 1)
    pulled = runs((0, 10), (0, 20), (1, 97), (2, 100))
    assert policy.by_size_ratio(pulled, 1, is_forced=False) is None
    assert policy.by_number_of_runs(pulled) == 4


def test_fewer_runs_than_the_trigger_are_left_alone() -> None:
    assert Policy(trigger=5).pick(flushed(1, 1, 1, 1)) is None


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
    picked = Policy(trigger, 200, ratio).pick(shape)
    if picked is None:
        assert len(shape) <= trigger
        return
    left = [picked.output_level, *(run.level for run in shape[picked.runs :])]
    assert left == sorted(set(left))
    assert left[0] >= 1
    assert len(left) < max(len(shape), 2)
    assert len(left) <= trigger
