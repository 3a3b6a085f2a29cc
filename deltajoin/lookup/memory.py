"""Lookups in a table in memory: for tests and examples, also of what slow and failing sources do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from deltajoin.errors import LookupFailedError, LookupUnavailableError
from deltajoin.lookup.keys import key_values
from deltajoin.lookup.protocol import Answer, RequestLimits, check_columns


@dataclass(frozen=True)
class MemoryLookup:
    """Rows that travel with the source into every task.

    Args:
        rows: the rows that can be found.
        keys: the columns that they are looked up by.
        latency_s: seconds that every request takes.
        unavailable_requests: so many requests of each client fail before one succeeds.
        unavailable: keys, as tuples, that each time fail with `LookupUnavailableError`.
        refused: keys, as tuples, that fail with `LookupFailedError`.
        limits: how much it may be asked at a time.

    Raises:
        ConfigurationError, SchemaError: the keys do not fit the rows.

    >>> rows = pa.table({"id": [1, 1, 2], "name": ["ann", "bob", "cy"]})
    >>> answer = asyncio.run(MemoryLookup(rows, ["id"]).open().lookup(pa.table({"id": [2, 1]})))
    >>> answer.positions.tolist(), answer.rows["name"].to_pylist()
    ([0, 1, 1], ['cy', 'ann', 'bob'])
    """

    rows: pa.Table = field(repr=False)
    keys: Sequence[str]
    latency_s: float = 0.0
    unavailable_requests: int = 0
    unavailable: Sequence[tuple[Any, ...]] = ()
    refused: Sequence[tuple[Any, ...]] = ()
    limits: RequestLimits = field(default_factory=RequestLimits)

    def __post_init__(self) -> None:
        check_columns(self.rows.schema, self.keys, "MemoryLookup")
        object.__setattr__(self, "keys", tuple(self.keys))

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        return self.rows.schema

    def open(self) -> MemoryClient:
        """A client with its own count of failing requests."""
        return MemoryClient(self)


class MemoryClient:
    """An index over the rows, by key."""

    def __init__(self, source: MemoryLookup) -> None:
        self._source = source
        self._rows_of: dict[Any, list[int]] = {}
        for at, key in enumerate(key_values(source.rows.select(list(source.keys)))):
            self._rows_of.setdefault(key, []).append(at)
        self._requests = 0
        self._unavailable = self._as_keys(source.unavailable)
        self._refused = self._as_keys(source.refused)

    def _as_keys(self, given: Sequence[tuple[Any, ...]]) -> set[Any]:
        schema, names = self._source.schema, self._source.keys
        columns = [
            pa.array([key[i] for key in given], schema.field(name).type) for i, name in enumerate(names)
        ]
        return set(key_values(pa.table(columns, names=list(names))))

    async def lookup(self, keys: pa.Table) -> Answer:
        """The rows of the keys, in the table's order for each key; the first requests may be set to fail."""
        self._requests += 1
        fails = self._requests <= self._source.unavailable_requests
        if self._source.latency_s:
            await asyncio.sleep(self._source.latency_s)
        if fails:
            raise LookupUnavailableError("MemoryLookup: the source must answer, it was set to fail at first")
        values = key_values(keys)
        failures = {at: failure for at, key in enumerate(values) if (failure := self._failure(key))}
        found = [
            (at, row)
            for at, key in enumerate(values)
            if key is not None and at not in failures
            for row in self._rows_of.get(key, ())
        ]
        positions, taken = np.array(found, dtype=np.int64).reshape(-1, 2).T
        return Answer(positions, self._source.rows.take(pa.array(taken)), failures)

    def _failure(self, key: Any) -> LookupFailedError | None:
        if key in self._refused:
            return LookupFailedError(
                f"MemoryLookup: the key {key!r} must be answered, it was set to refuse it"
            )
        if key in self._unavailable:
            return LookupUnavailableError(
                f"MemoryLookup: the key {key!r} must be answered, it was set to fail"
            )
        return None

    async def close(self) -> None:
        """Nothing to give back."""
