"""Which snapshots may go: by number, by age, by both; and random cases against the rules."""

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from upsert.store.retention.policy import Retention, boundary, is_due


@dataclass(frozen=True)
class Point:
    """A snapshot, as far as the policy looks at it."""

    id: int
    states: int
    data_version: int
    time_ms: int


def points(*times: int) -> list[Point]:
    """Snapshots from 1 on, each a state of its own, published at these times."""
    return [Point(number, number, number, time) for number, time in enumerate(times, start=1)]


def kept_from(marks: list[Point], rule: Retention, now_ms: int, held: tuple[int, ...] = ()) -> int:
    return marks[boundary(marks, rule, now_ms, held)].id


def test_at_least_so_many_states_stay_however_old() -> None:
    assert kept_from(points(*[0] * 10), Retention(3, None, 1, None), now_ms=1000) == 8


def test_at_most_so_many_states_stay_however_young() -> None:
    assert kept_from(points(*[0] * 10), Retention(1, 3, 10_000, None), now_ms=1) == 8


def test_a_snapshot_goes_only_when_its_successor_is_old_enough() -> None:
    """1 to 5 at 0, 6 to 10 at 2000, now 2500, one second is kept: 5 was the table until 2000."""
    marks = points(*[0] * 5, *[2000] * 5)
    assert kept_from(marks, Retention(1, None, 1000, None), now_ms=2500) == 5
    assert kept_from(marks, Retention(1, None, 1000, None), now_ms=3000) == 10


def test_what_is_held_stays_with_all_that_follows() -> None:
    marks = points(*[0] * 10)
    assert kept_from(marks, Retention(1, 1, None, None), now_ms=9, held=(3, 7)) == 3


def test_of_a_state_that_is_held_the_rows_stay_as_they_lay() -> None:
    """In the middle of a step a reader knows which rows it has read by where they lie."""
    marks = [Point(1, 1, 1, 0), Point(2, 1, 1, 0), Point(3, 1, 1, 0), Point(4, 1, 1, 0), Point(5, 2, 5, 0)]
    rule = Retention(1, 1, None, None)
    for moved in (2, 3, 4, 5):
        first = boundary(marks, rule, 0, [1], partial(lie_alike, moved))
        assert marks[first].id == moved - 1


def test_what_is_held_takes_few_looks_at_snapshots() -> None:
    """Each may be a request to a store, and there is a run after many a commit."""
    looked = set[int]()

    class Looked(list[Point]):
        def __getitem__(self, at: Any) -> Any:
            looked.add(at)
            return super().__getitem__(at)

    marks = Looked(points(*[0] * 1000))
    assert boundary(marks, Retention(1, 1, None, None), 0, [300]) == 299
    assert len(looked) <= 2 * 10 + 2, "two searches among 1000"


def lie_alike(moved: int, one: Point, other: Point) -> bool:
    """Whether two snapshots are on one side of the one that has moved the rows."""
    return (one.id < moved) == (other.id < moved)


def test_one_run_takes_no_more_than_its_limit() -> None:
    assert kept_from(points(*[0] * 100), Retention(1, 1, None, 50), now_ms=9) == 51


def test_of_the_oldest_state_that_stays_the_newest_snapshot_does() -> None:
    marks = [Point(1, 1, 1, 0), Point(2, 2, 2, 0), Point(3, 2, 2, 0), Point(4, 3, 4, 0)]
    assert kept_from(marks, Retention(2, 2, None, None), now_ms=0) == 3
    assert kept_from(marks, Retention(1, 1, None, None), now_ms=0, held=(2,)) == 3


def test_without_a_rule_nothing_goes() -> None:
    assert kept_from(points(0, 1, 2), Retention(1, None, None, None), now_ms=10**9) == 1


def test_a_young_or_small_table_is_not_due() -> None:
    rule = Retention(2, None, 1000, 50)
    assert not is_due(points(0), rule, now_ms=10**9)
    assert not is_due(points(0, 0), rule, now_ms=10**9)
    assert not is_due(points(0, 900, 900), rule, now_ms=1900)


def test_a_quiet_table_is_due_a_tenth_of_the_time_late_and_a_busy_one_for_a_batch() -> None:
    rule = Retention(1, None, 1000, 5)
    assert not is_due(points(0, 0, 1000), rule, now_ms=1099)
    assert is_due(points(0, 0, 1000), rule, now_ms=1100)
    assert is_due(points(*[0] * 6, 1000), rule, now_ms=1000)


def test_a_table_beyond_its_number_is_due_at_once() -> None:
    assert is_due(points(0, 0, 0), Retention(1, 2, 10**9, 50), now_ms=0)
    assert not is_due(points(0, 0), Retention(1, 2, 10**9, 50), now_ms=0)


LIVES = st.lists(st.tuples(st.booleans(), st.integers(0, 40)), min_size=1, max_size=30)
RULES = st.builds(
    lambda fewest, more, age, limit: Retention(fewest, None if more is None else fewest + more, age, limit),
    st.integers(1, 6),
    st.none() | st.integers(0, 6),
    st.none() | st.integers(0, 200),
    st.none() | st.integers(1, 10),
)


@given(LIVES, RULES, st.integers(0, 60), st.lists(st.integers(1, 30), max_size=2))
def test_a_boundary_is_what_a_plain_reading_of_the_rules_says(
    life: list[tuple[bool, int]], rule: Retention, later: int, held: list[int]
) -> None:
    marks, states, version, time = [], 0, 0, 0
    for id, (is_state, pause) in enumerate(life, start=1):
        time += pause
        states, version = (states + 1, id) if is_state else (states, version)
        marks.append(Point(id, states, version, time))
    now = time + later
    first = boundary(marks, rule, now, held)
    left = {mark.states for mark in marks[first:]}
    all_states = {mark.states for mark in marks}
    assert len(left) >= min(rule.min_states, len(all_states))
    if rule.limit is None and rule.max_states is not None and not held:
        assert len(left) <= rule.max_states
    assert all(marks[first].data_version <= version for version in held if version >= marks[0].data_version)
    assert rule.limit is None or first <= rule.limit
    for mark, successor in pairwise(marks[: first + 1]):
        is_old = rule.age_ms is not None and successor.time_ms <= now - rule.age_ms
        beyond = rule.max_states is not None and marks[-1].states - mark.states >= rule.max_states
        is_same_state = successor.states == mark.states
        assert is_old or beyond or is_same_state
