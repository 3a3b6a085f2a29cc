"""The base of streaming readers of tables: how they step through versions, and what they hold in between.

A step is found by holding where it starts, choosing where it ends, and holding both: what was chosen may have
expired just before it was held, and then another end is chosen.

Spark tells a source that a micro-batch is done when it has planned the next one, and never of the last. So a
restart reads from the version on that Spark confirmed last, or from where the query began, and that is what
is held. Where that version needs nothing, as before a first load, the end of the batch that is under way is
held: a replay reads it. Both are held where a tag keeps the version, which keeps nothing that follows.

Spark does not tell a source which checkpoint it belongs to, so a reader has a random id as a consumer, which
travels in the offsets that Spark logs: a restart finds it there. A hold is written when the version changes,
once a second at most, for an earlier version holds all that follows; and when half of the lease is over.

A stream that has nothing to do asks an object store once a second, not as often as Spark asks the stream,
which is as soon as it has an answer: requests are counted. So a second look from one offset waits, a second
for each table, and asks then whether the next snapshot is there: what was written before it is always seen.
That does not show a table that was dropped, nor one of which all that the stream knows has expired, which a
hold prevents; so twice a minute it looks as if it were the first time. A local disk is asked at once.

`StepSource` gives one step as a batch, read by the stream's own reader.
"""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from upsert import options
from upsert.errors import ConfigurationError, SnapshotExpiredError
from upsert.managed.task_memory import DEFAULT_TASK_MEMORY, readable_bytes
from upsert.options import Option
from upsert.spark.reads import ReadParts
from upsert.spark.task import end_if_spark_has_left
from upsert.store.metadata.identity import check_is_same, identified
from upsert.store.metadata.looks import Looks, looking_once
from upsert.store.read.steps import StepSize, step_size
from upsert.store.retention.consumers import needed
from upsert.store.storage import storage_of
from upsert.store.storage.base import DENIED
from upsert.store.table import Table
from upsert.store.version import Version

PAUSE_S: Final = 1.0
"""Between two looks at an idle table, so that there is one request a second."""

FULL_LOOK_S: Final = 30.0


class IdleLooks:
    """When a reader has last found nothing new, and from where."""

    def __init__(self, lease_ms: int) -> None:
        """Of a reader whose holds are renewed by full looks before half of this time is over; 0: of none."""
        self._lease_ms = lease_ms
        self._full_look_s = min(FULL_LOOK_S, lease_ms / 4000) if lease_ms else FULL_LOOK_S
        self._start: Mapping[str, Any] | None = None
        self._tables: Mapping[Table, int] = {}
        self._at = self._opened_at = 0.0

    def __reduce__(self) -> tuple[type[IdleLooks], tuple[int]]:
        """Tasks do not look."""
        return IdleLooks, (self._lease_ms,)

    def find_none(self, start: Mapping[str, Any]) -> bool:
        """Whether another look from an offset, after a pause, shows that there is still nothing new."""
        if self._start != start:
            return False
        time.sleep(max(0.0, self._at + PAUSE_S * len(self._tables) - time.monotonic()))
        self._at = time.monotonic()
        if self._at >= self._opened_at + self._full_look_s:
            return False
        return not any(table.published.has_successor(id) for table, id in self._tables.items())

    def note(self, seen: Mapping[Table, int], start: Mapping[str, Any]) -> None:
        """Remember that an offset has nothing new up to the snapshots that were seen of the tables."""
        self._tables = {table: id for table, id in seen.items() if not storage_of(table.path).is_local}
        self._start = start if self._tables else None
        self._at = self._opened_at = time.monotonic()


CONSUMER: Final = "consumer"
"""Name in an offset of the consumer's id; it is missing where the option ``consumer-id`` says it."""

PACE_S: Final = 1.0
"""A hold waits for the disk, twice a table, and a micro-batch waits for it."""

REMOTE_PACE_S: Final = 10.0
"""In an object store it is nine requests, one after the other; what it keeps longer expires so much later."""


class Holding:
    """The holds of one reader, of one or more tables; can be pickled."""

    def __init__(self, named: str | None, lease_ms: int, now: Callable[[], float] = time.time) -> None:
        """Of a reader that continues within ``lease_ms``; 0 to hold nothing."""
        self._named = named
        self._lease_s = lease_ms / 1000
        self._now = now
        self._confirmed: tuple[Version, ...] | None = None
        self._ahead: tuple[Version, ...] | None = None
        self._written: dict[str, _Hold] = {}

    @property
    def is_on(self) -> bool:
        """Whether anything is held at all."""
        return self._lease_s > 0

    def consumer_of(self, offset: Mapping[str, Any]) -> str | None:
        """The reader's id as a consumer; None if it has none yet, or holds nothing."""
        if not self.is_on or self._named is not None:
            return self._named if self.is_on else None
        found = offset.get(CONSUMER)
        return found if isinstance(found, str) else None

    def new_id(self) -> str | None:
        """An id for a reader that has none yet; None if it holds nothing."""
        return uuid4().hex if self.is_on else None

    def in_offset(self, consumer: str | None) -> dict[str, str]:
        """What to put into an offset, so that a restart continues as this consumer."""
        return {} if consumer is None or self._named is not None else {CONSUMER: consumer}

    def is_needed(self, versions: Sequence[Version]) -> bool:
        """Whether a reader at these versions has anything to hold."""
        return self.is_on and any(map(needed, versions))

    def tell(self, consumer: str | None, tables: Sequence[Table], versions: Sequence[Version]) -> None:
        """A micro-batch that ends at these versions is done, so nothing before them is read again."""
        self._confirmed = tuple(versions)
        self.keep(consumer, tables, versions, self._ahead)

    def keep(
        self,
        consumer: str | None,
        tables: Sequence[Table],
        start: Sequence[Version],
        end: Sequence[Version] | None = None,
    ) -> None:
        """Hold what a restart reads again, while a micro-batch from ``start`` to ``end`` is under way."""
        if consumer is None:
            return
        self._confirmed = self._confirmed or tuple(start)
        self._ahead = self._ahead if end is None else tuple(end)
        wanted: dict[str, tuple[Table, Version]] = {}
        for table, confirmed, begun, ahead in zip(tables, self._confirmed, start, end or start, strict=True):
            version = confirmed if needed(confirmed) else begun
            if not self._is_fence(consumer, table, version):
                version = _with_target(version, ahead)
            if needed(version):
                _, other = wanted.get(table.path, (table, version))
                # a table that is read twice is held from the earlier of the two places on
                wanted[table.path] = table, min(version, other, key=lambda each: needed(each)[0])
        for table, version in wanted.values():
            self._hold(consumer, table, version)

    def _hold(self, consumer: str, table: Table, version: Version) -> None:
        now = self._now()
        before = self._written.get(table.path)
        pace_s = PACE_S if storage_of(table.path).is_local else REMOTE_PACE_S
        if before is not None and before.serves(consumer, version, now, self._lease_s, pace_s):
            return
        try:
            table.hold(consumer, version, self._lease_s)
        except SnapshotExpiredError as cause:
            raise SnapshotExpiredError(
                f"consumer {consumer!r} of table {table.name!r} must come back within its lease of "
                f"{self._lease_s:g} s, it has lapsed or was released: {cause}; load again with a new "
                "checkpoint, and give a longer 'consumer.lease', or begin at a tag"
            ) from cause
        except DENIED as cause:
            raise ConfigurationError(
                f"table {table.name!r}: a stream must be able to write into the table's folder to hold what "
                f"a restart reads again, got {cause}; let it, or set the option 'consumer.lease' = '0 s' to "
                "hold nothing"
            ) from cause
        is_fence = table.published.seen.oldest <= needed(version)[0]
        self._written[table.path] = _Hold(consumer, version, now, is_fence)

    def _is_fence(self, consumer: str, table: Table, version: Version) -> bool:
        """Whether to hold a version keeps all that follows; not so if only a tag has kept it."""
        if not needed(version):
            return False
        before = self._written.get(table.path)
        if before is not None and before.fences(consumer, version, self._now(), self._lease_s):
            return True
        return table.published.seen.oldest <= needed(version)[0]


def _with_target(version: Version, ahead: Version) -> Version:
    """What a restart at a version reads again, and where the micro-batch under way ends."""
    if not needed(version):
        return ahead
    if version.is_complete and ahead.target > version.target:
        return Version(version.base, ahead.target, (0, 0))
    return version


class _Hold(NamedTuple):
    """What was written last of a table, and when; ``is_fence``: nothing that follows can expire either."""

    consumer: str
    version: Version
    written: float
    is_fence: bool

    def fences(self, consumer: str, version: Version, now: float, lease_s: float) -> bool:
        """Whether it keeps what a reader at this version needs, and all that follows."""
        is_held = self.consumer == consumer and now < self.written + lease_s / 2
        return is_held and self.is_fence and needed(self.version)[0] <= needed(version)[0]

    def serves(self, consumer: str, version: Version, now: float, lease_s: float, pace_s: float) -> bool:
        """Whether what a reader at this version needs is held, and needs no other word yet."""
        if self.consumer != consumer or now >= self.written + lease_s / 2:
            return False
        if self.version == version:
            return True
        return now < self.written + pace_s and self.fences(consumer, version, now, lease_s)


RowsOf = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Makes rows of what a task is given."""


class SharedStep(NamedTuple):
    """How tasks share a step: what Spark gives each of them, and what makes the step's rows of that."""

    given: DataFrame
    rows_of: RowsOf


Offset = dict[str, Any]
Opened = TypeVar("Opened")
"""What a reader opens in each call: a table, or several."""


class SteppingReader(DataSourceStreamReader, SupportsTriggerAvailableNow, Generic[Opened]):
    """Steps through the versions of its tables; a subclass says where a step ends, and reads it.

    Tables are opened again in every call: Spark pickles readers and keeps them as long as it likes.
    """

    def __init__(
        self, consumer_id: str | None, lease_ms: int, task_memory: int = DEFAULT_TASK_MEMORY
    ) -> None:
        """Nothing is opened yet; see `Holding` for the other arguments.

        ``task_memory`` is what a task may take beside its libraries, in bytes.
        """
        self.readable_bytes = readable_bytes(task_memory)
        self._until: tuple[int, ...] | None = None
        self._holding = Holding(consumer_id, lease_ms)
        self._idle = IdleLooks(lease_ms)
        self._newest: Offset | None = None
        self._looks = Looks()

    @abstractmethod
    def opened(self) -> Opened:
        """The tables as they are now."""

    def opened_lately(self) -> Opened:
        """The tables as ``latestOffset`` has seen them, if that was a moment ago, or as they are now.

        Spark asks for the end of a step, and at once for its partitions.
        """
        with looking_once(self._looks):
            return self.opened()

    @abstractmethod
    def tables_of(self, opened: Opened) -> Sequence[Table]:
        """Each of them, in the order of their versions."""

    @abstractmethod
    def versions_of(self, opened: Opened, offset: Offset) -> tuple[Version | None, ...]:
        """The versions in an offset; None of a table whose beginning is chosen by the first step."""

    @abstractmethod
    def offset_at(self, opened: Opened, versions: tuple[Version, ...], consumer: str | None = None) -> Offset:
        """The offset of these versions, with the reader's id as a consumer."""

    @abstractmethod
    def ends(
        self, opened: Opened, versions: tuple[Version | None, ...], max_rows: int | None
    ) -> tuple[Version, ...]:
        """Where the step that starts at these versions ends, not beyond ``_until``.

        It may read about ``max_rows`` changes of each table; None for all.
        """

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read no further than the present versions."""
        self._until = self.versions_seen(self.opened())

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """The end of the next step; ``start`` itself when nothing is new."""
        if self._until is None and self._idle.find_none(start):
            return start
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        self._looks.forget()
        opened, holding = self.opened_lately(), self._holding
        tables, versions = self.tables_of(opened), self.versions_of(opened, start)
        check_same_histories(tables, versions)
        seen = {table: table.published.seen.id for table in tables}
        reached = _reached(versions)
        known = holding.consumer_of(start)
        consumer = known or holding.new_id()
        holding.keep(consumer, tables, reached)
        ends = self.ends(opened, versions, max_rows)
        while True:
            try:
                holding.keep(consumer, tables, reached, ends)
                break
            except SnapshotExpiredError:
                ends = self.ends(opened, versions, max_rows)  # expired just after it was chosen
        if ends == versions and not (known is None and holding.is_needed(ends)):
            self._idle.note(seen, start)
            self._newest = start
            return start
        self._newest = self._offset_of_newest(opened)
        return self.offset_at(opened, _identified(tables, ends), consumer)

    def commit(self, end: Offset) -> None:
        """Nothing before ``end`` is read again."""
        opened = self.opened_lately()
        reached = _reached(self.versions_of(opened, end))
        self._holding.tell(self._holding.consumer_of(end), self.tables_of(opened), reached)

    def stop(self) -> None:
        """Spark needs it no more."""
        end_if_spark_has_left()

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """Where the stream will be when it has read what the last look saw: for the progress of Spark."""
        if self._newest is None:
            self._newest = self._offset_of_newest(self.opened())
        return self._newest

    def _offset_of_newest(self, opened: Opened) -> Offset:
        versions = tuple(map(Version.complete, self.versions_seen(opened)))
        return self.offset_at(opened, _identified(self.tables_of(opened), versions))

    def size(self, start: Offset, end: Offset) -> StepSize:
        """What a step touches of all tables at most; no file is opened."""
        opened = self.opened()
        first, last = (_reached(self.versions_of(opened, offset)) for offset in (start, end))
        return size_of(self.tables_of(opened), first, last)

    def as_batch(self, spark: SparkSession, start: Offset, end: Offset) -> SharedStep | None:  # noqa: ARG002
        """A cheaper way for tasks to share a step than by its partitions; None if there is none."""
        return None

    def by_partitions(self, spark: SparkSession, start: Offset, end: Offset) -> SharedStep | None:
        """A step by a task for each of its partitions; None if it has none."""
        parts = tuple(self.partitions(start, end))
        if not parts:
            return None
        return SharedStep(spark.range(0, len(parts), 1, len(parts)), ReadParts(self, parts))

    def rows_between(
        self, opened: Opened, start: Sequence[Version], end: Sequence[Version]
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a step, all of them read in this process."""
        for partition in self.partitions(*(self.offset_at(opened, tuple(each)) for each in (start, end))):
            yield from self.read(partition)

    def keep(self, opened: Opened, start: Offset, end: Offset) -> None:
        """Hold what a replay of this step reads; for one that was planned before a restart."""
        first, last = (_reached(self.versions_of(opened, offset)) for offset in (start, end))
        check_same_histories(self.tables_of(opened), first, last)
        self._holding.keep(self._holding.consumer_of(end), self.tables_of(opened), first, last)

    def versions_seen(self, opened: Opened) -> tuple[int, ...]:
        """The newest data version of each table, as of when it was opened."""
        return tuple(table.published.seen.data_version for table in self.tables_of(opened))


def _identified(tables: Sequence[Table], versions: Sequence[Version]) -> tuple[Version, ...]:
    return tuple(identified(table.published, one) for table, one in zip(tables, versions, strict=True))


def check_same_histories(tables: Sequence[Table], *offsets: Sequence[Version | None]) -> None:
    """Refuse tables that were replaced by older copies since some offsets were written.

    Raises:
        MissingStateError: one has another snapshot of a number, or has not come so far.
    """
    for versions in offsets:
        for table, version in zip(tables, versions, strict=True):
            if version is not None:
                check_is_same(table.published, version)


def size_of(tables: Sequence[Table], start: Sequence[Version], end: Sequence[Version]) -> StepSize:
    """What a step touches of some tables at most; no file is opened."""
    found = [*map(step_size, (table.pinned() for table in tables), start, end)]
    return StepSize(sum(one.rows for one in found), sum(one.bytes for one in found))


def _reached(versions: Sequence[Version | None]) -> tuple[Version, ...]:
    return tuple(version or Version.EMPTY for version in versions)


STEP: Final = Option(
    "step", options.json_object, "data versions from and to, by the uuid of a table, as JSON"
)

SUFFIX: Final = "-step"
"""What the name of a stream's format gets as a batch of one step."""


@dataclass(frozen=True)
class Step:
    """Between which data versions tables move, by their uuids; 0 is the empty table.

    >>> Step({"a1": (0, 3)}).to_option()
    '{"a1": [0, 3]}'
    """

    versions: Mapping[str, tuple[int, int]]

    def to_option(self) -> str:
        """The value of the option."""
        return json.dumps(dict(self.versions))


class StepSource(DataSource):
    """A stream's format as a batch; a subclass says which."""

    stream: ClassVar[type[DataSource]]

    @classmethod
    def name(cls) -> str:
        """The stream's name, with a suffix."""
        return cls.stream.name() + SUFFIX

    def schema(self) -> StructType | str:
        """The stream's."""
        return self._opened().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of the step."""
        step = {key: value for key, value in self.options.items() if key.lower() == STEP.key}
        versions = options.parse(self.name(), [STEP], step)[STEP.key]
        reader = self._opened().streamReader(schema)
        assert isinstance(reader, SteppingReader)
        return StepReader(reader, versions)

    def _opened(self) -> DataSource:
        return self.stream({key: value for key, value in self.options.items() if key.lower() != STEP.key})


class StepReader(DataSourceReader):
    """Reads what lies between two states of a stream's tables."""

    def __init__(self, reader: SteppingReader[Any], versions: Mapping[str, Any]) -> None:
        """The step of a stream's reader; refuses a step that does not say where a table is."""
        self._reader = reader
        self._opened = opened = reader.opened()  # for this process
        uuids = [table.uuid for table in reader.tables_of(opened)]
        if missing := [uuid for uuid in uuids if uuid not in versions]:
            raise ConfigurationError(
                f"option {STEP.key!r} must have the versions of all tables, those of {missing[0]} are missing"
            )
        self._ends = [tuple(Version.complete(int(versions[uuid][end])) for uuid in uuids) for end in (0, 1)]

    def __getstate__(self) -> dict[str, Any]:
        """Tasks open the tables themselves."""
        return {name: value for name, value in self.__dict__.items() if name != "_opened"}

    def partitions(self) -> list[InputPartition]:
        """Those of the stream's micro-batch; a batch must have one."""
        start, end = (self._reader.offset_at(self._opened, each) for each in self._ends)
        return [*self._reader.partitions(start, end)] or [InputPartition(None)]

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The rows of the step, all of them read in this process."""
        return self._reader.rows_between(self._opened, *self._ends)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Its rows."""
        if type(partition) is InputPartition:
            return iter(())
        return self._reader.read(partition)
