"""What a source of lookups offers: a batch of keys in, the rows that match out; and checks of both (pure).

A table of Arrow with one row takes some twenty microseconds and two kilobytes to make, a tenth of what a
request by HTTP takes. So a client may leave the few rows of a reply as they came (`ReplyRows`), and the
engine makes the columns of all replies of a batch together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from deltajoin.errors import LookupFailedError
from upsert import types
from upsert.arrays import Positions
from upsert.errors import ConfigurationError, SchemaError


@dataclass(frozen=True)
class RequestLimits:
    """How much a source may be asked at a time, and how patiently.

    The limits hold in one worker process; a cluster asks with as many as it has tasks running.

    Attributes:
        keys_per_request: distinct keys that one call of ``lookup`` has at most.
        requests: calls of ``lookup`` that are under way at a time at most.
        timeout_s: seconds after which a call is cancelled, and counts as `LookupUnavailableError`.
        attempts: how often a request is made in all before its keys have failed.
        first_wait_s: longest wait before the second attempt; it doubles with each one. The wait itself is
            drawn between 0 and that ("full jitter"), so that many workers do not come back all at once.
        max_wait_s: longest wait before any attempt. A `LookupUnavailableError` that says when to come back
            is waited for that long at least.

    >>> RequestLimits(requests=0)
    Traceback (most recent call last):
    ...
    upsert.errors.ConfigurationError: lookup limits: requests must be a positive integer, got 0
    """

    keys_per_request: int = 100
    requests: int = 16
    timeout_s: float = 30.0
    attempts: int = 5
    first_wait_s: float = 0.1
    max_wait_s: float = 10.0

    def __post_init__(self) -> None:
        for name in ("keys_per_request", "requests", "attempts"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigurationError(f"lookup limits: {name} must be a positive integer, got {value!r}")
        if not self.timeout_s > 0:
            raise ConfigurationError(f"lookup limits: timeout_s must be above 0, got {self.timeout_s!r}")
        if not 0 <= self.first_wait_s <= self.max_wait_s:
            raise ConfigurationError(
                "lookup limits: first_wait_s must lie between 0 and max_wait_s, "
                f"got {self.first_wait_s!r} and {self.max_wait_s!r}"
            )


@dataclass(frozen=True, eq=False)
class Answer:
    """What is known about a batch of keys.

    Attributes:
        positions: for each row, the position (from 0) of the key that it answers, as int64. Any order; a key
            with several rows comes several times, a key without rows not at all.
        rows: the rows, with exactly the source's schema. The order of the rows of one key has no meaning. A
            client of many small replies may give `deltajoin.lookup.protocol.ReplyRows` instead.
        failures: by position, why a key could not be looked up. Such a key has no rows, which says nothing
            about whether there are any.

    >>> answer = Answer(np.array([1, 1]), pa.table({"id": [7, 7], "name": ["ann", "bob"]}))
    >>> answer.failures
    {}
    """

    positions: Positions
    rows: pa.Table
    failures: Mapping[int, LookupFailedError] = field(default_factory=dict)


class LookupClient(Protocol):
    """An open source: belongs to one process and one event loop, and is closed after the last request."""

    async def lookup(self, keys: pa.Table) -> Answer:
        """The current rows that equal the keys.

        Called many times at once on the same event loop, so it awaits and never blocks: blocking work goes
        to a thread (``asyncio.to_thread``). It may be cancelled at any ``await``, and serves the next call
        all the same.

        Args:
            keys: exactly the source's ``keys``, in that order and in the types of its ``schema``; at least
                one, all distinct, none with a NULL, -0.0 as 0.0: the engine sees to that.

        Returns:
            The rows and whose they are. Equality is that of Spark's joins: -0.0 equals 0.0, NaN equals NaN,
            texts are equal byte by byte (no collation, no padding).

        Raises:
            LookupUnavailableError: the source could not answer now: overload, timeout, connection lost. The
                engine asks again.
            LookupFailedError: the source refused, or its answer makes no sense. Asking again would not help.
                If only some of the keys are concerned, they can be in ``Answer.failures`` instead, of either
                class.
        """
        ...

    async def close(self) -> None:
        """Give back what it holds; closing twice is allowed, a lookup after it is not."""
        ...


@runtime_checkable
class LookupSource(Protocol):
    """Where rows are, and how to look them up: a frozen, picklable value without clients or locks.

    Its ``repr`` shows no secrets, because plans, messages and logs print it.

    Your own source is a frozen dataclass with these four members:

    >>> from deltajoin.lookup.protocol import Answer, LookupSource, RequestLimits
    >>> @dataclass(frozen=True)
    ... class Squares:
    ...     schema: pa.Schema = pa.schema({"n": pa.int64(), "square": pa.int64()})
    ...     keys: tuple[str, ...] = ("n",)
    ...     limits: RequestLimits = RequestLimits()
    ...
    ...     def open(self):
    ...         return self  # holds nothing, so it is its own client
    ...
    ...     async def lookup(self, keys):
    ...         n = keys["n"].to_numpy()
    ...         rows = pa.table({"n": n, "square": n * n}, schema=self.schema)
    ...         return Answer(np.arange(len(n)), rows)
    ...
    ...     async def close(self):
    ...         pass
    >>> isinstance(Squares(), LookupSource)
    True
    """

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows that it gives, in the types of `upsert.types`; they include ``keys``."""
        ...

    @property
    def keys(self) -> Sequence[str]:
        """The columns that it is asked by, all of them each time, of scalar types."""
        ...

    @property
    def limits(self) -> RequestLimits:
        """How much it may be asked at a time."""
        ...

    def open(self) -> LookupClient:
        """A new client; called on the thread of a running event loop, and must not block.

        What takes time (connecting, authenticating) is left to the first ``lookup``.

        Raises:
            ConfigurationError: an optional library is not installed, or a setting is wrong.
        """
        ...


@dataclass(frozen=True, eq=False, slots=True)
class ReplyRows:
    """A few rows whose values have been checked: Arrow takes each of them for its column.

    Attributes:
        schema: of the rows.
        rows: a tuple for each row, in the order of the schema.
    """

    schema: pa.Schema
    rows: list[tuple[Any, ...]]

    @property
    def num_rows(self) -> int:
        """How many there are, as of a table."""
        return len(self.rows)


AnswerRows = Any
"""A table, or `ReplyRows`."""


def as_table(rows: AnswerRows) -> pa.Table:
    """Rows as a table, which they may be already.

    >>> as_table(ReplyRows(pa.schema({"id": pa.int64()}), [(7,)])).to_pylist()
    [{'id': 7}]
    """
    if not isinstance(rows, ReplyRows):
        return rows
    # one array of structs: a column each would cost a small reply more than all the rest
    return pa.Table.from_struct_array(pa.array(rows.rows, pa.struct(list(rows.schema))))


def joined_parts(
    schema: pa.Schema, parts: Sequence[tuple[Positions, AnswerRows]]
) -> tuple[Positions, pa.Table]:
    """Pieces of an answer as one; rows stay beside their positions, pieces come in any order."""
    late = [part for part in parts if isinstance(part[1], ReplyRows)]
    pieces = [part for part in parts if not isinstance(part[1], ReplyRows)]
    if late:
        rows = list(chain.from_iterable(each.rows for _, each in late))
        pieces.append((np.concatenate([at for at, _ in late]), as_table(ReplyRows(schema, rows))))
    positions = np.concatenate([np.empty(0, np.int64), *(at for at, _ in pieces)])
    return positions, pa.concat_tables([schema.empty_table(), *(rows for _, rows in pieces)])


def name_of(source: LookupSource) -> str:
    """What messages call a source."""
    return type(source).__name__


def check_source(source: LookupSource) -> None:
    """Refuse a source whose schema and keys do not fit together."""
    check_columns(source.schema, source.keys, name_of(source))


def check_columns(schema: pa.Schema, keys: Sequence[str], of: str) -> None:
    """As `check_source`, for a source that is being made.

    Raises:
        ConfigurationError: there is no key, or one is named twice.
        SchemaError: a key is no column or not scalar, or a column has a type that Spark has not.

    >>> check_columns(pa.schema({"id": pa.int64()}), ["name"], "MemoryLookup")
    Traceback (most recent call last):
    ...
    upsert.errors.SchemaError: MemoryLookup: key 'name' must be one of its columns, which are id
    """
    if isinstance(keys, str) or not keys or len(set(keys)) < len(keys):
        raise ConfigurationError(f"{of}: keys must be one or more distinct column names, got {keys!r}")
    if len(set(schema.names)) < len(schema.names):
        raise SchemaError(f"{of}: columns must have distinct names, got {', '.join(schema.names)}")
    for column in schema:
        canonical = types.canonical(column.type, f"{of}: column {column.name!r}")
        if canonical != column.type:
            raise SchemaError(
                f"{of}: column {column.name!r} must have an Arrow type that Spark has, got {column.type}; "
                f"declare {canonical}"
            )
    for key in keys:
        if key not in schema.names:
            raise SchemaError(
                f"{of}: key {key!r} must be one of its columns, which are {', '.join(schema.names)}"
            )
        if not types.is_scalar(schema.field(key).type):
            raise SchemaError(
                f"{of}: key {key!r} must have a scalar type, got {types.sql_name(schema.field(key).type)}"
            )


def key_fields(source: LookupSource) -> pa.Schema:
    """Names and types of the keys that a source is asked with.

    >>> from deltajoin.lookup.memory import MemoryLookup
    >>> key_fields(MemoryLookup(pa.table({"name": ["ann"], "id": [1]}), ["id"])).names
    ['id']
    """
    return pa.schema([pa.field(name, source.schema.field(name).type) for name in source.keys])


def check_answer(answer: Answer, source: LookupSource, keys: int) -> None:
    """Refuse an answer that does not fit the source's schema or the number of keys."""
    of, rows, positions = name_of(source), answer.rows, answer.positions
    if not rows.schema.equals(source.schema):
        raise LookupFailedError(
            f"{of}: an answer must have the columns {_shown(source.schema)}, got {_shown(rows.schema)}"
        )
    if len(positions) != rows.num_rows or positions.dtype != np.int64:
        raise LookupFailedError(
            f"{of}: an answer must have one int64 position for each of its {rows.num_rows} rows, "
            f"got {len(positions)} of {positions.dtype}"
        )
    if len(positions) and positions.view(np.uint64).max() >= keys:  # as such a negative one is large too
        raise LookupFailedError(
            f"{of}: positions must lie between 0 and {keys - 1}, "
            f"got {int(positions.min())} to {int(positions.max())}"
        )
    if answer.failures and not all(0 <= at < keys for at in answer.failures):
        raise LookupFailedError(
            f"{of}: failures must be about positions below {keys}, got {[*answer.failures]}"
        )
    if answer.failures and (both := sorted({*positions.tolist()} & {*answer.failures})):
        raise LookupFailedError(
            f"{of}: a key must have rows or have failed, the one at position {both[0]} did both"
        )


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}{'' if field.nullable else ' NOT NULL'}" for field in schema)
