"""One request to a source: its permit, its time, and another try where that may help.

Retries are made by ``tenacity``, for every kind of source in the same way; a source only says, by the class
of its error, whether asking again could help. While a request waits for its next try, others go on.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, fields
from typing import Self

import numpy as np
import pyarrow as pa
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)
from tenacity.wait import wait_base

from deltajoin.errors import LookupFailedError, LookupUnavailableError
from deltajoin.lookup.checks import check_answer, name_of
from deltajoin.lookup.protocol import Answer, AnswerRows, LookupClient, LookupSource, RequestLimits
from upsert.arrays import Positions


@dataclass
class LookupCounts:
    """Requests of one batch, or of several added up. While they are made, it belongs to the event loop.

    Attributes:
        keys: distinct keys without NULL that were asked for.
        rows: rows that the source gave for them.
        requests: calls of a client's ``lookup``, repeated ones included.
        retries: those of them that repeated one.
        failed_keys: keys that could not be looked up.
        most_in_flight: largest number of requests that were under way at a time in this process.
        seconds: time that all requests took together; divided by ``requests``, the mean latency.
        slowest_s: time of the slowest one.

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


AnswerPart = tuple[Positions, AnswerRows]
"""Some rows, and the positions of the keys that they answer."""


@dataclass
class Request:
    """Keys of a batch that are asked for together, and what is known about them so far.

    Attributes:
        keys: what is asked for.
        start: position of the first key in the batch; positions below are those of the batch.
        parts: pieces of the answer.
        failures: why keys could not be looked up, by position; lookups that fail are no exceptions.
        attempts: how often it was made.
        begun: when its first attempt began, in the time of the event loop.
    """

    keys: pa.Table
    start: int
    parts: list[AnswerPart] = field(default_factory=list)
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
        """Take in what an attempt brought, and keep the keys that are worth another one.

        Raises:
            LookupUnavailableError: there are some.
        """
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
        """Make the first attempt at a request.

        Returns:
            Why `ask_again` has to go on with it; None: all that can be known about its keys is known.
        """
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
