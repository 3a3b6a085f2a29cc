"""What streaming queries leave in a warehouse of their progress: one small file for each query.

``<warehouse>/.queries/<query id>.json`` says what the query is, how it is, and what its last micro-batches
did. The file is for people who look on; no query reads it. ``<query id>.stop`` beside it asks the driver to
stop the query. See docs/decisions/0050 and 0061.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple, Self

from upsert.codec import MAY_BE_MISSING, Jsonable, written_with
from upsert.errors import ConfigurationError, StorageError, own_error, told_by_java
from upsert.managed.task_counts import figures_of
from upsert.options import masked_text
from upsert.store.storage import storage_of
from upsert.store.storage.base import RefusedError, UnansweredError
from upsert.store.storage.local import is_temporary
from upsert.store.version import Version

FOLDER: Final = ".queries"
"""Folder in the warehouse; no table can have such a name."""

KEPT_BATCHES: Final = 60
"""Micro-batches of a query that its record tells of: a file stays below 80 kB, 140 kB with lookups."""

KEPT_RECORDS: Final = 200
"""Queries of a warehouse that are remembered; the ones not heard of for longest go."""

SILENT_MS: Final = 60_000
"""A running query whose driver was not heard of for so long is shown as silent: the driver may be gone."""

DECISIONS_MARK: Final = "deltajoin.decisions"
"""Key of what the planner attaches to a column of a query: JSON of texts, and whether each is a warning."""

LOOKUPS: Final = "deltajoin.lookups"
"""Name of what a query with lookups observes, in ``observedMetrics`` of its progress; see latest mode."""

LEVELS: Final = frozenset(
    f"{side}_{name}"
    for side in ("left", "right")
    for name in ("cached_keys", "cached_bytes", "waiting", "most_in_flight", "slowest_us")
)
"""Of these, what several micro-batches do not add up."""

_STOP: Final = ".stop"
_STALE_S: Final = 3_600
"""No process is still at work on a temporary file of this age."""
_FORMAT: Final = 1
_LARGEST_FILE: Final = 1 << 20
_LONGEST_TEXT: Final = 2_000
_LONGEST_NAME: Final = 200
_LONGEST_DECISIONS: Final = 10_000
_MOST_INPUTS: Final = 32
_NAME: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.json")
_IN_PYTHON: Final = re.compile(r"org\.apache\.spark\.[\w.]+\.python\.\w+(?:@[0-9a-f]+)?")


@dataclass(frozen=True)
class Input(Jsonable):
    """One source of a micro-batch.

    Attributes:
        name: as Spark describes it.
        rows: how many it gave.
        versions: where the query is in each table of this source after the micro-batch, by the table's uuid.
            Empty for a source that reads no managed table.
        topics: how many records of each topic were there and left, when the micro-batch was planned; None for
            a source that reads no topic.
    """

    name: str
    rows: int
    versions: Mapping[str, Version]
    topics: Mapping[str, int] | None = field(default=None, metadata=written_with("topics"))


@dataclass(frozen=True)
class MicroBatch(Jsonable):
    """What one micro-batch did.

    Attributes:
        id: its number in the query's checkpoint.
        time_ms: when it began, in milliseconds since 1970.
        rows_in: rows that it read.
        rows_out: rows that it wrote; None where the sink does not say.
        duration_ms: what each of its phases took, by Spark's names, ``triggerExecution`` being the whole.
        inputs: its sources.
        lookups: what it observed as ``deltajoin.lookups``, without zeros, and of exact joins how many keys
            were looked up in each table and how many rows these have, as ``t0_keys`` and ``t0_rows``, of
            ``lookup_join`` as ``lookup users_keys`` and ``lookup users_rows``; None if it looked nothing up
            so.
        state_rows: rows in the state of Spark's operators after it.
        state_bytes: memory that this state takes.
        driver_peak_bytes: the most memory that the driver's Python process had had by then; 0 if not known.
        worker_peak_bytes: the same of the Python workers whose tasks staged rows of the query.
    """

    id: int
    time_ms: int
    rows_in: int
    rows_out: int | None
    duration_ms: Mapping[str, int]
    inputs: tuple[Input, ...]
    lookups: Mapping[str, int] | None = field(default=None, metadata=written_with("lookups"))
    state_rows: int = field(default=0, metadata=written_with("state_rows"))
    state_bytes: int = field(default=0, metadata=written_with("state_bytes"))
    driver_peak_bytes: int = field(default=0, metadata=written_with("driver_peak_bytes"))
    worker_peak_bytes: int = field(default=0, metadata=written_with("worker_peak_bytes"))

    @property
    def took_ms(self) -> int:
        """Milliseconds of the whole."""
        return self.duration_ms.get("triggerExecution", sum(self.duration_ms.values()))

    @classmethod
    def of_progress(cls, progress: Mapping[str, Any]) -> Self:
        """The micro-batch of Spark's progress event, in its JSON form.

        >>> said = {"batchId": 3, "timestamp": "1970-01-01T00:00:01.500Z", "sources": []}
        >>> found = MicroBatch.of_progress(said)
        >>> found.id, found.time_ms, found.rows_in, found.rows_out
        (3, 1500, 0, None)
        """
        began = datetime.fromisoformat(progress["timestamp"])
        began = began if began.tzinfo else began.replace(tzinfo=UTC)
        sources = progress.get("sources") or []
        inputs = tuple(
            Input(
                _name(source),
                max(0, source.get("numInputRows") or 0),
                versions_in(source.get("endOffset")),
                left_in(source.get("endOffset"), source.get("latestOffset")),
            )
            for source in sources[:_MOST_INPUTS]
        )
        out = (progress.get("sink") or {}).get("numOutputRows", -1)
        states = progress.get("stateOperators") or []
        return cls(
            int(progress["batchId"]),
            int(began.timestamp() * 1000),
            sum(max(0, source.get("numInputRows") or 0) for source in sources),
            out if isinstance(out, int) and out >= 0 else None,
            {str(phase): max(0, int(took)) for phase, took in (progress.get("durationMs") or {}).items()},
            inputs,
            _lookups(progress.get("observedMetrics") or {}, figures_of(progress)),
            sum(max(0, state.get("numRowsTotal") or 0) for state in states),
            sum(max(0, state.get("memoryUsedBytes") or 0) for state in states),
        )


def is_micro_batch(progress: Mapping[str, Any]) -> bool:
    """Whether a progress of Spark's is that of a micro-batch.

    A query that waits tells one every ten seconds too, of its look for rows: without rows, and with the
    number of the micro-batch that comes next.

    >>> is_micro_batch({"batchId": 3, "durationMs": {"latestOffset": 1, "triggerExecution": 2}})
    False
    """
    return "addBatch" in progress["durationMs"]


def _lookups(observed: Mapping[str, Any], counted: Mapping[str, int]) -> dict[str, int] | None:
    """What was observed as ``deltajoin.lookups``, and counted by tasks; None where nothing was."""
    found = observed.get(LOOKUPS)
    if not isinstance(found, dict) or all(value is None for value in found.values()):
        return dict(counted) or None
    measured = {str(name): value for name, value in found.items() if isinstance(value, int) and value > 0}
    return {**measured, **counted}


def _name(described: Mapping[str, Any]) -> str:
    """What Spark calls a source or a sink; of one in Python that is only the name of a class in Java."""
    text = masked_text(str(described.get("description", "")))[:_LONGEST_NAME]
    return "Python data source" if _IN_PYTHON.fullmatch(text) else text


def versions_in(offset: object) -> dict[str, Version]:
    """Where an offset of a stream is in each managed table, by uuid; {} if it is one of other sources.

    There are three forms: of one table, of a join's tables, and of the tables of a view.

    >>> versions_in({"table": "a1", "version": {"base": 3, "cursor": None, "target": 3}})
    {'a1': Version(base=3, target=3, cursor=None)}
    >>> versions_in('{"orders": {"0": 17}}')
    {}
    """
    match _parsed(offset):
        case {"table": str(uuid), "version": dict(version)}:
            pairs = [(uuid, version)]
        case {"tables": list(uuids), "versions": list(versions)} if len(uuids) == len(versions):
            pairs = list(zip(uuids, versions, strict=True))
        case {"versions": dict(by_uuid)}:
            pairs = list(by_uuid.items())
        case _:
            return {}
    try:
        return {uuid: Version.from_json(value) for uuid, value in pairs if isinstance(uuid, str)}
    except (ConfigurationError, TypeError):
        return {}  # an offset of another source that looks like one of these


def left_in(end: object, latest: object) -> dict[str, int] | None:
    """How many records of each topic lie between two offsets of a stream; None if they are of other sources.

    As in Kafka's own lag, what a topic has compacted away and the ends of transactions count too.

    >>> at = '{"topics": {"orders": {"partitions": {"0": 7, "1": 4}}}}'
    >>> left_in(at, '{"topics": {"orders": {"partitions": {"0": 9, "1": 4}}}}')
    {'orders': 2}
    """
    match _parsed(end), _parsed(latest):
        case {"topics": dict(read)}, {"topics": dict(there)}:
            pass
        case _:
            return None
    try:
        ends = {name: read.get(name, {"partitions": {}})["partitions"] for name in there}
        return {
            str(name): sum(
                max(0, at - ends[name].get(number, at)) for number, at in one["partitions"].items()
            )
            for name, one in there.items()
        }
    except (KeyError, TypeError, AttributeError):
        return None  # an offset of another source that looks like one of these


def _parsed(offset: object) -> object:
    """An offset of a stream as JSON values; None if it is a text of another kind."""
    if not isinstance(offset, str):
        return offset
    try:
        return json.loads(offset)
    except (ValueError, RecursionError):
        return None


@dataclass(frozen=True)
class Totals(Jsonable):
    """Counts of all micro-batches that a query is known to have done; one that was done again counts again.

    >>> batch = MicroBatch(1, 0, 5, None, {"addBatch": 9}, (), {"left_hits": 2, "left_waiting": 1})
    >>> Totals().plus(batch).plus(batch)
    Totals(batches=2, rows_in=10, duration_ms=18, lookups={'left_hits': 4})
    """

    batches: int = 0
    rows_in: int = 0
    duration_ms: int = 0
    lookups: Mapping[str, int] | None = field(default=None, metadata=written_with("lookups"))

    def plus(self, batch: MicroBatch) -> Self:
        """With one micro-batch more."""
        counts = batch.lookups and {
            name: count for name, count in batch.lookups.items() if name not in LEVELS
        }
        return self.and_those_of(Totals(1, batch.rows_in, batch.took_ms, counts))

    def and_those_of(self, other: Totals) -> Self:
        """Both together."""
        lookups = None
        if self.lookups is not None or other.lookups is not None:
            one, two = self.lookups or {}, other.lookups or {}
            lookups = {name: one.get(name, 0) + two.get(name, 0) for name in {**one, **two}}
        return replace(
            self,
            batches=self.batches + other.batches,
            rows_in=self.rows_in + other.rows_in,
            duration_ms=self.duration_ms + other.duration_ms,
            lookups=lookups,
        )


@dataclass(frozen=True)
class Decision(Jsonable):
    """What the planner decided about a part of a query, as EXPLAIN draws it.

    Attributes:
        text: how a join, an aggregate or a topic is computed.
        is_warning: whether it should be seen: a join whose state grows.
    """

    text: str
    is_warning: bool

    @classmethod
    def all_in(cls, mark: str) -> tuple[Self, ...]:
        """Those of a mark, secrets masked; all together have at most 10 000 characters.

        >>> Decision.all_in('[["orders ⋈ items", false]]')
        (Decision(text='orders ⋈ items', is_warning=False),)
        """
        left, found = _LONGEST_DECISIONS, []
        for text, is_warning in json.loads(mark):
            if left <= 0:
                break
            found.append(cls(masked_text(text)[:left], is_warning))
            left -= len(text)
        return tuple(found)


@dataclass(frozen=True)
class QueryRecord(Jsonable):
    """A streaming query: what it is, how it is, and what it did last.

    Attributes:
        id: by which its checkpoint and its commits know it; the same after a restart.
        run: of the present or last start.
        name: that its user gave it; None for none.
        driver: host and process that run it.
        state: ``running`` also of a driver that was killed: see ``heard_ms``.
        started_ms: when this run began, in milliseconds since 1970.
        heard_ms: when the driver was last known to live.
        checkpoint: its folder; None if not known.
        sink: as Spark describes it; "" before the first micro-batch.
        batches: the last ones, also of runs before, oldest first.
        error: why it has last failed, with what to do about it; None if it never did, as far as is known.
        error_ms: when that was.
        totals: what all its micro-batches come to, those of runs before among them.
        decisions: what the planner decided about it; () if that is not known.
    """

    id: str
    run: str
    name: str | None
    driver: str
    state: Literal["running", "ended", "failed"]
    started_ms: int
    heard_ms: int
    checkpoint: str | None = None
    sink: str = ""
    batches: tuple[MicroBatch, ...] = ()
    error: str | None = None
    error_ms: int | None = None
    totals: Totals = field(default=Totals(), metadata=MAY_BE_MISSING)
    decisions: tuple[Decision, ...] = field(default=(), metadata=written_with("decisions"))

    def shown_state(self, now_ms: int) -> str:
        """Its state; ``silent`` if it should run, and its driver was not heard of for a minute."""
        is_silent = self.state == "running" and now_ms - self.heard_ms > SILENT_MS
        return "silent" if is_silent else self.state

    def heard(self, now_ms: int) -> Self:
        """Its driver lives."""
        return replace(self, heard_ms=now_ms)

    def progressed(self, progress: Mapping[str, Any], now_ms: int, peaks: tuple[int, int] = (0, 0)) -> Self:
        """A micro-batch has ended; one that is done again replaces the record of the first time.

        ``peaks`` are those of the driver and of its workers in bytes.
        """
        driver, worker = peaks
        batch = replace(MicroBatch.of_progress(progress), driver_peak_bytes=driver, worker_peak_bytes=worker)
        before = tuple(one for one in self.batches if one.id < batch.id)
        sink = _name(progress.get("sink") or {})
        return replace(
            self,
            batches=(*before, batch)[-KEPT_BATCHES:],
            sink=sink,
            heard_ms=now_ms,
            totals=self.totals.plus(batch),
        )

    def terminated(self, exception: str | None, now_ms: int) -> Self:
        """It was stopped or came to its end, or failed with what Spark says of it."""
        if exception is None:
            return replace(self, state="ended", heard_ms=now_ms)
        return replace(self, state="failed", heard_ms=now_ms, error=reason(exception), error_ms=now_ms)

    def after(self, earlier: QueryRecord) -> Self:
        """With what the record of earlier runs tells: their micro-batches, and the last failure."""
        first = min((batch.id for batch in self.batches), default=None)
        before = tuple(batch for batch in earlier.batches if first is None or batch.id < first)
        error = (self.error, self.error_ms) if self.error is not None else (earlier.error, earlier.error_ms)
        return replace(
            self,
            checkpoint=self.checkpoint or earlier.checkpoint,
            batches=(*before, *self.batches)[-KEPT_BATCHES:],
            error=error[0],
            error_ms=error[1],
            totals=self.totals.and_those_of(earlier.totals),
            decisions=self.decisions or earlier.decisions,
        )

    def content(self) -> bytes:
        """The content of its file."""
        return json.dumps({"format": _FORMAT, **self.to_json()}, ensure_ascii=False).encode()


def reason(exception: str) -> str:
    r"""The sentence that tells why a query failed: this project's, what Python raised, or Spark's first line.

    >>> reason("STREAM_FAILED …\n  File …\nupsert.errors.SchemaError: column 'a' is gone; add it")
    "column 'a' is gone; add it"
    >>> reason("java.io.IOException: cannot connect with password=pa55\n\tat …")
    'java.io.IOException: cannot connect with password=***'
    """
    own = own_error(RuntimeError(exception))
    text = told_by_java(exception) if own is None else str(own)
    return masked_text(text.strip())[:_LONGEST_TEXT]


def this_driver() -> str:
    """Host and process that run this code."""
    return f"{socket.gethostname()}:{os.getpid()}"


def file_of(warehouse: str, id: str) -> str:
    """The file of the query with this id."""
    name = f"{id}.json"
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"a query's id must be a UUID, got {id!r}; use the id that Spark gives it")
    return os.path.join(warehouse, FOLDER, name)


def parsed(content: bytes, where: str) -> QueryRecord:
    """The record whose file has this content.

    Raises:
        ValueError: it is none.
    """
    try:
        value = json.loads(content)
        if not isinstance(value, dict) or value.get("format") != _FORMAT:
            raise ValueError(f"a record of format {_FORMAT} was expected")
        record = QueryRecord.from_json(value)
        if f"{record.id}.json" != os.path.basename(where):
            raise ValueError(f"it is the record of {record.id!r}")
        return record
    except (ValueError, KeyError, TypeError, RecursionError, ConfigurationError) as cause:
        raise ValueError(
            f"{where}: the record of a query cannot be read, {cause!r}; delete the file, the query writes "
            "it again"
        ) from cause


class Records(NamedTuple):
    """The records of a warehouse.

    Attributes:
        queries: of each query, the last heard of first.
        unreadable: a sentence for each file that is no record.
    """

    queries: tuple[QueryRecord, ...]
    unreadable: tuple[str, ...] = ()


def read_all(warehouse: str) -> Records:
    """What the queries of all drivers have left in a warehouse; nothing if there is none.

    Raises:
        StorageError: the storage did not answer, or refused.

    >>> import tempfile
    >>> read_all(tempfile.mkdtemp())
    Records(queries=(), unreadable=())
    """
    found, unreadable = [], []
    for name in names(warehouse):
        path = os.path.join(warehouse, FOLDER, name)
        try:
            found.append(_read(path))
        except FileNotFoundError:
            continue  # it was removed since
        except ValueError as error:
            unreadable.append(str(error))
    found.sort(key=lambda record: (-record.heard_ms, record.id))
    return Records(tuple(found), tuple(unreadable))


def _read(path: str) -> QueryRecord:
    stat = storage_of(path).stat(path)
    if stat is not None and stat.size > _LARGEST_FILE:
        raise ValueError(f"{path}: the record of a query must be smaller than 1 MiB, got {stat.size} bytes")
    return parsed(_content(path), path)


def _content(path: str) -> bytes:
    """A file of the folder; of one that the disk of this machine does not give, a `ValueError` says why."""
    try:
        return storage_of(path).read(path)
    except (UnansweredError, RefusedError):
        raise  # so would it be of all others
    except StorageError as cause:
        raise ValueError(str(cause)) from cause


def read(warehouse: str, id: str) -> QueryRecord | None:
    """The record of one query; None if there is none, or none that can be read."""
    try:
        return _read(file_of(warehouse, id))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def write(warehouse: str, record: QueryRecord) -> None:
    """Put a record in the place of the query's last one: readers see the old or the new."""
    path = file_of(warehouse, record.id)
    storage_of(path).replace(path, record.content())


def ask_to_stop(warehouse: str, record: QueryRecord) -> None:
    """Ask the driver of a query to stop this run of it; it looks every ten seconds."""
    path = file_of(warehouse, record.id).removesuffix(".json") + _STOP
    storage_of(path).replace(path, json.dumps({"format": _FORMAT, "run": record.run}).encode())


def asked_to_stop(warehouse: str) -> dict[str, str]:
    """The run that is to be stopped of each query, by its id."""
    found = {}
    for name in _entries(warehouse):
        id = name.removesuffix(_STOP)
        if name.endswith(_STOP) and _NAME.fullmatch(f"{id}.json"):
            path = os.path.join(warehouse, FOLDER, name)
            with suppress(FileNotFoundError, ValueError, AttributeError, RecursionError):
                found[id] = str(json.loads(_content(path)).get("run"))
    return found


def stop_is_answered(warehouse: str, id: str) -> None:
    """Take away the request to stop a query."""
    path = file_of(warehouse, id).removesuffix(".json") + _STOP
    storage_of(path).delete(path)


def names(warehouse: str) -> list[str]:
    """Names of the files of records."""
    return sorted(filter(_NAME.fullmatch, _entries(warehouse)))


def _entries(warehouse: str) -> list[str]:
    folder = os.path.join(warehouse, FOLDER)
    try:
        return storage_of(folder).names(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def forget_oldest(warehouse: str, *, keep: int = KEPT_RECORDS) -> None:
    """Delete the records that were not written for longest, until so many are left.

    What drivers have left that were killed while they wrote one is deleted too.
    """
    _delete_unfinished(warehouse, time.time())
    found = names(warehouse)
    if len(found) > keep:
        for path in _longest_unwritten(warehouse, found)[: len(found) - keep]:
            storage_of(path).delete(path)


def _delete_unfinished(warehouse: str, now: float) -> None:
    for name in _entries(warehouse):
        if is_temporary(name):
            path = os.path.join(warehouse, FOLDER, name)
            stat = storage_of(path).stat(path)
            if stat is not None and stat.modified_ns < (now - _STALE_S) * 1e9:
                storage_of(path).delete(path)


def _longest_unwritten(warehouse: str, found: list[str]) -> list[str]:
    def ages() -> Iterator[tuple[int, str]]:
        for name in found:
            path = os.path.join(warehouse, FOLDER, name)
            stat = storage_of(path).stat(path)
            yield (0 if stat is None else stat.modified_ns), path

    return [path for _, path in sorted(ages())]
