"""Lookups of a whole batch of keys: each distinct key once, many requests in flight, failures by key.

A batch is cut into requests, and the requests of all batches of the process take their turns on one event
loop. A request that is slow, or waits for its next try, holds up no other one. The answer comes in the order
of the batch's rows, whatever the order in which requests end. Retries are made by ``tenacity``, for every
kind of source in the same way; a source only says, by its error's class, whether asking again could help.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections import OrderedDict
from collections.abc import Coroutine, Hashable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)
from tenacity.wait import wait_base

from deltajoin.errors import LookupFailedError, LookupUnavailableError
from deltajoin.lookup.keys import DistinctKeys, comparable, distinct_keys
from deltajoin.lookup.protocol import (
    Answer,
    AnswerRows,
    LookupClient,
    LookupSource,
    RequestLimits,
    check_answer,
    check_source,
    joined_parts,
    key_fields,
    name_of,
)
from upsert.arrays import Mask, Positions, is_null, one_array

CAPACITY: Final = 1_000
"""Distinct keys that may be under way at a time, those included that wait for another try."""
TIMEOUT_S: Final = 180.0
"""Longest time of a request, all its tries included; FLIP-486's ``table.exec.async-lookup.timeout``."""

_OPEN_AT_ONCE: Final = 16
_CLOSE_TIMEOUT_S: Final = 10.0


@dataclass
class LookupCounts:
    """Requests of one batch, or of several added up. While they are made, it belongs to the event loop.

    What each counts is said in `deltajoin.latest.metrics.Measures`.

    >>> one = LookupCounts(keys=3, requests=2, seconds=0.5, slowest_s=0.3)
    >>> (one + one).requests, (one + one).slowest_s
    (4, 0.3)
    """

    keys: int = 0
    rows: int = 0
    requests: int = 0
    retries: int = 0
    failed_keys: int = 0
    most_in_flight: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0

    def __add__(self, other: Self) -> LookupCounts:
        sums = {each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)}
        sums["most_in_flight"] = max(self.most_in_flight, other.most_in_flight)
        sums["slowest_s"] = max(self.slowest_s, other.slowest_s)
        return LookupCounts(**sums)


@dataclass
class Request:
    """Keys of a batch that are asked for together, and what is known about them so far.

    ``start`` is the position of the first key in the batch; positions in ``parts`` and ``failures`` are those
    of the batch. ``begun`` is when the first attempt began, in the time of the event loop.
    """

    keys: pa.Table
    start: int
    parts: list[tuple[Positions, AnswerRows]] = field(default_factory=list)
    failures: dict[int, LookupFailedError] = field(default_factory=dict)
    attempts: int = 0
    begun: float = 0.0
    _left: Positions | None = None  # all, as long as no attempt has answered some

    def begin(self) -> pa.Table:
        """Another attempt: the keys that are left; what the last one said about them counts no more."""
        self.attempts += 1
        if self._left is None:
            return self.keys
        for at in self._left.tolist():
            self.failures.pop(at, None)
        return self.keys.take(pa.array(self._left - self.start))

    def add(self, answer: Answer) -> None:
        """Take in what an attempt brought; raise where keys are left that are worth another one."""
        if len(answer.positions):
            self.parts.append((self._in_batch(answer.positions), answer.rows))
        if not answer.failures:
            return
        failed = self._in_batch(np.fromiter(answer.failures, np.int64)).tolist()
        self.failures.update(zip(failed, answer.failures.values(), strict=True))
        again = [at for at, why in answer.failures.items() if isinstance(why, LookupUnavailableError)]
        if again:
            self._left = self._in_batch(np.array(again, dtype=np.int64))
            raise answer.failures[again[0]]

    def _in_batch(self, positions: Positions) -> Positions:
        return positions + self.start if self._left is None else self._left[positions]

    def fail(self, failure: LookupFailedError) -> None:
        """Give the keys up that are still left, each with the reason it has or with this one."""
        for at in self._in_batch(np.arange(self.keys.num_rows if self._left is None else len(self._left))):
            self.failures.setdefault(int(at), failure)


class _Backoff(wait_base):
    """Full jitter (a wait between 0 and a bound that doubles), or as long as the source asked for."""

    def __init__(self, limits: RequestLimits) -> None:
        self._jittered = wait_random_exponential(multiplier=limits.first_wait_s, max=limits.max_wait_s)

    def __call__(self, retry_state: RetryCallState) -> float:
        error = retry_state.outcome.exception() if retry_state.outcome else None
        asked = error.retry_after_s if isinstance(error, LookupUnavailableError) else None
        return max(asked or 0.0, self._jittered(retry_state))


class Asker:
    """Asks one client on behalf of all batches of a process; lives on the event loop.

    A request costs one turn and one timer; what a request that fails needs besides is paid by that one.
    """

    def __init__(self, source: LookupSource, client: LookupClient, timeout_s: float) -> None:
        self._source = source
        self._client = client
        self._timeout_s = timeout_s
        self._attempt_s = min(source.limits.timeout_s, timeout_s)
        self._turns = asyncio.Semaphore(source.limits.requests)
        self._in_flight = 0
        self._backoff = _Backoff(source.limits)
        self._time = asyncio.get_running_loop().time

    async def ask(self, request: Request, tally: LookupCounts) -> LookupUnavailableError | None:
        """Make the first attempt; why `ask_again` has to go on, None: all that can be known is known."""
        async with self._turns:
            request.begun = self._time()
            try:
                await self._attempt(request, tally)
            except LookupUnavailableError as failure:
                return failure
            except LookupFailedError as failure:
                request.fail(failure)
        return None

    async def ask_again(self, request: Request, tally: LookupCounts, failure: LookupUnavailableError) -> None:
        """Wait and make further attempts, until all that can be known about the keys is known.

        The first attempt is made without tenacity, whose start costs as much as a request.
        """
        outcomes: list[LookupUnavailableError] = [failure]

        async def attempt() -> None:
            if outcomes:
                raise outcomes.pop()
            async with self._turns:
                tally.retries += 1
                await self._attempt(request, tally)

        retrying = AsyncRetrying(
            retry=retry_if_exception_type(LookupUnavailableError),
            stop=stop_after_attempt(self._source.limits.attempts),
            wait=self._backoff,
            reraise=True,
        )
        try:
            async with asyncio.timeout_at(request.begun + self._timeout_s):
                await retrying(attempt)
        except LookupFailedError as last:
            request.fail(last)
        except TimeoutError:
            request.fail(
                LookupUnavailableError(
                    f"{name_of(self._source)}: a lookup must succeed within {self._timeout_s} s "
                    f"(async.timeout), {request.attempts} attempts did not; see whether the source is up"
                )
            )

    async def _attempt(self, request: Request, tally: LookupCounts) -> None:
        keys = request.begin()
        self._in_flight += 1
        tally.requests += 1
        tally.most_in_flight = max(tally.most_in_flight, self._in_flight)
        start = self._time()
        try:
            async with asyncio.timeout(self._attempt_s):
                answer = await self._client.lookup(keys)
        except TimeoutError as cause:
            raise LookupUnavailableError(
                f"{name_of(self._source)}: a request of {keys.num_rows} keys must be answered within "
                f"{self._attempt_s} s (timeout_s), it was not; "
                "ask for fewer keys at a time, or allow more time"
            ) from cause
        finally:
            self._in_flight -= 1
            seconds = self._time() - start
            tally.seconds += seconds
            tally.slowest_s = max(tally.slowest_s, seconds)
        check_answer(answer, self._source, keys.num_rows)
        request.add(answer)


_T = TypeVar("_T")


class EventLoopThread:
    """A running event loop and its thread, a daemon: it never keeps a process alive.

    It outlives the tasks of the process, so connections that one micro-batch opened serve the next one.

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


class Pending:
    """A batch whose lookups are under way."""

    def __init__(self, batch: DistinctKeys, asked: Future[tuple[Answer, LookupCounts]]) -> None:
        self._batch = batch
        self._asked = asked

    def result(self) -> tuple[Answer, LookupCounts]:
        """Wait for all requests of the batch; what they brought, and what they cost.

        Positions are rows of the batch, ascending; of rows with equal keys each gets all rows of the key,
        or its failure. A key that has a NULL gets neither. What a client raises besides
        ``LookupFailedError`` is raised here, for it is a bug in it.
        """
        try:
            answer, counts = self._asked.result()
        except BaseException:
            self.cancel()
            raise
        return self._batch.spread(answer), counts

    def cancel(self) -> None:
        """End the requests that are still under way; no caller waits for the result."""
        self._asked.cancel()


class Lookups:
    """An open source that answers batches; may be used by several threads of one process.

    >>> from deltajoin.lookup.memory import MemoryLookup
    >>> lookups = Lookups(MemoryLookup(pa.table({"id": [1, 2], "name": ["ann", "bob"]}), ["id"]))
    >>> answer, counts = lookups.answer(pa.table({"id": [2, 9, None, 2]}))
    >>> answer.positions.tolist(), answer.rows["name"].to_pylist(), counts.keys
    ([0, 3], ['bob', 'bob'], 2)
    >>> lookups.close()
    """

    def __init__(
        self, source: LookupSource, *, capacity: int = CAPACITY, timeout_s: float = TIMEOUT_S
    ) -> None:
        check_source(source)
        self.source = source
        self._fields = key_fields(source)
        self._keys_per_request = min(source.limits.keys_per_request, capacity)
        self._requests_at_once = capacity // self._keys_per_request
        self._askers = min(source.limits.requests, self._requests_at_once)
        self._timeout_s = timeout_s
        self._loop = shared_loop()
        self._client, self._asker, self._slots = self._loop.submit(self._open()).result()

    async def _open(self) -> tuple[LookupClient, Asker, asyncio.Semaphore]:
        client = self.source.open()
        return client, Asker(self.source, client, self._timeout_s), asyncio.Semaphore(self._requests_at_once)

    def answer(self, keys: pa.Table) -> tuple[Answer, LookupCounts]:
        """The rows that match a batch of keys: ``start(keys).result()``."""
        return self.start(keys).result()

    def start(self, keys: pa.Table) -> Pending:
        """Send the lookups of a batch on their way, and do not wait for them.

        Keys are the source's columns in their order and types, with equal rows and such that have a NULL.
        """
        batch = distinct_keys(keys, self._fields)
        return Pending(batch, self._loop.submit(self._ask_all(batch.keys)))

    async def _ask_all(self, keys: pa.Table) -> tuple[Answer, LookupCounts]:
        tally = LookupCounts(keys.num_rows)
        requests: list[Request] = []
        all_starts = range(0, keys.num_rows, self._keys_per_request)
        starts = iter(all_starts)

        async def ask_in_turn(tasks: asyncio.TaskGroup) -> None:
            """One request after the other; one that waits for its next try goes on by itself."""
            for start in starts:
                await self._slots.acquire()
                request = Request(keys.slice(start, self._keys_per_request), start)
                requests.append(request)
                failure = None
                try:
                    failure = await self._asker.ask(request, tally)
                finally:
                    if failure is None:
                        self._slots.release()
                if failure is not None:
                    again = tasks.create_task(self._asker.ask_again(request, tally, failure))
                    # not in the task: one that is cancelled before it starts would keep its slot
                    again.add_done_callback(lambda _: self._slots.release())

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in all_starts[: self._askers]:
                    tasks.create_task(ask_in_turn(tasks))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        answer = self._joined(keys, requests)
        tally.rows, tally.failed_keys = answer.rows.num_rows, len(answer.failures)
        return answer, tally

    def _joined(self, keys: pa.Table, requests: list[Request]) -> Answer:
        """What the requests brought as one answer, without the rows of keys that have failed."""
        parts = [part for request in requests for part in request.parts]
        failures = {at: failure for request in requests for at, failure in request.failures.items()}
        positions, rows = joined_parts(self.source.schema, parts)
        for at in strangers(keys, positions, rows).tolist():
            failures[at] = LookupFailedError(
                f"{name_of(self.source)}: rows must equal the key that they answer, byte by byte; the key "
                f"{keys.slice(at, 1).to_pylist()[0]!r} was answered with another one; "
                "see by which rules the source compares"
            )
        if failures:
            kept = ~np.isin(positions, np.fromiter(failures, dtype=np.int64))
            positions, rows = positions[kept], rows.filter(pa.array(kept))
        return Answer(positions, rows.combine_chunks(), failures)

    def close(self) -> None:
        """Close the client; batches that are under way fail."""
        self._loop.submit(self._client.close()).result(_CLOSE_TIMEOUT_S)


def strangers(keys: pa.Table, positions: Positions, rows: pa.Table) -> Positions:
    """Positions of the keys that were answered with a row of another key.

    A store that compares texts by a collation, or without regard to trailing spaces, would otherwise
    join rows that Spark would not.

    >>> keys = pa.table({"name": ["ann", "bob"]})
    >>> strangers(keys, np.array([0, 1]), pa.table({"name": ["Ann", "bob"]})).tolist()
    [0]
    """
    is_same = np.ones(len(positions), dtype=np.bool_)
    for name in keys.column_names:
        asked = one_array(keys.column(name)).take(pa.array(positions))
        is_same &= _equal(asked, comparable(one_array(rows.column(name))))
    return np.unique(positions[~is_same])


def _equal(asked: pa.Array, given: pa.Array) -> Mask:
    same: Mask = pc.fill_null(pc.equal(asked, given), False).to_numpy(zero_copy_only=False)
    if pa.types.is_floating(asked.type):
        nan = pc.is_nan(asked).to_numpy(zero_copy_only=False)
        nan_too = pc.fill_null(pc.is_nan(given), False).to_numpy(zero_copy_only=False)
        same = same | (nan & nan_too & ~is_null(given))
    return same


_lock = threading.RLock()
_loops: Final[list[EventLoopThread]] = []
_open: Final[OrderedDict[Hashable, Lookups]] = OrderedDict()
_of_parents: Final[list[object]] = []


def shared_loop() -> EventLoopThread:
    """The loop of this process; started when it is first needed."""
    with _lock:
        if not _loops:
            _loops.append(EventLoopThread())
        return _loops[0]


def _stop_shared_loop() -> None:
    with _lock:
        if _loops:
            _loops.pop().stop()


def open_lookups(
    token: Hashable, source: LookupSource, *, capacity: int = CAPACITY, timeout_s: float = TIMEOUT_S
) -> Lookups:
    """The lookups that this process keeps open under a token, opened from ``source`` the first time.

    A worker process serves a query's micro-batches one after the other; so the next one finds the
    connections of the last. The 16 that were used last stay open, others are closed.

    A token names query and side, for example ``(run id, "left")``; another source needs another one.
    """
    with _lock:
        if token not in _open:
            _open[token] = Lookups(source, capacity=capacity, timeout_s=timeout_s)
        _open.move_to_end(token)
        surplus = [_open.popitem(last=False)[1] for _ in range(len(_open) - _OPEN_AT_ONCE)]
        found = _open[token]
    for lookups in surplus:
        lookups.close()
    return found


def close_lookups() -> None:
    """Close all lookups that this process keeps open, and end its event loop."""
    with _lock:
        still_open = list(_open.values())
        _open.clear()
    with ExitStack() as ends:  # one that cannot be closed keeps no other open
        ends.callback(_stop_shared_loop)
        for lookups in still_open:
            ends.callback(lookups.close)


def _after_fork() -> None:
    """A forked child has no thread that runs the loop, and opens its own.

    The parent's loop and connections are kept, not freed: the loop's selector is shared with the parent,
    which would lose events if the child closed anything.
    """
    global _lock
    _lock = threading.RLock()
    _of_parents.extend((*_loops, *_open.values()))
    _loops.clear()
    _open.clear()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(close_lookups)
