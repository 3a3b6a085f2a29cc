"""Ctrl-C: what runs is cancelled, and the command or the prompt goes on.

PySpark's own handler calls the JVM from within the signal, which may hit a call that is under way: py4j then
speaks of a "reentrant call", and the session is no longer usable. So statements run in a thread of their own,
and the main thread, which gets the signals, has nothing to do but to wait and to cancel.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Final

_AGAIN_S: Final = 0.2
"""Between two attempts to cancel what has not ended: a statement may have several jobs in turn."""


class Statement:
    """A thread in which one piece of work after the other is done, each until Ctrl-C cancels it."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "statement")

    def run(self, work: Callable[[], None], cancel: Callable[[], None]) -> None:
        """Do some work; Ctrl-C cancels it.

        Args:
            work: what to do, in the thread.
            cancel: makes it end soon, from another thread; may be called several times.

        Raises:
            KeyboardInterrupt: Ctrl-C has cancelled it; one that ends as well as ever has just ended.
            BaseException: whatever the work raises.
        """
        with _interrupts():
            future = self._thread.submit(work)
            try:
                future.result()
            except KeyboardInterrupt:
                if _ended(future, cancel) is not None:
                    raise

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()


@contextmanager
def signals_noted() -> Iterator[list[int]]:
    """A list that SIGINT and SIGTERM are put into, instead of ending the process half-way."""
    received: list[int] = []
    with _handled(lambda number, _frame: received.append(number), signal.SIGINT, signal.SIGTERM):
        yield received


def done_or_stopped(work: Callable[[], None], cancel: Callable[[], None], stopped: list[int]) -> None:
    """Do some work in a thread; it is cancelled when `signals_noted` has noted one.

    Raises:
        BaseException: whatever the work raises, unless it was cancelled.
    """
    with ThreadPoolExecutor(1, "statements") as thread:
        future = thread.submit(work)
        while not stopped and not future.done():
            wait([future], _AGAIN_S)
        if stopped:
            _ended(future, cancel)
        else:
            future.result()


def _ended(future: Future[None], cancel: Callable[[], None]) -> BaseException | None:
    """Cancel until the work ends; what it raised, which is mostly that it was cancelled."""
    while not future.done():
        with suppress(KeyboardInterrupt):  # it is being cancelled already
            cancel()
            wait([future], _AGAIN_S)
    return future.exception()


@contextmanager
def _interrupts() -> Iterator[None]:
    """Python's own way with Ctrl-C, whichever PySpark has installed."""
    with _handled(signal.default_int_handler, signal.SIGINT):
        yield


@contextmanager
def _handled(handler: Callable[..., object], *numbers: signal.Signals) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's business
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, handled in before.items():
            signal.signal(number, handled)
