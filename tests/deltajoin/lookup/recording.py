"""A lookup source whose client does what a test says, and remembers what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from deltajoin.lookup import Answer, RequestLimits

THRICE_AT_ONCE = RequestLimits(attempts=3, first_wait_s=0.0, max_wait_s=0.0)
SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string()})


def echo(keys: pa.Table) -> Answer:
    """One row for each key."""
    names = [f"n{i}" for i in keys["id"].to_pylist()]
    rows = pa.table([keys["id"].cast(pa.int64()), pa.array(names)], schema=SCHEMA)
    return Answer(np.arange(keys.num_rows), rows)


@dataclass(eq=False)
class Recording:
    """Source and client in one.

    Attributes:
        does: what answers a request.
        asked: the keys of each request.
        in_flight: requests that are under way; most_in_flight, the most there were.
        closed: how often it was closed.
    """

    does: Callable[[pa.Table], Awaitable[Answer] | Answer] = echo
    limits: RequestLimits = THRICE_AT_ONCE
    schema: pa.Schema = SCHEMA
    keys: tuple[str, ...] = ("id",)
    asked: list[list[int]] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    closed: int = 0

    def open(self) -> Recording:
        return self

    async def lookup(self, keys: pa.Table) -> Answer:
        self.asked.append(keys["id"].to_pylist())
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(0)
            answer = self.does(keys)
            return answer if isinstance(answer, Answer) else await answer
        finally:
            self.in_flight -= 1

    async def close(self) -> None:
        self.closed += 1
