"""Lookups of a whole batch of keys: each distinct key once, many requests in flight, failures by key.

A batch is cut into requests, and the requests of all batches of the process take their turns on one event
loop. A request that is slow, or waits for its next try, holds up no other one. The answer comes in the order
of the batch's rows, whatever the order in which requests end.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections import OrderedDict
from collections.abc import Hashable
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Final

import numpy as np
import pyarrow as pa

from deltajoin.errors import LookupFailedError
from deltajoin.lookup.checks import check_source, key_fields, name_of, strangers
from deltajoin.lookup.event_loop import shared_loop, stop_shared_loop
from deltajoin.lookup.keys import DistinctKeys, distinct_keys
from deltajoin.lookup.protocol import Answer, LookupClient, LookupSource, joined_parts
from deltajoin.lookup.requests import Asker, LookupCounts, Request

CAPACITY: Final = 1_000
"""Distinct keys that may be under way at a time, those included that wait for another try."""
TIMEOUT_S: Final = 180.0
"""Longest time of a request, all its tries included; FLIP-486's ``table.exec.async-lookup.timeout``."""

_OPEN_AT_ONCE: Final = 16
_CLOSE_TIMEOUT_S: Final = 10.0


class Pending:
    """A batch whose lookups are under way."""

    def __init__(self, batch: DistinctKeys, asked: Future[tuple[Answer, LookupCounts]]) -> None:
        self._batch = batch
        self._asked = asked

    def result(self) -> tuple[Answer, LookupCounts]:
        """Wait for all requests of the batch; what they brought, and what they cost.

        Positions are rows of the batch, ascending; of rows with equal keys each gets all rows of the key,
        or its failure. A key that has a NULL gets neither.

        Raises:
            Exception: a client raised something else than a ``LookupFailedError``, which is a bug in it.
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

    Args:
        source: what to look up in.
        capacity: distinct keys that may be under way at a time; more wait until some are done.
        timeout_s: longest time of a request, all its tries included.

    Raises:
        ConfigurationError, SchemaError: the source's keys do not fit its schema.

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

        Args:
            keys: the source's key columns in their order and types; any number of rows, also equal ones and
                such that have a NULL.
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


_lock = threading.Lock()
_open: Final[OrderedDict[Hashable, Lookups]] = OrderedDict()
_of_parents: Final[list[Lookups]] = []


def open_lookups(
    token: Hashable, source: LookupSource, *, capacity: int = CAPACITY, timeout_s: float = TIMEOUT_S
) -> Lookups:
    """The lookups that this process keeps open under a token, opened from ``source`` the first time.

    A worker process serves a query's micro-batches one after the other; so the next one finds the
    connections of the last. The 16 that were used last stay open, others are closed.

    Args:
        token: names query and side, for example ``(run id, "left")``; another source needs another one.
        source: what to look up in.
        capacity: as of `Lookups`.
        timeout_s: as of `Lookups`.
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
        ends.callback(stop_shared_loop)
        for lookups in still_open:
            ends.callback(lookups.close)


def _after_fork() -> None:
    """A forked child opens its own; the parent's connections are left alone, not even freed."""
    global _lock
    _lock = threading.Lock()
    _of_parents.extend(_open.values())
    _open.clear()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(close_lookups)
