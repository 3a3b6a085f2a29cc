"""Calls that are made again while their cause may pass: one back-off for all clients (pure)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def retried(
    call: Callable[[], T],
    *,
    is_passing: Callable[[BaseException], bool],
    first_pause_s: float,
    longest_pause_s: float = float("inf"),
    patience_s: float = float("inf"),
    tries: int | None = None,
    jitter: Callable[[float, float], float] | None = None,
    on_failure: Callable[[BaseException], None] = lambda _: None,
    sleep: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> T:
    """The result of a call, made again after each failure that may pass, with pauses that double.

    When there are no more tries, the last failure is raised.

    Args:
        call: the call.
        is_passing: whether another try may succeed after this failure; others are raised at once.
        first_pause_s: the first pause.
        longest_pause_s: no pause is longer.
        patience_s: no try begins later than so many seconds after the first one.
        tries: there are no more of them; None for no such limit.
        jitter: chooses each pause between half of it and all of it, as ``random.uniform``; None: all of it.
        on_failure: is called with each failure that may pass.
        sleep: how to wait.
        monotonic: the clock of ``patience_s``.

    >>> replies = iter([OSError("away"), OSError("away"), 7])
    >>> def ask() -> int:
    ...     reply = next(replies)
    ...     if isinstance(reply, OSError):
    ...         raise reply
    ...     return reply
    >>> pauses: list[float] = []
    >>> is_passing = lambda failure: isinstance(failure, OSError)
    >>> retried(ask, is_passing=is_passing, patience_s=60, first_pause_s=0.1, sleep=pauses.append)
    7
    >>> pauses
    [0.1, 0.2]
    """
    begun = monotonic()
    try:
        return call()
    except BaseException as failure:
        if not is_passing(failure):
            raise
        failures = [failure]
    # only here, for it brings asyncio along, and tornado where that is installed; most calls do not fail
    from tenacity import RetryCallState, Retrying, retry_if_exception, wait_exponential

    exponential = wait_exponential(multiplier=first_pause_s, max=longest_pause_s)

    def attempt() -> T:
        if failures:
            raise failures.pop()
        return call()

    def pause(state: RetryCallState) -> float:
        longest = exponential(state)
        return longest if jitter is None else jitter(longest / 2, longest)

    def is_over(state: RetryCallState) -> bool:
        is_late = monotonic() + state.upcoming_sleep - begun >= patience_s
        return is_late or state.attempt_number == tries

    def after(state: RetryCallState) -> None:
        if state.outcome is not None and (failure := state.outcome.exception()) is not None:
            on_failure(failure)

    retrying = Retrying(
        retry=retry_if_exception(is_passing), wait=pause, stop=is_over, after=after, sleep=sleep, reraise=True
    )
    return retrying(attempt)
