"""The event loop on which a worker process makes its lookups: one, on a thread of its own.

It outlives the tasks of the process, so connections that one micro-batch opened serve the next one. The
thread is a daemon: it never keeps a process alive.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

_T = TypeVar("_T")


class EventLoopThread:
    """A running event loop and its thread.

    >>> loop = EventLoopThread()
    >>> async def double(n):
    ...     return 2 * n
    >>> loop.submit(double(4)).result()
    8
    >>> loop.stop()
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="deltajoin-lookups", daemon=True)
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run a coroutine on the loop, from any other thread; cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def stop(self) -> None:
        """Cancel what still runs, end the thread and close the loop; nothing can be submitted any more."""
        self.submit(self._cancel_others()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel_others(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)  # each one's caller has its exception
        await self._loop.shutdown_default_executor()


_lock = threading.Lock()
_shared: list[EventLoopThread] = []
_of_parents: Final[list[EventLoopThread]] = []


def shared_loop() -> EventLoopThread:
    """The loop of this process; started when it is first needed."""
    with _lock:
        if not _shared:
            _shared.append(EventLoopThread())
        return _shared[0]


def stop_shared_loop() -> None:
    """End the loop of this process, if there is one; the next lookup starts a new one."""
    with _lock:
        if _shared:
            _shared.pop().stop()


def _after_fork() -> None:
    """A forked child has no thread that runs the loop, and starts its own.

    The parent's loop is kept, not freed: its selector is shared with the parent, which would lose events if
    the child closed anything.
    """
    global _lock
    _lock = threading.Lock()
    _of_parents.extend(_shared)
    _shared.clear()


os.register_at_fork(after_in_child=_after_fork)
