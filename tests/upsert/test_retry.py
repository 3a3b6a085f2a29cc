"""Calls that are made again: how often, after which pauses, and what is raised in the end."""

import subprocess
import sys

import pytest

from upsert.retry import retried


class Clock:
    """Time that passes when something sleeps, and a call that always fails."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []
        self.calls = 0

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.append(seconds)

    def fail(self) -> None:
        self.calls += 1
        raise OSError(self.calls, "away")


def is_passing(failure: BaseException) -> bool:
    return isinstance(failure, OSError)


def test_so_many_tries_with_a_pause_between_them_and_the_last_failure_is_raised() -> None:
    clock = Clock()
    with pytest.raises(OSError, match="4") as raised:
        retried(
            clock.fail,
            is_passing=is_passing,
            first_pause_s=1,
            longest_pause_s=3,
            tries=4,
            sleep=clock.sleep,
        )
    assert raised.value.errno == 4
    assert clock.pauses == [1, 2, 3]


def test_no_try_begins_after_the_deadline_by_the_given_clock() -> None:
    clock = Clock()
    with pytest.raises(OSError, match="away"):
        retried(
            clock.fail,
            is_passing=is_passing,
            first_pause_s=1,
            patience_s=10,
            sleep=clock.sleep,
            monotonic=lambda: clock.now,
        )
    assert clock.pauses == [1, 2, 4]
    assert clock.calls == 4


def test_each_pause_is_chosen_between_half_of_it_and_all_of_it() -> None:
    clock = Clock()
    with pytest.raises(OSError, match="away"):
        retried(
            clock.fail,
            is_passing=is_passing,
            first_pause_s=2,
            tries=3,
            jitter=lambda low, high: low + (high - low) / 4,
            sleep=clock.sleep,
        )
    assert clock.pauses == [1.25, 2.5]


def test_a_failure_that_stays_is_raised_at_once() -> None:
    clock = Clock()
    with pytest.raises(OSError, match="away"):
        retried(clock.fail, is_passing=lambda _: False, first_pause_s=1, sleep=clock.sleep)
    assert (clock.calls, clock.pauses) == (1, [])


def test_a_call_that_does_not_fail_loads_no_event_loop() -> None:
    """Each worker takes locks; the library of retries brings asyncio along, and tornado if there."""
    script = (
        "import sys; from upsert.retry import retried; "
        "retried(lambda: 1, is_passing=bool, first_pause_s=1); "
        "print([name for name in ('asyncio', 'tenacity', 'tornado') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
