"""One request to a source: its turn, its time, and another try where that may help.

Retries are made by ``tenacity``, for every kind of source in the same way; a source only says, by the class
of its error, whether asking again could help. While a request waits for its next try, others go on.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

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
from deltajoin.lookup.counts import LookupCounts
from deltajoin.lookup.protocol import Answer, LookupClient, LookupSource, Positions, RequestLimits

Part = tuple[Positions, pa.Table]
"""Some rows, and the positions of the keys that they answer."""


@dataclass
class Tally:
    """Counts of a batch while it runs; belongs to the event loop."""

    requests: int = 0
    retries: int = 0
    most_in_flight: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0

    def counts(self, keys: int, answer: Answer) -> LookupCounts:
        """The finished counts of a batch of so many distinct keys."""
        return LookupCounts(
            keys,
            answer.rows.num_rows,
            self.requests,
            self.retries,
            len(answer.failures),
            self.most_in_flight,
            self.seconds,
            self.slowest_s,
        )


@dataclass
class _Request:
    """Keys that are asked for together, and what is known about them so far."""

    keys: pa.Table
    left: Positions
    parts: list[Part] = field(default_factory=list)
    failures: dict[int, LookupFailedError] = field(default_factory=dict)
    attempts: int = 0

    def keys_left(self) -> pa.Table:
        return self.keys if len(self.left) == self.keys.num_rows else self.keys.take(pa.array(self.left))

    def add(self, answer: Answer) -> None:
        """Take in what an attempt brought, and keep the keys that are worth another one.

        Raises:
            LookupUnavailableError: there are some.
        """
        if len(answer.positions):
            self.parts.append((self.left[answer.positions], answer.rows))
        again = []
        for at, failure in answer.failures.items():
            self.failures[int(self.left[at])] = failure
            if isinstance(failure, LookupUnavailableError):
                again.append(at)
        self.left = self.left[np.array(again, dtype=np.int64)]
        if again:
            raise answer.failures[again[0]]

    def fail(self, failure: LookupFailedError) -> None:
        """Give the keys up that are still left, each with the reason it has or with this one."""
        for at in self.left.tolist():
            self.failures.setdefault(at, failure)

    def begin(self) -> None:
        """Another attempt: what the last one said about the keys that are left counts no more."""
        self.attempts += 1
        for at in self.left.tolist():
            self.failures.pop(at, None)


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

    Args:
        source: what the client was opened from.
        client: the client.
        timeout_s: longest time from the first turn of a request to its end, tries and waits included.
    """

    def __init__(self, source: LookupSource, client: LookupClient, timeout_s: float) -> None:
        self._source = source
        self._client = client
        self._timeout_s = timeout_s
        self._turns = asyncio.Semaphore(source.limits.requests)
        self._in_flight = 0
        self._backoff = _Backoff(source.limits)

    async def ask(self, keys: pa.Table, tally: Tally) -> tuple[list[Part], dict[int, LookupFailedError]]:
        """Everything that is known about some keys in the end; lookups that fail are no exceptions.

        Returns:
            Pieces of the answer, and why keys could not be looked up, by position.
        """
        request = _Request(keys, np.arange(keys.num_rows))
        try:
            async with asyncio.timeout(self._timeout_s):
                try:
                    await self._attempt(request, tally)
                except LookupUnavailableError as failure:
                    await self._ask_again(request, tally, failure)
        except LookupFailedError as failure:
            request.fail(failure)
        except TimeoutError:
            request.fail(
                LookupUnavailableError(
                    f"{name_of(self._source)}: a lookup must succeed within {self._timeout_s} s "
                    f"(async.timeout), {request.attempts} attempts did not; see whether the source is up"
                )
            )
        return request.parts, request.failures

    async def _ask_again(self, request: _Request, tally: Tally, failure: LookupUnavailableError) -> None:
        """Go on after the first attempt, made without tenacity, whose start costs as much as a request."""
        outcomes: list[LookupUnavailableError] = [failure]

        async def attempt() -> None:
            if outcomes:
                raise outcomes.pop()
            await self._attempt(request, tally)

        await AsyncRetrying(
            retry=retry_if_exception_type(LookupUnavailableError),
            stop=stop_after_attempt(self._source.limits.attempts),
            wait=self._backoff,
            reraise=True,
        )(attempt)

    async def _attempt(self, request: _Request, tally: Tally) -> None:
        async with self._turns:
            request.begin()
            tally.retries += request.attempts > 1
            answer = await self._counted(request.keys_left(), tally)
        check_answer(answer, self._source, len(request.left))
        request.add(answer)

    async def _counted(self, keys: pa.Table, tally: Tally) -> Answer:
        self._in_flight += 1
        tally.requests += 1
        tally.most_in_flight = max(tally.most_in_flight, self._in_flight)
        start = time.perf_counter()
        try:
            return await self._in_time(keys)
        finally:
            self._in_flight -= 1
            seconds = time.perf_counter() - start
            tally.seconds += seconds
            tally.slowest_s = max(tally.slowest_s, seconds)

    async def _in_time(self, keys: pa.Table) -> Answer:
        try:
            async with asyncio.timeout(self._source.limits.timeout_s):
                return await self._client.lookup(keys)
        except TimeoutError as cause:
            raise LookupUnavailableError(
                f"{name_of(self._source)}: a request of {keys.num_rows} keys must be answered within "
                f"{self._source.limits.timeout_s} s (timeout_s), it was not; "
                "ask for fewer keys at a time, or allow more time"
            ) from cause
